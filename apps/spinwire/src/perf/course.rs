//! From the command line to the result, for each of the parts that a process can play.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use pmd_graph::app::{Exit, RecordTo, print, say, signals};
use pmd_graph::config::retry::milliseconds;
use pmd_lcore::{Clock, Topology, hop_ns};
use pmd_observe::Verdict;
use pmd_verbs::connect::channel_pair;
use pmd_verbs::{Device, DeviceConfig, Disturb, OpenError, WireChoice};
use serde_json::Value;

use super::args::{PerfArgs, Wire};
use super::bar::Bar;
use super::crew::Seats;
use super::dialogue::{Dialogue, Place, VERSION, Welcome, Word};
use super::faults::Faults;
use super::keep::{Keep, There};
use super::limits::{CONNECT, SILENCE_OF_A_CALLER};
use super::params::Params;
use super::placement::{Cpus, claim};
use super::pulse::Station;
use super::refusal::Refusal;
use super::report::{self, Row, Setting};
use super::second::{self, Door, Second};
use super::session::{Halves, Session};
use super::test::Misconnect;
use crate::device;

/// What came out, good or bad.
struct Outcome {
    rows: Vec<Row>,
    setting: Option<Setting>,
    halves: Halves,
    verdict: Verdict,
    exit: Exit,
}

/// Runs the part of this process, prints the result, and says how it ended.
pub(crate) fn run(args: &PerfArgs) -> Exit {
    let mut keep = Keep::default();
    let (params, mut outcome) = match started(args, &mut keep) {
        Ok(ended) => ended,
        Err(refusal) => {
            keep.settle(&refusal.verdict);
            let params = Params::of(args, Vec::new(), &|_| None).ok();
            let object = refused(args, params.as_ref(), &refusal);
            let unwritten = keep.end(&object);
            unwritten.into_iter().for_each(|reason| say(format_args!("error: {reason}")));
            if args.part.is_none() {
                keep.show_trouble();
            }
            return tell(args, &object, &refusal);
        }
    };
    keep.settle(&outcome.verdict);
    let Some(params) = params else {
        let verdict = &outcome.verdict;
        // It was not asked for.
        drop(keep.end(&serde_json::json!({ "ok": verdict.is_ok(), "verdict": verdict })));
        return outcome.exit;
    };
    if let Some(reason) = keep.end(&result(&params, &outcome))
        && outcome.exit == Exit::Done
    {
        (outcome.verdict, outcome.exit) = (Refusal::local(reason).verdict, Exit::Failed);
    }
    if outcome.exit != Exit::Done {
        keep.show_trouble();
    }
    match show(args, &params, &outcome) {
        Ok(()) => outcome.exit,
        Err(error) => {
            say(format_args!("error: cannot write the result: {error}"));
            Exit::Failed
        }
    }
}

/// A run without a result, as JSON.
fn refused(args: &PerfArgs, params: Option<&Params>, refusal: &Refusal) -> Value {
    let verdict = &refusal.verdict;
    match params {
        Some(params) => report::object(params, None, None, &Halves::default(), verdict),
        None => serde_json::json!({ "ok": false, "op": args.test, "verdict": verdict }),
    }
}

/// Tells of a run without a result.
fn tell(args: &PerfArgs, object: &Value, refusal: &Refusal) -> Exit {
    match refusal.exit {
        // The first process has heard of it, and says it.
        _ if args.part.is_some() => {}
        Exit::Failed => say(&refusal.verdict),
        _ => say(format_args!("error: {}", refusal.verdict.summary)),
    }
    if args.json
        && args.part.is_none()
        && let Err(error) = print(&format!("{object}\n"))
    {
        say(format_args!("error: cannot write the result: {error}"));
    }
    refusal.exit
}

