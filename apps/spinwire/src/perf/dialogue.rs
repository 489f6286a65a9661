//! What the control threads of both ends say to each other.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pmd_graph::app::Exit;
use pmd_observe::why::End;
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::connect::{Channel, FORGED, Hello, Inquiry, Message, decode_evidence, tell};
use serde::{Deserialize, Serialize};

use super::lcore::Step;
use super::limits::{HEARTBEAT, SILENCE};
use super::params::Params;
use super::refusal::Refusal;
use super::tally::Tally;

/// How a peer is told that it was given up.
const SILENT_FOR: &str = "it has said nothing for";

/// Of the words below; another one is refused.
pub(super) const VERSION: u32 = 3;
/// Hellos in one message: it stays well below what a channel takes.
const HELLOS: usize = 256;
/// First byte of a message of words, and of one of hellos.
const WORDS: u8 = b'w';
const GREETINGS: u8 = b'h';

/// What one end tells the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The first of a second process: who started it knows the secret.
    Part { secret: String },
    /// The first of a client.
    Welcome(Box<Welcome>),
    /// The server takes part.
    Accept { pid: u32, cpus: Vec<usize> },
    /// Objects of one lcore are made or connected; this many hellos follow.
    Objects { lcore: u32, hellos: u32 },
    /// What is known of all lcores.
    Told(Box<End>),
    /// Something broke at the other end, which knows this and asks for the same.
    #[serde(skip)]
    Asked(Box<End>),
    /// A step begins.
    Begin(Step),
    /// Ready for it.
    Began,
    /// Post.
    Go,
    /// One's own part is done.
    Done,
    /// Come to an end.
    Stop,
    /// The step is over.
    Over(Box<Tally>),
    /// What is known, please.
    Report,
    /// It broke, and the command ends with this code.
    Failed { exit: u8, verdict: Verdict },
    /// Nothing new.
    Alive,
    /// Connection data of some queue pairs.
    #[serde(skip)]
    Hellos(Vec<Hello>),
}

/// What a client says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) version: u32,
    pub(super) pid: u32,
    pub(super) params: Params,
    /// For a second process, which was given nothing else.
    pub(super) place: Option<Place>,
}

/// Where a second process runs, and on what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) cpus: Vec<usize>,
    pub(super) shared: bool,
    pub(super) device: String,
    pub(super) wire: String,
    pub(super) faults: Vec<String>,
    /// Its run directory.
    pub(super) run_dir: Option<PathBuf>,
    /// The file of its record, and the limit of that.
    pub(super) record: (Option<PathBuf>, Option<u64>),
}

/// The line to the other end.
#[derive(Debug)]
pub(super) struct Dialogue {
    channel: Channel,
    /// Who is there, for messages.
    pub(super) peer: String,
    heard: Instant,
    listened: Instant,
    said: Instant,
    /// Words that came while nobody waited for any.
    kept: VecDeque<Word>,
    /// The question why it broke.
    inquiry: Option<Inquiry>,
    /// How long the peer may say nothing before it is given up.
    patience: Duration,
    began: Instant,
}

impl Dialogue {
    pub(super) fn new(channel: Channel) -> Self {
        let now = Instant::now();
        let peer = format!("the peer at {}", channel.peer());
        Self {
            channel,
            peer,
            heard: now,
            listened: now,
            said: now,
            kept: VecDeque::new(),
            inquiry: None,
            patience: SILENCE,
            began: now,
        }
    }

    /// Whether nobody on the way can read what is said.
    pub(super) fn is_sealed(&self) -> bool {
        self.channel.is_sealed()
    }

