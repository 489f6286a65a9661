//! The course of a measurement at one end: connect, then one step after another.
//!
//! The client leads: it says which step begins, waits until both ends are ready, lets both go, and
//! stops the server when its own part is done. What breaks at one end is told to the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmd_graph::app::Exit;
use pmd_observe::why::{self, End, Evidence, FaultHits};
use pmd_observe::{Code, Owner, Snapshot, Verdict};
use pmd_verbs::connect::{Hello, Inquiry};

use super::args::Connect;
use super::crew::{Crew, Seats};
use super::desk::Signal;
use super::dialogue::{Dialogue, Word};
use super::failure::Failure;
use super::keep::Keep;
use super::lcore::{Command, Facts, Reply, Step};
use super::limits::{CONNECT, EVIDENCE, INTERRUPTED, LOOK, REPORT, SILENCE, VERDICT};
use super::params::{Length, Params};
use super::pulse::Station;
use super::refusal::Refusal;
use super::tally::Tally;
use super::test::Op;
use super::verdict;

/// How often the control thread looks for words while nothing is measured.
const BUSY_LOOK: Duration = Duration::from_micros(100);

/// One size, measured.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) size: u32,
    pub(super) local: Tally,
    pub(super) remote: Tally,
    /// Bytes that both ends compared in the untimed pass.
    pub(super) verified: u64,
}

/// What is known of both ends: their counters before and after, how often their faults acted, and what a verdict was made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Halves {
    pub(super) local: [Snapshot; 2],
    pub(super) remote: [Snapshot; 2],
    pub(super) faults: [Vec<FaultHits>; 2],
    pub(super) evidence: Option<Box<Evidence>>,
}

impl Halves {
    /// Takes in what an end knows now.
    fn hear(&mut self, remote: bool, end: &End) {
        let half = if remote { &mut self.remote } else { &mut self.local };
        half[1].clone_from(&end.after);
        self.faults[usize::from(remote)].clone_from(&end.faults);
    }
}

/// A connected pair of ends.
#[derive(Debug)]
pub(super) struct Session<'k> {
    crew: Crew,
    pub(super) dialogue: Dialogue,
    params: Params,
    server: bool,
    pub(super) facts: Facts,
    pub(super) halves: Halves,
    /// This end when it was connected.
    start: End,
    interrupt: Arc<AtomicBool>,
    keep: &'k mut Keep,
    state: State,
    /// What the last step of this end came to.
    pub(super) served: Vec<(Step, Tally)>,
}

/// Where both ends are in a step.
#[derive(Clone, Debug, Default)]
struct State {
    ready: usize,
    done: usize,
    over: usize,
    tally: Tally,
    began: bool,
    go: bool,
    peer_done: bool,
    stop: bool,
    peer: Option<Tally>,
    begin: Option<Step>,
    own: Vec<End>,
    told: Option<End>,
    report_asked: bool,
}

impl<'k> Session<'k> {
    /// Makes and connects every queue pair.
    ///
    /// # Errors
    /// What did not work, at either end.
    pub(super) fn connect(
        mut dialogue: Dialogue,
        seats: &Seats,
        stations: Vec<Station>,
        params: &Params,
        interrupt: Arc<AtomicBool>,
        keep: &'k mut Keep,
    ) -> Result<Self, Refusal> {
        match Self::meet(&mut dialogue, seats, stations, params) {
            Ok((crew, facts, remote)) => Ok(Self {
                crew,
                dialogue: dialogue.patient(SILENCE),
                params: params.clone(),
                server: seats.server,
                halves: Halves {
                    local: [facts.end.after.clone(), facts.end.after.clone()],
                    remote: [remote.after.clone(), remote.after],
                    ..Halves::default()
                },
                start: facts.end.clone(),
                facts,
                interrupt,
                keep,
                state: State::default(),
                served: Vec::new(),
            }),
            Err(refusal) => {
                dialogue.broke(&refusal);
                Err(refusal)
            }
        }
    }