fn started(args: &PerfArgs, keep: &mut Keep) -> Result<(Option<Params>, Outcome), Refusal> {
    let interrupt = signals::interrupt().map_err(|error| Refusal::local(error.to_string()))?;
    if let Some(parent) = args.part {
        signals::end_with_the_parent();
        let outcome =
            serve_parent(args, second::call(parent, second::guard(args)?)?, &interrupt, keep)?;
        return Ok((None, outcome));
    }
    let there = args.peer.as_ref().or(args.listen.as_ref());
    let there = there.map(|text| second::address(args, text)).transpose()?;
    let guard = second::guard(args)?;
    let far = there.is_some_and(|address| !address.ip().is_loopback());
    let device = device::chosen(&args.device, args.gid_index, args.ipv6, far);
    let device = device.map_err(Refusal::usage)?;
    let args = &PerfArgs { device, ..args.clone() };
    let faults = Faults::of(&args.faults).map_err(Refusal::usage)?;
    let environment = |name: &str| std::env::var(name).ok();
    let params = Params::of(args, faults.flips.clone(), &environment).map_err(Refusal::usage)?;
    if args.listen.is_none() && params.transport.is_reliable() {
        tracing::info!(
            "timeout {}, retry_cnt {}, rnr_retry {}, min_rnr_timer {}; retry budget {}",
            params.timeout,
            params.retry_cnt,
            params.rnr_retry,
            params.min_rnr_timer,
            params.budget().map_or_else(|| "no limit".to_owned(), milliseconds)
        );
    }
    let topology = Topology::detect().map_err(|error| Refusal::local(error.to_string()))?;
    let both_here = args.listen.is_none() && args.peer.is_none();
    let (cpus, claims) = claim(args, &topology, both_here)?;
    keep.open(args)?;
    let has_second = args.listen.is_none() && args.peer.is_none() && args.processes != Some(1);
    keep.record(&if has_second { args.record.part(0) } else { args.record.clone() })?;
    let there = There {
        peer: there.filter(|_| args.listen.is_none()),
        listen: there.filter(|_| args.listen.is_some()),
    };
    if let Some(text) = &args.listen {
        let door = Door::open(second::address(args, text)?, guard)?;
        keep.wait(args.test, there);
        let (params, outcome) = serve_strangers(args, &cpus, &faults, door, &interrupt, keep)?;
        return Ok((Some(params), outcome));
    }
    let lead = Lead { args, params, cpus, faults, interrupt, keep };
    let (params, outcome) = if let Some(text) = &args.peer {
        lead.keep.wait(args.test, there);
        let address = second::address(args, text)?;
        lead.with(|| Ok(Dialogue::new(second::dial(address, guard)?)), None)?
    } else if args.processes == Some(1) {
        lead.alone()?
    } else {
        let (mut second, dialogue) = Second::start(args)?;
        let outcome = lead.with(|| Ok(dialogue), Some(2));
        second.end();
        outcome?
    };
    drop(claims);
    Ok((Some(params), outcome))
}

/// The device of this end.
fn open(
    name: &str,
    wire: WireChoice,
    lcores: u32,
    faults: Vec<pmd_verbs::PlacedFault>,
    keep: &Keep,
) -> Result<Device, Refusal> {
    let config = device::config(name)
        .map_err(|error| Refusal::usage(format!("--device {name}: {error}")))?;
    let disturb = Disturb { faults, ..Disturb::default() };
    let config = DeviceConfig { wire, lcores, disturb, record: keep.recording(), ..config };
    Device::open(&config).map_err(|error| match error {
        OpenError::NoPackets(_) | OpenError::Lcores(_) | OpenError::NotOnNic { .. } => {
            Refusal::usage(error.to_string())
        }
        error => Refusal::unfit(error.to_string()),
    })
}

/// The client's part.
struct Lead<'a> {
    args: &'a PerfArgs,
    params: Params,
    cpus: Cpus,
    faults: Faults,
    interrupt: Arc<AtomicBool>,
    keep: &'a mut Keep,
}

