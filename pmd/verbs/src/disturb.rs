//! Capture and faults: wrappers around a device's wires, chosen when it is opened.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pmd_observe::why::FaultHits;
use pmd_roce::limits::{QPN_GENERATION_BITS, QPN_INDEX_BITS, QPN_LCORE_BITS};
use pmd_roce::wire::opcode::Opcode;
use pmd_roce::wire::operation::Operation;
use pmd_wire::Wire;
use pmd_wire::fault::{self, Direction, Fault, OpcodeSet, ParseRuleError, QpnMatch, Rule};
use pmd_wire::tap::{Capture, CaptureError, Tap};

/// What wraps the wires of a device. Either part forces packets.
#[derive(Clone, Debug, Default)]
pub struct Disturb {
    /// Write every frame to this pcapng file.
    pub capture: Option<PathBuf>,
    /// Faults, the first that matches a frame acts.
    pub faults: Vec<PlacedFault>,
    /// Seed of what faults choose at random.
    pub seed: u64,
}

impl Disturb {
    /// Whether frames must be packets.
    pub fn is_active(&self) -> bool {
        self.capture.is_some() || !self.faults.is_empty()
    }
}

/// A fault, and the lcore at which it happens.
#[derive(Clone, Debug)]
pub struct PlacedFault {
    /// What happens to which frames.
    pub rule: Rule,
    /// Only frames of this lcore of the device; `None`: of all.
    pub lcore: Option<u32>,
    text: String,
    /// Frames that it hit, at all lcores.
    hits: Arc<AtomicU64>,
}

/// A fault as the command line states it; the names of its nodes are the caller's to resolve.
#[derive(Clone, Debug)]
pub struct FaultText {
    rule: Rule,
    text: String,
    /// Frames to this node.
    pub to: Option<String>,
    /// Frames from this node.
    pub from: Option<String>,
}

impl FaultText {
    /// Reads a fault such as `drop acks after 10` or `delay 5ms WRITE_LAST to target`.
    ///
    /// # Errors
    /// [`ParseRuleError`] says what was expected.
    pub fn parse(text: &str) -> Result<Self, ParseRuleError> {
        let parsed = fault::parse(text, &opcodes)?;
        Ok(Self {
            rule: parsed.rule,
            text: text.to_owned(),
            to: parsed.to.map(Into::into),
            from: parsed.from.map(Into::into),
        })
    }

    /// The fault in place. `to` and `from` are the lcores of this device that the nodes of these
    /// names run on; `None` where no name was given, or the node is elsewhere.
    pub fn place(&self, to: Option<u32>, from: Option<u32>) -> PlacedFault {
        let mut rule = self.rule.clone();
        if let Some(lcore) = to {
            let shift = QPN_GENERATION_BITS + QPN_INDEX_BITS;
            let mask = ((1 << QPN_LCORE_BITS) - 1) << shift;
            rule.matching.qpn = Some(QpnMatch { value: lcore << shift, mask });
        }
        match (from, &self.from, &self.to, to) {
            (Some(_), ..) => rule.matching.direction = Direction::Tx,
            // The node is at the other end: what comes from it arrives here, what goes to it leaves.
            (None, Some(_), ..) => rule.matching.direction = Direction::Rx,
            (None, None, Some(_), None) => rule.matching.direction = Direction::Tx,
            // Whoever sends them, they arrive here, and once.
            (None, None, Some(_), Some(_)) => rule.matching.direction = Direction::Rx,
            (None, None, None, _) => {}
        }
        PlacedFault { rule, lcore: from, text: self.text.clone(), hits: Arc::default() }
    }
}

/// The opcodes of a name: one opcode, or all that acknowledge.
fn opcodes(name: &str) -> Option<OpcodeSet> {
    let one = |set: OpcodeSet, opcode: Opcode| set.with(opcode.byte());
    if name == "acks" {
        let acknowledge = |opcode: &Opcode| {
            matches!(opcode.operation(), Operation::Acknowledge | Operation::AtomicAcknowledge)
        };
        return Some(Opcode::ALL.iter().copied().filter(acknowledge).fold(OpcodeSet::NONE, one));
    }
    Opcode::from_name(name).map(|opcode| one(OpcodeSet::NONE, opcode))
}

/// The wrappers of an open device.
#[derive(Debug)]
pub(crate) struct Disturbance {
    capture: Option<Arc<Capture>>,
    faults: Vec<PlacedFault>,
    seed: u64,
    epoch_ns: u64,
}

impl Disturbance {
    /// Begins the capture, if one is wanted. The clock of the device starts about now.
    pub(crate) fn start(disturb: &Disturb) -> Result<Self, CaptureError> {
        let capture = disturb.capture.as_deref().map(Capture::create).transpose()?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch_ns = u64::try_from(epoch.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { capture, faults: disturb.faults.clone(), seed: disturb.seed, epoch_ns })
    }

    /// The wire of an lcore with what wraps it: faults outside, so that the capture shows what
    /// really passes. `own` is the device's address: what its lcores send each other passes two
    /// wires, and is hit and captured at the first.
    pub(crate) fn wrap(
        &self,
        wire: Box<dyn Wire>,
        lcore: u32,
        own: Option<IpAddr>,
    ) -> Box<dyn Wire> {
        let wire = match &self.capture {
            Some(capture) => {
                let tap = Tap::new(wire, capture, &format!("lcore{lcore}"), self.epoch_ns);
                Box::new(tap.beside(own))
            }
            None => wire,
        };
        let here = |fault: &&PlacedFault| fault.lcore.is_none_or(|at| at == lcore);
        let here: Vec<&PlacedFault> = self.faults.iter().filter(here).collect();
        let mut rules: Vec<Rule> = here.iter().map(|fault| fault.rule.clone()).collect();
        for rule in rules.iter_mut().filter(|rule| rule.matching.direction == Direction::Both) {
            rule.matching.own = own;
        }
        if rules.is_empty() {
            return wire;
        }
        let fault = Fault::new(wire, &rules, self.seed.wrapping_add(lcore.into()));
        Box::new(fault.count_in(here.iter().map(|fault| Arc::clone(&fault.hits))))
    }

    /// How often each fault has acted, as the command line states them.
    pub(crate) fn hits(&self) -> Vec<FaultHits> {
        let hits = |fault: &PlacedFault| FaultHits {
            rule: fault.text.clone(),
            hits: fault.hits.load(Ordering::Relaxed),
        };
        self.faults.iter().map(hits).collect()
    }

    /// Whether all frames were written; to be asked when the lcores are done.
    pub(crate) fn finish(&self) -> Result<(), CaptureError> {
        self.capture.as_ref().map_or(Ok(()), |capture| capture.finish().map(|_| ()))
    }
}