    fn meet(
        dialogue: &mut Dialogue,
        seats: &Seats,
        stations: Vec<Station>,
        params: &Params,
    ) -> Result<(Crew, Facts, End), Refusal> {
        let crew = Crew::start(seats, stations, params).map_err(refusal)?;
        match Self::introduce(dialogue, seats, params, &crew) {
            Ok((facts, remote)) => Ok((crew, facts, remote)),
            Err(refusal) => {
                crew.end();
                Err(refusal)
            }
        }
    }

    fn introduce(
        dialogue: &mut Dialogue,
        seats: &Seats,
        params: &Params,
        crew: &Crew,
    ) -> Result<(Facts, End), Refusal> {
        let made = gather(crew, dialogue, |reply| match reply {
            Reply::Made(hellos) => Some(hellos),
            _ => None,
        })?;
        // The client asks, the server chooses and answers; of which the connection manager does its part.
        let is_managed = params.connect == Connect::Cm;
        let (facts, remote) = if seats.server {
            let asked = hear_hellos(dialogue, params)?;
            // The client must know whom to ask.
            if is_managed {
                say_hellos(dialogue, made.into_iter());
            }
            crew.connect(asked);
            let facts = connected(crew, dialogue)?;
            if !is_managed {
                say_hellos(dialogue, facts.iter().map(|facts| facts.hellos.clone()));
            }
            let facts = merged(facts);
            dialogue.say(&Word::Told(Box::new(facts.end.clone())));
            let Word::Told(remote) = dialogue.wait(CONNECT)? else {
                return Err(confused(dialogue));
            };
            (facts, remote.tamed())
        } else {
            say_hellos(dialogue, made.into_iter());
            let answered = hear_hellos(dialogue, params)?;
            let connect = |dialogue: &mut Dialogue| {
                crew.connect(answered);
                Ok::<_, Refusal>(merged(connected(crew, dialogue)?))
            };
            let told = |dialogue: &mut Dialogue| match dialogue.wait(CONNECT)? {
                Word::Told(remote) => Ok(remote),
                _ => Err(confused(dialogue)),
            };
            let (facts, remote) = if is_managed {
                let facts = connect(dialogue)?;
                (facts, told(dialogue)?)
            } else {
                let remote = told(dialogue)?;
                (connect(dialogue)?, remote)
            };
            dialogue.say(&Word::Told(Box::new(facts.end.clone())));
            (facts, remote.tamed())
        };
        Ok((facts, remote))
    }

    /// Measures one size, untimed pass first. The client's part.
    ///
    /// # Errors
    /// What broke, and why.
    pub(super) fn measure(
        &mut self,
        size: u32,
        length: Length,
        watch: &mut dyn FnMut(u64),
    ) -> Result<Sample, Refusal> {
        let op = self.params.test.op();
        let mut verified = 0;
        let ops = [Some(op), self.params.alternates.then_some(Op::Write)];
        for op in ops.into_iter().flatten() {
            for round in 0..self.params.rounds(size) {
                let step = Step::Verify { op, size, round };
                let (local, remote) = self.lead(step, &mut |_| {})?;
                verified += local.verified + remote.verified;
                let sent = local.sent + remote.sent;
                if verified == 0 && sent > 0 && !self.is_interrupted() {
                    return Err(self.broken(&Failure::NothingArrives { sent }));
                }
                if self.is_interrupted() {
                    break;
                }
            }
        }
        let (local, remote) = self.lead(Step::Measure { size, length }, watch)?;
        Ok(Sample { size, local, remote, verified })
    }