impl Lead<'_> {
    /// Against an end that is reached by `dial`, once this one can say at once what it wants; `processes` of this machine, if it
    /// is known.
    fn with(
        mut self,
        dial: impl FnOnce() -> Result<Dialogue, Refusal>,
        processes: Option<u8>,
    ) -> Result<(Params, Outcome), Refusal> {
        let before = self.probe(processes.is_some());
        let device = open(
            &self.args.device,
            self.args.wire.into(),
            self.params.lcores,
            self.faults.at(false, false),
            self.keep,
        )?;
        self.settle(&device)?;
        let beside = device::beside(&self.args.device, self.args.wire == Wire::Shm);
        let beside = processes.map(|_| beside).transpose().map_err(Refusal::usage)?;
        let place = beside.map(|device| Place {
            cpus: self.cpus.theirs.clone(),
            shared: self.cpus.shared,
            device,
            wire: wire_name(self.args.wire).to_owned(),
            faults: self.faults.frames.clone(),
            run_dir: self.keep.of_server(),
            record: {
                let RecordTo { record, record_limit } = self.args.record.part(1);
                (record, record_limit)
            },
        });
        let mut dialogue = dial()?;
        dialogue.say(&Word::Welcome(Box::new(Welcome {
            version: VERSION,
            pid: std::process::id(),
            params: self.params.clone(),
            place,
        })));
        let Word::Accept { pid, cpus } = dialogue.wait(CONNECT)? else {
            return Err(Refusal::usage(format!(
                "{} is of another version: update the older side",
                dialogue.peer
            )));
        };
        dialogue.peer =
            format!("{} (process {pid})", dialogue.peer.split(" (").next().unwrap_or_default());
        let seats = self.seats(device, 0);
        let [stations] = self.keep.begin(&self.params, [&seats]);
        let ends = [self.cpus.ours.clone(), cpus];
        self.course(dialogue, (&seats, stations), ends, processes.unwrap_or(2), before)
    }

    /// Both ends in this process.
    fn alone(mut self) -> Result<(Params, Outcome), Refusal> {
        let before = self.probe(true);
        let lcores = 2 * self.params.lcores;
        let device = open(
            &self.args.device,
            self.args.wire.into(),
            lcores,
            self.faults.at(false, true),
            self.keep,
        )?;
        self.settle(&device)?;
        let (ours, theirs) = channel_pair("client", "server");
        let seats = self.seats(device.clone(), 0);
        let server = Seats {
            first: self.params.lcores,
            cpus: self.cpus.theirs.clone(),
            server: true,
            ..seats.clone()
        };
        // All of it is kept by the end that leads.
        let [stations, others] = self.keep.begin(&self.params, [&seats, &server]);
        let (params, interrupt) = (self.params.clone(), Arc::clone(&self.interrupt));
        let other = thread::Builder::new().name("server".into()).spawn(move || {
            let mut dialogue = Dialogue::new(theirs);
            dialogue.peer = "the client".to_owned();
            follow(dialogue, (&server, others), &params, interrupt, &mut Keep::default()).map(drop)
        });
        let other =
            other.map_err(|error| Refusal::unfit(format!("cannot start a thread: {error}")))?;
        let mut dialogue = Dialogue::new(ours);
        dialogue.peer = "the server".to_owned();
        let ends = [self.cpus.ours.clone(), self.cpus.theirs.clone()];
        let outcome = self.course(dialogue, (&seats, stations), ends, 1, before);
        // What broke there was told here.
        drop(other.join());
        outcome
    }

    /// What depends on the path MTU.
    fn settle(&mut self, device: &Device) -> Result<(), Refusal> {
        self.params.settle(device.mtu()).map_err(Refusal::usage)?;
        let held = u64::from(self.params.qps_of(0))
            * u64::from(self.params.slots())
            * u64::from(self.params.largest());
        match self.params.flips.iter().find(|flip| flip.offset >= held) {
            None => Ok(()),
            Some(flip) => Err(Refusal::usage(format!(
                "--fault flip: the buffers of the first lcore hold {held} bytes, and byte {} is none of them",
                flip.offset
            ))),
        }
    }

    fn seats(&self, device: Device, first: u32) -> Seats {
        Seats {
            device,
            first,
            cpus: self.cpus.ours.clone(),
            cpu_shared: self.cpus.shared,
            others: self.cpus.others.clone(),
            server: false,
            clock: Clock::start(),
        }
    }

    fn probe(&self, both_here: bool) -> Option<u64> {
        let (ours, theirs) = (self.cpus.ours.first(), self.cpus.theirs.first());
        let apart = both_here.then(|| hop_ns(*ours?, *theirs?).ok()).flatten();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "microseconds at most"
        )]
        apart.map(|ns| ns.round() as u64)
    }

    /// Every size, one after the other.
    fn course(
        self,
        dialogue: Dialogue,
        (seats, stations): (&Seats, Vec<Station>),
        cpus: [Vec<usize>; 2],
        processes: u8,
        before: Option<u64>,
    ) -> Result<(Params, Outcome), Refusal> {
        let interrupt = Arc::clone(&self.interrupt);
        let mut session =
            Session::connect(dialogue, seats, stations, &self.params, interrupt, self.keep)?;
        let mut setting = Setting {
            processes,
            connect: self.params.connect.name(),
            sealed: session.dialogue.is_sealed(),
            path: session.facts.path,
            gids: session.facts.gids,
            mtu: session.facts.mtu,
            qp_bytes: session.facts.qp_bytes,
            cpus,
            shared_with: self.cpus.others.iter().map(|other| other.pid).collect(),
            probe: [before, None],
            clock: seats.clock.source(),
            interrupted: false,
            packets_by: (!self.faults.frames.is_empty()).then_some("--fault"),
        };
        let mut rows = Vec::new();
        let json = self.args.json;
        let write = |text: &str| if json { Ok(()) } else { print(text) };
        let unwritten =
            |error: std::io::Error| Refusal::local(format!("cannot write the result: {error}"));
        write(&report::heading(&self.params, &setting)).map_err(unwritten)?;
        for size in self.params.sizes() {
            let mut bar = Bar::new(&self.params);
            let measured = session.measure(*size, self.params.length, &mut |done| bar.show(done));
            bar.clear();
            match measured {
                Ok(sample) => {
                    let row = Row::of(&sample, &self.params, session.facts.path);
                    write(&report::line(&self.params, &row)).map_err(unwritten)?;
                    rows.push(row);
                }
                Err(refusal) => {
                    let halves = session.abandon();
                    let outcome = Outcome {
                        rows,
                        setting: Some(setting),
                        halves,
                        verdict: refusal.verdict,
                        exit: refusal.exit,
                    };
                    return Ok((self.params, outcome));
                }
            }
            if session.is_interrupted() {
                setting.interrupted = true;
                break;
            }
        }
        let halves = match session.finish() {
            Ok(halves) => halves,
            Err(refusal) => {
                let outcome = Outcome {
                    rows,
                    setting: Some(setting),
                    halves: Halves::default(),
                    verdict: refusal.verdict,
                    exit: refusal.exit,
                };
                return Ok((self.params, outcome));
            }
        };
        setting.probe[1] = before.and_then(|_| self.probe(true));
        let verified: u64 = rows.iter().map(|row| row.verified).sum();
        let verdict = Verdict::ok(format!("{verified} bytes verified"));
        let verdict = match self.params.misconnect {
            Some(wrong) => verdict.because(without_effect(wrong, setting.path)),
            None => verdict,
        };
        let outcome = Outcome { rows, setting: Some(setting), halves, verdict, exit: Exit::Done };
        Ok((self.params, outcome))
    }
}