    /// The same, which gives the peer up after so much silence.
    pub(super) fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// What a caller said to be heard at all. It is there already: nobody waits for it.
    ///
    /// # Errors
    /// It is no word.
    pub(super) fn first(&mut self) -> Result<Word, Refusal> {
        match self.channel.poll() {
            Some(Message::Hello(bytes)) => self.read(&bytes),
            _ => Err(Refusal::usage(format!("{} does not say what it wants", self.peer))),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Asks why it broke, with what this end knows.
    pub(super) fn ask(&mut self, own: &End) {
        let now = self.now();
        self.inquiry = Some(Inquiry::begin(&mut self.channel, own, now));
    }

    /// The question, while its answer may still come.
    pub(super) fn waits(&self) -> bool {
        self.inquiry.as_ref().is_some_and(|inquiry| !inquiry.is_over(self.now()))
    }

    /// What came of the question.
    pub(super) fn inquiry(&self) -> Option<&Inquiry> {
        self.inquiry.as_ref()
    }

    /// Answers such a question.
    pub(super) fn tell(&mut self, own: &End) {
        tell(&mut self.channel, own);
    }

    /// Says that it broke.
    pub(super) fn broke(&mut self, refusal: &Refusal) {
        let (exit, verdict) = (refusal.exit as u8, refusal.verdict.clone());
        self.say(&Word::Failed { exit, verdict });
    }

    /// Says something. A peer that is gone is noticed by listening.
    pub(super) fn say(&mut self, word: &Word) {
        self.said = Instant::now();
        let bytes = match word {
            Word::Hellos(hellos) => {
                for part in hellos.chunks(HELLOS) {
                    let mut bytes = vec![GREETINGS];
                    for hello in part.iter().map(Hello::encode) {
                        let len = u16::try_from(hello.len()).unwrap_or(u16::MAX);
                        bytes.extend(len.to_be_bytes());
                        bytes.extend(hello);
                    }
                    drop(self.channel.send(&Message::Hello(bytes)));
                }
                return;
            }
            word => serde_json::to_vec(word),
        };
        let mut bytes = bytes.unwrap_or_default();
        bytes.insert(0, WORDS);
        drop(self.channel.send(&Message::Hello(bytes)));
    }

    /// The next word, if one has come.
    ///
    /// # Errors
    /// The peer is gone, broke, or says nothing any more.
    pub(super) fn hear(&mut self) -> Result<Option<Word>, Refusal> {
        if let Some(word) = self.kept.pop_front() {
            return Ok(Some(word));
        }
        self.listen()
    }

    /// Notices a peer that is gone, and keeps what it says for later.
    ///
    /// # Errors
    /// As [`Dialogue::hear`].
    pub(super) fn keep(&mut self) -> Result<(), Refusal> {
        if let Some(word) = self.listen()? {
            self.kept.push_back(word);
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<Option<Word>, Refusal> {
        if self.said.elapsed() > HEARTBEAT {
            self.say(&Word::Alive);
        }
        // While this end did not listen, the peer may have said anything.
        let unheard = std::mem::replace(&mut self.listened, Instant::now());
        let deaf = self.listened.duration_since(unheard);
        if deaf > HEARTBEAT {
            self.heard += deaf;
        }
        let Some(message) = self.channel.poll() else {
            if self.heard.elapsed() > self.patience {
                let waited = self.patience.as_secs();
                let refusal = self.dead(&format!("{SILENT_FOR} {waited} s"));
                // Who was stopped, and goes on, must not take this end for dead.
                self.broke(&refusal);
                return Err(refusal);
            }
            return Ok(None);
        };
        self.heard = Instant::now();
        match message {
            Message::Hello(bytes) => match self.read(&bytes)? {
                Word::Failed { exit, verdict } => Err(told(exit, verdict)),
                Word::Alive => Ok(None),
                word => Ok(Some(word)),
            },
            Message::Refused(reason) => {
                Err(Refusal::usage(format!("{} refuses: {reason}", self.peer)))
            }
            Message::Lost(how) if how == FORGED => Err(self.forged()),
            Message::Lost(how) => Err(self.dead(&how)),
            Message::Bye | Message::Farewell(_) => Err(self.dead("it has left")),
            message @ (Message::Ask(_) | Message::Evidence(_) | Message::Lives) => {
                let now = self.now();
                if let Some(inquiry) = &mut self.inquiry {
                    inquiry.hear(&message, now);
                }
                let Message::Ask(bytes) = message else { return Ok(None) };
                // What makes no sense is named where a verdict is made; the question is one.
                Ok(Some(Word::Asked(Box::new(decode_evidence(&bytes).unwrap_or_default()))))
            }
            Message::Ready | Message::Recovery(..) => Ok(None),
        }
    }

    /// The next word, waiting for it.
    ///
    /// # Errors
    /// As [`Dialogue::hear`], and when it does not come in time.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Word, Refusal> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(word) = self.hear()? {
                return Ok(word);
            }
            if Instant::now() > deadline {
                return Err(self.dead(&format!("it did not answer within {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Refuses to take part.
    pub(super) fn refuse(&mut self, reason: &str) {
        drop(self.channel.send(&Message::Refused(reason.to_owned())));
    }

    /// Says that all is done.
    pub(super) fn leave(&mut self) {
        drop(self.channel.send(&Message::Bye));
    }

    fn read(&self, bytes: &[u8]) -> Result<Word, Refusal> {
        let read = match bytes.split_first() {
            Some((&WORDS, json)) => serde_json::from_slice(json).ok(),
            Some((&GREETINGS, rest)) => hellos(rest).map(Word::Hellos),
            _ => None,
        };
        read.ok_or_else(|| {
            Refusal::usage(format!(
                "{} is of another version, or another program: update the older side",
                self.peer
            ))
        })
    }

    /// Somebody on the way changed what was said. What the peer says of that is no better.
    fn forged(&self) -> Refusal {
        let summary = format!("what {} says was tampered with on its way", self.peer);
        let verdict = Verdict::new(Code::DataMismatch, Owner::Fabric, summary);
        Refusal::failed(verdict.because(format!("its channel is sealed: {FORGED}")))
    }

    fn dead(&self, how: &str) -> Refusal {
        let verdict = Verdict::new(Code::PeerDead, Owner::Remote, format!("{} is gone", self.peer));
        Refusal::failed(verdict.because(how))
    }
}

/// What broke at the other end. What is local there is remote here.
fn told(exit: u8, verdict: Verdict) -> Refusal {
    if verdict.code == Code::PeerDead
        && let Some(silence) = verdict.evidence.iter().find(|fact| fact.starts_with(SILENT_FOR))
    {
        // It means this end, which lives.
        let summary = "this end said nothing for so long that its peer gave it up";
        let verdict = Verdict::new(Code::ResponderSlow, Owner::Local, summary);
        return Refusal::failed(verdict.because(format!("the peer says: {silence}")));
    }
    let owner = match verdict.owner {
        Owner::Local => Owner::Remote,
        Owner::Remote => Owner::Local,
        owner => owner,
    };
    let exits = [Exit::Usage, Exit::Unfit].into_iter();
    let exit = exits.into_iter().find(|known| *known as u8 == exit).unwrap_or(Exit::Failed);
    let summary = format!("the peer says: {}", verdict.summary);
    Refusal { exit, verdict: Verdict { owner, summary, ..verdict } }
}

fn hellos(mut bytes: &[u8]) -> Option<Vec<Hello>> {
    let mut hellos = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let (hello, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        hellos.push(Hello::decode(hello).ok()?);
        bytes = rest;
    }
    bytes.is_empty().then_some(hellos)
}

#[cfg(test)]
mod tests {
    use pmd_verbs::connect::channel_pair;

    use super::*;

    /// S3-10: who was stopped for so long that its peer gave it up learns that, and does not take the peer for dead.
    #[test]
    fn who_was_given_up_is_told_so() {
        let (here, there) = channel_pair("client", "server");
        let (mut here, mut there) = (Dialogue::new(here), Dialogue::new(there));
        here.patience = Duration::ZERO;
        let given_up = loop {
            match here.hear() {
                Err(refusal) => break refusal.verdict,
                Ok(word) => assert!(word.is_none()),
            }
        };
        assert_eq!((given_up.code, given_up.owner), (Code::PeerDead, Owner::Remote));
        let told = there.hear().unwrap_err().verdict;
        assert_eq!((told.code, told.owner), (Code::ResponderSlow, Owner::Local));
        assert!(told.evidence[0].contains("it has said nothing for 0 s"), "{told}");
    }

    #[test]
    fn a_channel_that_was_tampered_with_names_its_seal() {
        let (here, _there) = channel_pair("client", "server");
        let verdict = Dialogue::new(here).forged().verdict;
        assert_eq!((verdict.code, verdict.owner), (Code::DataMismatch, Owner::Fabric));
        assert!(verdict.evidence[0].contains("sealed"), "{verdict}");
    }
}