    /// One step, led from here.
    fn lead(&mut self, step: Step, watch: &mut dyn FnMut(u64)) -> Result<(Tally, Tally), Refusal> {
        self.state = State::default();
        self.crew.signal(Signal::Wait);
        self.dialogue.say(&Word::Begin(step));
        self.crew.ask(|| Command::Step(step));
        let lcores = self.crew.len();
        self.pump(BUSY_LOOK, &mut |_| {}, |state| state.ready == lcores && state.began)?;
        self.dialogue.say(&Word::Go);
        self.crew.signal(Signal::Go);
        let look = look(step);
        self.pump(look, watch, |state| state.done == lcores)?;
        self.pump(BUSY_LOOK, watch, |state| state.peer_done)?;
        if matches!(step, Step::Verify { .. }) {
            // What both ends can see is found here: who is faster must not decide who is named.
            self.crew.signal(Signal::Stop);
            self.pump(BUSY_LOOK, &mut |_| {}, |state| state.over == lcores)?;
        }
        self.dialogue.say(&Word::Stop);
        self.crew.signal(Signal::Stop);
        self.pump(BUSY_LOOK, &mut |_| {}, |state| state.over == lcores && state.peer.is_some())?;
        let peer = self.state.peer.take().unwrap_or_default();
        Ok((std::mem::take(&mut self.state.tally), peer))
    }

    /// Takes part in whatever the client begins, until it leaves. The server's part.
    ///
    /// # Errors
    /// What broke, and why.
    pub(super) fn follow(&mut self) -> Result<(), Refusal> {
        let lcores = self.crew.len();
        loop {
            self.state = State { begin: self.state.begin, ..State::default() };
            self.crew.signal(Signal::Wait);
            self.pump(BUSY_LOOK, &mut |_| {}, |state| state.begin.is_some() || state.report_asked)?;
            if self.state.report_asked {
                let own = self.report(None, CONNECT).unwrap_or_default();
                self.dialogue.say(&Word::Told(Box::new(own)));
                return Ok(());
            }
            let Some(step) = self.state.begin.take() else { continue };
            if !step.belongs_to(&self.params) {
                let refusal = confused(&self.dialogue);
                self.dialogue.broke(&refusal);
                return Err(refusal);
            }
            self.crew.ask(|| Command::Step(step));
            self.pump(BUSY_LOOK, &mut |_| {}, |state| state.ready == lcores)?;
            self.dialogue.say(&Word::Began);
            self.pump(BUSY_LOOK, &mut |_| {}, |state| state.go)?;
            self.crew.signal(Signal::Go);
            let mut said = false;
            while !self.state.stop {
                let done = said;
                self.pump(look(step), &mut |_| {}, |state| {
                    state.stop || (!done && state.done == lcores)
                })?;
                if !said && self.state.done == lcores {
                    self.dialogue.say(&Word::Done);
                    said = true;
                }
            }
            self.crew.signal(Signal::Stop);
            self.pump(BUSY_LOOK, &mut |_| {}, |state| state.over == lcores)?;
            let tally = std::mem::take(&mut self.state.tally);
            self.dialogue.say(&Word::Over(Box::new(tally.clone())));
            self.served.push((step, tally));
        }
    }

    /// Takes in replies and words until `enough`.
    fn pump(
        &mut self,
        look: Duration,
        watch: &mut dyn FnMut(u64),
        enough: impl Fn(&State) -> bool,
    ) -> Result<(), Refusal> {
        let mut cut: Option<Instant> = None;
        while !enough(&self.state) {
            match self.crew.hear(look) {
                Ok(Some((_, reply))) => self.state.reply(reply),
                Ok(None) => {}
                Err(failure) => return Err(self.broken(&failure)),
            }
            match self.dialogue.hear() {
                Ok(Some(Word::Asked(end))) => return Err(self.asked(&end)),
                Ok(Some(word)) => self.state.word(word),
                Ok(None) => {}
                Err(refusal) => return Err(self.told(refusal)),
            }
            if !self.server && self.is_interrupted() {
                self.crew.signal(Signal::Cut);
                let waited = cut.get_or_insert_with(Instant::now).elapsed();
                if waited > INTERRUPTED {
                    return Err(self.broken(&Failure::Stalled { seconds: waited.as_secs() }));
                }
            }
            self.keep.tick();
            watch(self.crew.done());
        }
        Ok(())
    }