/// Why a connection that is wrong on purpose works all the same.
fn without_effect(wrong: Misconnect, path: &str) -> String {
    let why = match (wrong, path) {
        (Misconnect::Mtu, "local") => ": shared memory has no packets; use --wire udp",
        _ => "",
    };
    format!("--misconnect {wrong} had no effect{why}")
}

const fn wire_name(wire: Wire) -> &'static str {
    match wire {
        Wire::Auto => "auto",
        Wire::Shm => "shm",
        Wire::Udp => "udp",
    }
}

/// The server's part, as a second process.
fn serve_parent(
    args: &PerfArgs,
    mut dialogue: Dialogue,
    interrupt: &Arc<AtomicBool>,
    keep: &mut Keep,
) -> Result<Outcome, Refusal> {
    let first = dialogue.wait(CONNECT)?;
    let welcome = welcome(&mut dialogue, first, args)?;
    let place = welcome.place.ok_or_else(|| Refusal::usage("the first process gives no place"))?;
    keep.open_at(args, place.run_dir.as_deref());
    let (path, record_limit) = place.record;
    let record = keep.record(&RecordTo { record: path, record_limit });
    record.inspect_err(|refusal| dialogue.refuse(&refusal.verdict.summary))?;
    let wire = match place.wire.as_str() {
        "shm" => WireChoice::Shm,
        "udp" => WireChoice::Udp,
        _ => WireChoice::Auto,
    };
    let faults = Faults { frames: place.faults, flips: Vec::new() };
    // The first process has claimed them.
    let cpus =
        Cpus { ours: place.cpus, theirs: Vec::new(), shared: place.shared, others: Vec::new() };
    let spot = Spot { device: &place.device, wire, cpus: &cpus, faults: &faults };
    Ok(serve(dialogue, &spot, &welcome.params, interrupt, keep)?)
}

