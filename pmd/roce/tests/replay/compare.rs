//! Whether what the engine sent is what was recorded, and where not.

use std::fmt::{self, Write};

use pmd_roce::ids::{Psn, Qpn};
use pmd_roce::wire::bth::BthView;
use pmd_roce::wire::{Aeth, CreditCode, Headers, Operation, Packet, Syndrome, icrc};

use crate::memory::ipv6;
use crate::stand_in::{COARSE, Emitted, Mapping, Outcome};
use crate::story::{End, Record, Story};

/// What of a frame must be equal. Left out: the ICRC and the IPv4 identification, which differ with
/// the rest, and the UDP checksum, which is no part of a frame here.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    headers: Headers,
    payload: Vec<u8>,
    pad: Vec<u8>,
    from: End,
    traffic_class: u8,
    hop_limit: u8,
    /// Where it follows from what was agreed. Elsewhere it follows from queue pair numbers.
    src_port: Option<u16>,
}

impl Shown {
    fn new(story: &Story, payload: &[u8]) -> Self {
        let mut headers = packet(payload).headers;
        // rxe never sets MigReq, and never counts credits.
        headers.bth.mig_req = false;
        if let Some(Aeth { syndrome: Syndrome::Ack { credits }, .. }) = &mut headers.aeth {
            *credits = CreditCode::NONE;
        }
        let end = payload.len() - icrc::LEN;
        let pad = BthView::new_checked(payload).unwrap().pad();
        Self {
            headers,
            payload: packet(payload).payload.to_vec(),
            pad: payload[end - usize::from(pad)..end].to_vec(),
            from: End::Client,
            traffic_class: 0,
            hop_limit: 0,
            src_port: story.handshake.map(|_| 0),
        }
    }

    fn recorded(story: &Story, record: &Record) -> Self {
        let frame = &record.frame;
        let shown = Self::new(story, &frame.payload);
        Self {
            from: record.from,
            traffic_class: frame.traffic_class,
            hop_limit: frame.hop_limit,
            src_port: shown.src_port.map(|_| frame.src_port),
            ..shown
        }
    }

    /// A frame of the engine, as it would have been with the recorded numbers.
    fn emitted(story: &Story, end: End, mapping: Mapping, qpn: Qpn, emitted: &Emitted) -> Self {
        let mut shown = Self::new(story, &emitted.payload);
        let bth = &mut shown.headers.bth;
        let stream = if bth.opcode.operation().is_request() { end } else { end.other() };
        if let Some(psns) = mapping.first_psns {
            let since = bth.psn.since(psns[stream as usize]);
            bth.psn = story.first_psn(stream).plus(since.cast_unsigned());
        }
        if let Some(deth) = &mut shown.headers.deth {
            assert_eq!(deth.src_qp, qpn);
            deth.src_qp = story.qpn(end);
        }
        let flow = &emitted.flow;
        let gid = |end| if mapping.ipv6 { ipv6(story.gid(end)) } else { story.gid(end) };
        assert_eq!(flow.dst, gid(end.other()));
        assert_eq!(flow.src, gid(end));
        Self {
            from: end,
            traffic_class: flow.traffic_class,
            hop_limit: flow.hop_limit,
            src_port: shown.src_port.map(|_| flow.src_port),
            ..shown
        }
    }

    const fn psn(&self) -> Psn {
        self.headers.bth.psn
    }

    /// Whether it says no less than `ack`.
    fn covers(&self, ack: &Self) -> bool {
        self.headers.aeth.is_some() && self.psn().since(ack.psn()) >= 0
    }

    fn is_ack(&self) -> bool {
        let is_positive =
            self.headers.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        is_positive && self.headers.bth.opcode.operation() == Operation::Acknowledge
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Headers { bth, xrceth, deth, reth, atomic_eth, aeth, atomic_ack_eth, immdt, ieth } =
            &self.headers;
        let name = bth.opcode.name();
        write!(f, "{name:<24} psn={} to={} len={}", bth.psn, bth.dest_qp, self.payload.len())?;
        for (flag, name) in [(bth.ack_req, "A"), (bth.solicited, "SE")] {
            if flag {
                write!(f, " {name}")?;
            }
        }
        macro_rules! show {
            ($($header:ident)*) => {$(
                if let Some(header) = $header {
                    write!(f, " {header:x?}")?;
                }
            )*};
        }
        show!(xrceth deth reth atomic_eth aeth atomic_ack_eth immdt ieth);
        if !self.pad.is_empty() {
            write!(f, " pad={:x?}", self.pad)?;
        }
        Ok(())
    }
}

