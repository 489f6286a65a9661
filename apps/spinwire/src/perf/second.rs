//! The other end: a second process of this machine, another terminal, or another lcore of this process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::connect::{CallError, Channel, Guard, ListenError, Listener, Psk, connect, listen};

use super::args::PerfArgs;
use super::dialogue::{Dialogue, Word};
use super::limits::{CONNECT, JOIN, LOOK, STRANGERS_LOGGED};
use super::refusal::Refusal;

/// A second process of this measurement.
#[derive(Debug)]
pub(super) struct Second {
    child: Child,
}

impl Second {
    /// Starts it and waits until it has called.
    ///
    /// # Errors
    /// When it cannot be started, or does not call.
    pub(super) fn start(args: &PerfArgs) -> Result<(Self, Dialogue), Refusal> {
        let cannot = |error: std::io::Error| {
            Refusal::local(format!("cannot start the second process: {error}"))
        };
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listener = listen(at, guard(args)?).map_err(|error| {
            Refusal::local(format!("cannot wait for a second process: {error}"))
        })?;
        let secret = format!("{:016x}{:016x}", pmd_mem::os_entropy(), pmd_mem::os_entropy());
        // Where it was replaced meanwhile, what runs is still there under another name.
        let program = std::env::current_exe().ok().filter(|path| path.exists());
        let program = program.unwrap_or_else(|| "/proc/self/exe".into());
        let mut child = Command::new(program)
            .args(["perf", &args.test.to_string(), "--part", &listener.address().to_string()])
            .args(
                args.psk_file.iter().flat_map(|file| [OsStr::new("--psk-file"), file.as_os_str()]),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C reaches a whole process group, and this process passes on what is to be done.
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        // A secret on the command line would be seen by everybody.
        let told = child.stdin.take().map(|mut stdin| writeln!(stdin, "{secret}"));
        told.transpose().map_err(cannot)?;
        let mut second = Self { child };
        match second.called(&mut listener, &secret) {
            Ok(dialogue) => Ok((second, dialogue)),
            Err(refusal) => {
                second.end();
                Err(refusal)
            }
        }
    }

    /// Its first word, which proves who it is.
    fn called(&mut self, listener: &mut Listener, secret: &str) -> Result<Dialogue, Refusal> {
        let deadline = Instant::now() + CONNECT;
        loop {
            if let Some(channel) = listener.poll() {
                let mut dialogue = Dialogue::new(channel);
                dialogue.peer = format!("the second process ({})", self.child.id());
                match dialogue.first() {
                    Ok(Word::Part { secret: said }) if said == secret => return Ok(dialogue),
                    // A stranger: the real one still comes.
                    Ok(_) | Err(_) => {}
                }
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                let gone = format!("the second process ({}) is gone", self.child.id());
                let verdict = Verdict::new(Code::PeerDead, Owner::Remote, gone);
                return Err(Refusal::failed(verdict.because(status.to_string())));
            }
            if Instant::now() > deadline {
                return Err(Refusal::nobody("the second process does not call"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it has ended, bounded.
    pub(super) fn end(&mut self) {
        let deadline = Instant::now() + JOIN;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            tracing::warn!("the second process does not end: {error}");
        }
    }
}

/// Calls whoever started this process.
///
/// # Errors
/// When it is gone.
pub(super) fn call(parent: SocketAddr, guard: Guard) -> Result<Dialogue, Refusal> {
    let mut secret = String::new();
    BufReader::new(std::io::stdin())
        .read_line(&mut secret)
        .map_err(|error| Refusal::local(format!("no secret from the first process: {error}")))?;
    let mut dialogue = Dialogue::new(dial(parent, guard)?);
    dialogue.peer = "the first process".to_owned();
    dialogue.say(&Word::Part { secret: secret.trim().to_owned() });
    Ok(dialogue)
}

/// How the control channel is protected, as the command line says.
///
/// # Errors
/// When the file of the key is none.
pub(super) fn guard(args: &PerfArgs) -> Result<Guard, Refusal> {
    match &args.psk_file {
        Some(file) => Psk::read(file)
            .map(Guard::Sealed)
            .map_err(|error| Refusal::usage(format!("--psk-file: {error}"))),
        None if args.plaintext => Ok(Guard::Plaintext),
        None => Ok(Guard::Loopback),
    }
}

/// Calls a listening end.
///
/// # Errors
/// When nobody listens there, or it has another key.
pub(super) fn dial(to: SocketAddr, guard: Guard) -> Result<Channel, Refusal> {
    let unreached = |error: CallError| match error {
        CallError::Io(error) => Refusal::nobody(format!(
            "nobody answers at {to}: {error}; start the other end first: `spinwire perf TEST --listen {to}`"
        )),
        CallError::Unproven(_) | CallError::Refused(_) => {
            Refusal::nobody(format!("cannot connect to {to}: {error}"))
        }
        error => Refusal::usage(format!("cannot connect to {to}: {error}")),
    };
    let mut connecting = connect(to, CONNECT, guard).map_err(unreached)?;
    loop {
        if let Some(channel) = connecting.poll() {
            return channel.map_err(unreached);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A port at which clients call.
#[derive(Debug)]
pub(super) struct Door {
    listener: Listener,
    refused: u64,
}

impl Door {
    /// Opens it.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub(super) fn open(at: SocketAddr, guard: Guard) -> Result<Self, Refusal> {
        let listener = listen(at, guard).map_err(|error| {
            let help = match error {
                ListenError::Io(_) => "; choose another port with -p",
                ListenError::Exposed(_) => "",
            };
            Refusal::usage(format!("cannot listen at {at}: {error}{help}"))
        })?;
        pmd_graph::app::say(format_args!("listening at {}", listener.address()));
        Ok(Self { listener, refused: 0 })
    }

    /// Waits for a client that says what a client says first. Whoever says something else hears why it is refused, is written
    /// about, and is no client: the next one is waited for.
    ///
    /// # Errors
    /// When somebody wants an end.
    pub(super) fn wait<T>(
        &mut self,
        interrupt: &AtomicBool,
        mut admit: impl FnMut(&mut Dialogue) -> Result<T, Refusal>,
    ) -> Result<(Dialogue, T), Refusal> {
        loop {
            if let Some(channel) = self.listener.poll() {
                let mut dialogue = Dialogue::new(channel);
                match admit(&mut dialogue) {
                    Ok(admitted) => return Ok((dialogue, admitted)),
                    Err(refusal) => self.refused(&dialogue.peer, &refusal),
                }
                continue;
            }
            if interrupt.load(Ordering::Relaxed) {
                let strangers = self.refused + self.listener.turned_away();
                return Err(Refusal::nobody(match strangers {
                    0 => "ended before a client came".to_owned(),
                    count => format!("ended before a client came; {count} others called"),
                }));
            }
            thread::sleep(LOOK / 10);
        }
    }

    /// Somebody who called is no client after all: the next one is waited for. The first are written about one by one.
    pub(super) fn refused(&mut self, who: &str, why: &Refusal) {
        self.refused += 1;
        let count = self.refused;
        if count <= STRANGERS_LOGGED || count.is_power_of_two() {
            let why = &why.verdict.summary;
            tracing::warn!("refused {who}: {why}; {count} so far, still waiting for a client");
        }
    }
}

/// An address with or without a port.
///
/// # Errors
/// When it is neither.
pub(super) fn address(args: &PerfArgs, text: &str) -> Result<SocketAddr, Refusal> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let ip = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    ip.map(|ip| SocketAddr::new(ip, args.port)).map_err(|_| {
        Refusal::usage(format!(
            "`{text}` is no address: write 127.0.0.1:{} or 127.0.0.1",
            args.port
        ))
    })
}