/// The server's part, for a client from elsewhere: whoever calls and does not get so far that it is connected is no client.
fn serve_strangers(
    args: &PerfArgs,
    cpus: &Cpus,
    faults: &Faults,
    mut door: Door,
    interrupt: &Arc<AtomicBool>,
    keep: &mut Keep,
) -> Result<(Params, Outcome), Refusal> {
    let spot = Spot { device: &args.device, wire: args.wire.into(), cpus, faults };
    loop {
        let (dialogue, mut params) = door.wait(interrupt, |dialogue| {
            let first = dialogue.first()?;
            let params = welcome(dialogue, first, args)?.params;
            let lcores = cpus.ours.len();
            if params.lcores as usize != lcores {
                let theirs = params.lcores;
                let reason = format!(
                    "this end has {lcores} lcores, and the client {theirs}: --lcores {theirs}"
                );
                dialogue.refuse(&reason);
                return Err(Refusal::usage(reason));
            }
            Ok(params)
        })?;
        params.no_post_recv |= args.no_post_recv;
        params.pause = params.pause.or(args.pause_responder);
        params.misconnect = params.misconnect.or(args.misconnect);
        params.flips.extend(&faults.flips);
        let peer = dialogue.peer.clone();
        let dialogue = dialogue.patient(SILENCE_OF_A_CALLER);
        match serve(dialogue, &spot, &params, interrupt, keep) {
            Ok(outcome) => return Ok((params, outcome)),
            Err(Unserved::ByPeer(refusal)) => {
                door.refused(&peer, &refusal);
                keep.wait_again(args.test);
            }
            Err(Unserved::Here(refusal)) => return Err(refusal),
        }
    }
}

/// A client's first word.
fn welcome(dialogue: &mut Dialogue, first: Word, args: &PerfArgs) -> Result<Welcome, Refusal> {
    let Word::Welcome(welcome) = first else {
        return Err(Refusal::usage(format!(
            "{} does not measure: it is another program",
            dialogue.peer
        )));
    };
    let reason = if welcome.version != VERSION {
        Some(format!(
            "this end speaks version {VERSION}, the other {}: update the older side",
            welcome.version
        ))
    } else if welcome.params.test != args.test {
        Some(format!(
            "this end measures {}, and the client {}: name the same test",
            args.test, welcome.params.test
        ))
    } else {
        welcome.params.sound().err()
    };
    if let Some(reason) = reason {
        dialogue.refuse(&reason);
        return Err(Refusal::usage(reason));
    }
    dialogue.peer = format!("{} (process {})", dialogue.peer, welcome.pid);
    Ok(*welcome)
}

/// Where a server runs, and on what.
struct Spot<'a> {
    device: &'a str,
    wire: WireChoice,
    cpus: &'a Cpus,
    faults: &'a Faults,
}

/// Why a client was not served.
enum Unserved {
    /// It left, or asked for what cannot be, before it was connected.
    ByPeer(Refusal),
    /// This end cannot serve it.
    Here(Refusal),
}