    /// Whether somebody wants an end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// The counters of both ends now. The client's part.
    ///
    /// # Errors
    /// As any step.
    pub(super) fn finish(mut self) -> Result<Halves, Refusal> {
        self.state = State::default();
        self.report(None, CONNECT);
        self.dialogue.say(&Word::Report);
        self.pump(BUSY_LOOK, &mut |_| {}, |state| state.told.is_some())?;
        let remote = self.state.told.take().unwrap_or_default();
        self.halves.hear(true, &remote);
        self.dialogue.leave();
        self.crew.end();
        Ok(self.halves)
    }

    /// After [`Session::follow`]: waits until the client has left, and ends.
    pub(super) fn leave(mut self) {
        let deadline = Instant::now() + EVIDENCE;
        // However it leaves, there is nothing more to do.
        while Instant::now() < deadline && self.dialogue.hear().is_ok() {
            std::thread::sleep(BUSY_LOOK);
        }
        self.dialogue.leave();
        self.crew.end();
    }

    /// Has every lcore of this end tell what it knows, of the queue pair `wanted` if it has it: all of them together. None
    /// where one does not within `limit`.
    fn report(&mut self, wanted: Option<u32>, limit: Duration) -> Option<End> {
        self.state.own = Vec::new();
        self.crew.ask(|| Command::Report(wanted));
        let lcores = self.crew.len();
        let deadline = Instant::now() + limit;
        while self.state.own.len() < lcores {
            match self.crew.hear(BUSY_LOOK) {
                Ok(Some((_, reply))) => self.state.reply(reply),
                Ok(None) if Instant::now() < deadline => {}
                // Another lcore broke too, and still answers.
                Err(_) if Instant::now() < deadline => std::thread::sleep(BUSY_LOOK),
                Ok(None) | Err(_) => return None,
            }
        }
        let name = if self.server { "the server" } else { "the client" };
        let own = together(std::mem::take(&mut self.state.own), wanted).since(&self.start);
        self.halves.hear(false, &own);
        Some(End { name: name.to_owned(), ..own })
    }

    /// Something broke at this end: asks the peer for what it knows, says why it broke, and tells the peer.
    fn broken(&mut self, failure: &Failure) -> Refusal {
        self.crew.signal(Signal::Abort);
        let wanted = match failure {
            Failure::Completion { qpn, .. } => Some(qpn.value()),
            _ => None,
        };
        let own = self.report(wanted, REPORT).unwrap_or_default();
        self.dialogue.ask(&own);
        let is_vague = verdict::is_vague(failure);
        let heard_until = Instant::now() + EVIDENCE;
        let mut both_broke = false;
        while self.dialogue.waits() || (both_broke && is_vague && Instant::now() < heard_until) {
            match self.dialogue.hear() {
                Ok(Some(Word::Asked(_))) => {
                    // It broke there, too: its own words may say more.
                    both_broke = true;
                    self.dialogue.tell(&own);
                }
                Err(words) if words.verdict.code == Code::PeerDead || is_vague => return words,
                Ok(_) | Err(_) => std::thread::sleep(BUSY_LOOK),
            }
        }
        let refusal = self.explain(failure, own);
        self.dialogue.broke(&refusal);
        refusal
    }