/// The packet of a frame.
pub(crate) fn packet(payload: &[u8]) -> Packet<'_> {
    Packet::parse(&payload[..payload.len() - icrc::LEN]).unwrap()
}

/// Compares all that the engine sent in the place of `end` with what was recorded.
///
/// An ACK may be missing if another one says the same or more; without bursts every ACK must be
/// there, since the engine is polled after every frame as rxe's tasklet is.
pub(crate) fn assert_equal(story: &Story, end: End, mapping: Mapping, outcome: &Outcome) {
    let recorded = outcome.expected.iter().map(|(index, at)| {
        let record = &story.records[*index];
        (record.frame.number, *at, Shown::recorded(story, record))
    });
    let ours: Vec<_> = outcome
        .emitted
        .iter()
        .map(|emitted| Shown::emitted(story, end, mapping, outcome.qpn, emitted))
        .collect();
    let mut diff = format!("{} in the place of the {end:?}, {mapping:?}:\n", story.scenario.trace);
    let (mut next, mut is_equal) = (0, true);
    for (number, at, recorded) in recorded {
        let number = format!("#{number}");
        // Frames that nobody recorded come before the one that was, if it comes at all.
        if let Some(more) =
            ours.get(next..).unwrap_or_default().iter().position(|our| *our == recorded)
        {
            for our in &ours[next..next + more] {
                is_equal = false;
                writeln!(diff, "+ ours  {our}").unwrap();
            }
            next += more;
        }
        match ours.get(next) {
            Some(our) if *our == recorded => {
                let sent_at = outcome.emitted[next].at;
                let apart = sent_at.since(at).max(at.since(sent_at));
                let is_timely = apart <= COARSE;
                is_equal &= is_timely;
                let note = if is_timely { String::new() } else { format!(" {apart:?} off") };
                writeln!(diff, "  {number:<5} {recorded}{note}").unwrap();
                next += 1;
            }
            // The newest that was sent counts as well: it may stand for several.
            _ if mapping.bursts
                && recorded.is_ack()
                && ours[next.saturating_sub(1)..].iter().any(|our| our.covers(&recorded)) =>
            {
                writeln!(diff, "  {number:<5} {recorded} (covered)").unwrap();
            }
            our => {
                is_equal = false;
                writeln!(diff, "- {number:<5} {recorded}").unwrap();
                if let Some(our) = our {
                    writeln!(diff, "+ ours  {our}").unwrap();
                    explain(&mut diff, &recorded, our);
                }
                next += 1;
            }
        }
    }
    for our in ours.get(next..).unwrap_or_default() {
        is_equal = false;
        writeln!(diff, "+ ours  {our}").unwrap();
    }
    assert!(is_equal, "{diff}");
}

/// Names what a line does not show.
fn explain(diff: &mut String, recorded: &Shown, our: &Shown) {
    let same = |at: &usize| recorded.payload.get(*at) == our.payload.get(*at);
    let len = recorded.payload.len().max(our.payload.len());
    if let Some(at) = (0..len).find(|at| !same(at)) {
        let byte = |shown: &Shown| shown.payload.get(at).copied();
        writeln!(diff, "        payload[{at}]: {:x?}, ours {:x?}", byte(recorded), byte(our))
            .unwrap();
    }
    for (name, recorded, our) in [
        ("traffic class", u16::from(recorded.traffic_class), u16::from(our.traffic_class)),
        ("hop limit", u16::from(recorded.hop_limit), u16::from(our.hop_limit)),
        ("source port", recorded.src_port.unwrap_or(0), our.src_port.unwrap_or(0)),
    ] {
        if recorded != our {
            writeln!(diff, "        {name}: {recorded}, ours {our}").unwrap();
        }
    }
}