impl From<Unserved> for Refusal {
    fn from(unserved: Unserved) -> Self {
        match unserved {
            Unserved::ByPeer(refusal) | Unserved::Here(refusal) => refusal,
        }
    }
}

fn serve(
    mut dialogue: Dialogue,
    spot: &Spot<'_>,
    params: &Params,
    interrupt: &Arc<AtomicBool>,
    keep: &mut Keep,
) -> Result<Outcome, Unserved> {
    let device =
        match open(spot.device, spot.wire, params.lcores, spot.faults.at(true, false), keep) {
            Ok(device) => device,
            Err(refusal) => {
                dialogue.refuse(&refusal.verdict.summary);
                return Err(Unserved::Here(refusal));
            }
        };
    dialogue.say(&Word::Accept { pid: std::process::id(), cpus: spot.cpus.ours.clone() });
    let seats = Seats {
        device,
        first: 0,
        cpus: spot.cpus.ours.clone(),
        cpu_shared: spot.cpus.shared,
        others: spot.cpus.others.clone(),
        server: true,
        clock: Clock::start(),
    };
    // What it asks for may be more than this machine has.
    let [stations] = keep.begin(params, [&seats]);
    follow(dialogue, (&seats, stations), params, Arc::clone(interrupt), keep)
        .map_err(Unserved::ByPeer)
}

/// Takes part until the client has what it wants.
fn follow(
    dialogue: Dialogue,
    (seats, stations): (&Seats, Vec<Station>),
    params: &Params,
    interrupt: Arc<AtomicBool>,
    keep: &mut Keep,
) -> Result<Outcome, Refusal> {
    let mut session = Session::connect(dialogue, seats, stations, params, interrupt, keep)?;
    let shared_with = seats.others.iter().map(|other| other.pid).collect();
    let setting = Setting {
        processes: 2,
        connect: params.connect.name(),
        sealed: session.dialogue.is_sealed(),
        path: session.facts.path,
        gids: session.facts.gids,
        mtu: session.facts.mtu,
        qp_bytes: session.facts.qp_bytes,
        cpus: [seats.cpus.clone(), Vec::new()],
        shared_with,
        probe: [None, None],
        clock: seats.clock.source(),
        interrupted: false,
        packets_by: None,
    };
    match session.follow() {
        Ok(()) => {
            let rows = Row::served(&session.served);
            let verified: u64 = rows.iter().map(|row| row.verified).sum();
            let halves = session.halves.clone();
            session.leave();
            let verdict = Verdict::ok(format!("{verified} bytes verified here"));
            Ok(Outcome { rows, setting: Some(setting), halves, verdict, exit: Exit::Done })
        }
        Err(refusal) => {
            let halves = session.abandon();
            Ok(Outcome {
                rows: Vec::new(),
                setting: Some(setting),
                halves,
                verdict: refusal.verdict,
                exit: refusal.exit,
            })
        }
    }
}

/// What came out, as JSON.
fn result(params: &Params, outcome: &Outcome) -> Value {
    let Outcome { rows, setting, halves, verdict, .. } = outcome;
    let object = |row| report::object(params, setting.as_ref(), row, halves, verdict);
    if params.all {
        let results: Vec<_> = rows.iter().map(|row| object(Some(row))).collect();
        serde_json::json!({ "ok": verdict.is_ok(), "results": results, "verdict": verdict })
    } else {
        object(rows.first())
    }
}

/// Prints what came out.
fn show(args: &PerfArgs, params: &Params, outcome: &Outcome) -> std::io::Result<()> {
    let Outcome { rows, setting, halves, verdict, .. } = outcome;
    if args.json {
        print(&format!("{}\n", result(params, outcome)))?;
        // Whoever reads the object on stdout may not be whoever looks at the terminal.
        if !verdict.is_ok() {
            say(verdict);
        }
        return Ok(());
    }
    if let Some(setting) = setting {
        print(&report::ending(rows, setting, halves, verdict))?;
    }
    Ok(())
}