    /// What a failure of this end means, by what is known now of both.
    fn explain(&mut self, failure: &Failure, local: End) -> Refusal {
        let refusal = refusal(failure.clone());
        if refusal.exit != Exit::Failed {
            return refusal;
        }
        let inquiry = self.dialogue.inquiry();
        let scene = verdict::Scene {
            local,
            remote: inquiry.and_then(Inquiry::told).cloned(),
            peer: inquiry.map_or(why::Peer::Unknown, Inquiry::peer),
            told_after_ns: inquiry.and_then(Inquiry::told_after),
            nonsense: inquiry.and_then(Inquiry::nonsense).map(str::to_owned),
        };
        if let Some(remote) = &scene.remote {
            self.halves.hear(true, remote);
        }
        let (verdict, evidence) = verdict::explain(failure, &self.params, scene, self.facts.path);
        self.halves.evidence = evidence.map(Box::new);
        Refusal::failed(verdict)
    }

    /// The peer is gone, or has said what broke.
    fn told(&mut self, refusal: Refusal) -> Refusal {
        self.crew.signal(Signal::Abort);
        let own = self.report(None, REPORT).unwrap_or_default();
        verdict::with_own_gap(refusal, &own)
    }

    /// Something broke at the peer, which asks for what this end knows: answers, and waits for its verdict.
    fn asked(&mut self, theirs: &End) -> Refusal {
        self.crew.signal(Signal::Abort);
        self.halves.hear(true, theirs);
        let own = self.report(theirs.qp.dest_qpn, REPORT);
        if let Some(own) = &own {
            self.dialogue.tell(own);
        }
        let deadline = Instant::now() + VERDICT;
        while Instant::now() < deadline {
            match self.dialogue.hear() {
                Ok(_) => std::thread::sleep(BUSY_LOOK),
                Err(words) => return verdict::with_own_gap(words, &own.unwrap_or_default()),
            }
        }
        Refusal::local(format!(
            "something broke at {}, which does not say what",
            self.dialogue.peer
        ))
    }

    /// Ends a session that broke.
    pub(super) fn abandon(mut self) -> Halves {
        self.dialogue.leave();
        self.crew.end();
        self.halves
    }
}

impl State {
    fn reply(&mut self, reply: Reply) {
        match reply {
            Reply::Ready => self.ready += 1,
            Reply::Done => self.done += 1,
            Reply::Over(tally) => {
                self.over += 1;
                self.tally.add(&tally);
            }
            Reply::Told(end) => self.own.push(*end),
            Reply::Made(_) | Reply::Connected(_) | Reply::Failed(_) => {}
        }
    }

    fn word(&mut self, word: Word) {
        match word {
            Word::Begin(step) => self.begin = Some(step),
            Word::Began => self.began = true,
            Word::Go => self.go = true,
            Word::Done => self.peer_done = true,
            Word::Stop => self.stop = true,
            Word::Over(tally) => self.peer = Some(tally.tamed()),
            Word::Report => self.report_asked = true,
            Word::Told(end) => self.told = Some(end.tamed()),
            // Nothing else has a meaning here.
            Word::Part { .. }
            | Word::Welcome(_)
            | Word::Accept { .. }
            | Word::Objects { .. }
            | Word::Hellos(_)
            | Word::Asked(_)
            | Word::Failed { .. }
            | Word::Alive => {}
        }
    }
}

/// How often the control thread looks around during a step: seldom while something is timed, since its core is an
/// lcore's.
const fn look(step: Step) -> Duration {
    match step {
        Step::Verify { .. } => BUSY_LOOK,
        Step::Measure { .. } => LOOK,
    }
}

/// A failure before there is a connection, whose text says it all.
fn refusal(failure: Failure) -> Refusal {
    match failure {
        Failure::Usage(reason) => Refusal::usage(reason),
        Failure::Unfit(reason) => Refusal::unfit(reason),
        Failure::Unmet { silent, .. } => {
            let (code, owner, whose) = if silent {
                (
                    Code::LinkDead,
                    Owner::Fabric,
                    "UDP port 4791 of one end is not reached: a firewall, a fault, or another route than the control channel's",
                )
            } else {
                (Code::PeerNotReady, Owner::Remote, "its control channel answers")
            };
            Refusal::failed(Verdict::new(code, owner, failure.to_string()).because(whose))
        }
        failure => Refusal::local(failure.to_string()),
    }
}

/// One reply of each lcore, in their order.
fn gather<R>(
    crew: &Crew,
    dialogue: &mut Dialogue,
    mut wanted: impl FnMut(Reply) -> Option<R>,
) -> Result<Vec<R>, Refusal> {
    let mut replies: Vec<Option<R>> = (0..crew.len()).map(|_| None).collect();
    while replies.iter().any(Option::is_none) {
        if let Some((lcore, reply)) = crew.hear(BUSY_LOOK).map_err(refusal)?
            && let Some(slot) = replies.get_mut(lcore as usize)
        {
            *slot = wanted(reply);
        }
        dialogue.keep()?;
    }
    Ok(replies.into_iter().flatten().collect())
}

fn connected(crew: &Crew, dialogue: &mut Dialogue) -> Result<Vec<Facts>, Refusal> {
    gather(crew, dialogue, |reply| match reply {
        Reply::Connected(facts) => Some(*facts),
        _ => None,
    })
}

/// The facts of an end: of its first lcore, with the counters of all.
fn merged(facts: Vec<Facts>) -> Facts {
    let end = together(facts.iter().map(|facts| facts.end.clone()).collect(), None);
    match facts.into_iter().next() {
        Some(first) => Facts { end, ..first },
        None => Facts { hellos: Vec::new(), path: "none", gids: None, mtu: 0, qp_bytes: 0, end },
    }
}

/// All lcores of an end as one: the queue pair that is wanted or the first, the counters of all, and the longest gap.
fn together(ends: Vec<End>, wanted: Option<u32>) -> End {
    let mut after = Snapshot::default();
    for end in &ends {
        after.extend(end.after.iter().map(|(name, value)| (name.to_owned(), value)));
    }
    let gap = ends.iter().max_by_key(|end| end.gap_ns).map(|end| (end.gap_ns, end.gap_age_ns));
    let (gap_ns, gap_age_ns) = gap.unwrap_or_default();
    // What changes stored bytes is known to the first lcore alone.
    let faults = ends.first().map(|end| end.faults.clone()).unwrap_or_default();
    let is_wanted = |end: &End| wanted.is_some() && end.qp.qpn == wanted;
    let at = ends.iter().position(is_wanted).unwrap_or(0);
    let one = ends.into_iter().nth(at).unwrap_or_default();
    End { after, gap_ns, gap_age_ns, faults, ..one }
}

fn say_hellos(dialogue: &mut Dialogue, all: impl Iterator<Item = Vec<Hello>>) {
    for (lcore, hellos) in (0..).zip(all) {
        let count = u32::try_from(hellos.len()).unwrap_or(u32::MAX);
        dialogue.say(&Word::Objects { lcore, hellos: count });
        dialogue.say(&Word::Hellos(hellos));
    }
}

/// What the peer says of every queue pair, lcore by lcore.
fn hear_hellos(dialogue: &mut Dialogue, params: &Params) -> Result<Vec<Vec<Hello>>, Refusal> {
    let mut all = Vec::with_capacity(params.lcores as usize);
    for lcore in 0..params.lcores {
        let due = params.qps_of(lcore) as usize;
        match dialogue.wait(CONNECT)? {
            Word::Objects { hellos, .. } if hellos as usize == due => {}
            _ => return Err(confused(dialogue)),
        }
        let mut hellos = Vec::with_capacity(due);
        while hellos.len() < due {
            let Word::Hellos(more) = dialogue.wait(CONNECT)? else {
                return Err(confused(dialogue));
            };
            if more.is_empty() || hellos.len() + more.len() > due {
                return Err(confused(dialogue));
            }
            hellos.extend(more);
        }
        all.push(hellos);
    }
    Ok(all)
}

fn confused(dialogue: &Dialogue) -> Refusal {
    Refusal::usage(format!("{} is of another version: update the older side", dialogue.peer))
}
