//! Who has called and not said anything yet.
//!
//! Anybody can call a port. A caller is a stranger until its first message is there, and whole: strangers cost a socket each
//! and no thread, all of them are heard at once, and there is room for a number of them. Where that runs out, whoever has
//! been silent for longest leaves, of the source that has most of them, so that no source crowds out another.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{Frame, SEAL_VERSION, Unsealed};
use super::message::Message;
use super::psk::Psk;
use super::seal::{Seal, answer};

/// Strangers at once.
pub(super) const STRANGERS_MAX: usize = 256;
/// How long a stranger may take to say its first message.
pub(super) const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long it is left alone where there is no room for others: an honest caller says at once what it wants.
pub(super) const UNDISTURBED: Duration = Duration::from_millis(300);

/// Strangers that left without having become a caller, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnedAway {
    /// Sent something else than a first message, or hung up amid it.
    pub(super) foreign: u64,
    /// Said nothing, or not enough, for as long as a stranger may.
    pub(super) silent: u64,
    /// Made room for others.
    pub(super) crowded: u64,
    /// Did not prove that they have the key of this side, or have one where this side has none.
    pub(super) unproven: u64,
}

impl TurnedAway {
    pub(super) const fn total(&self) -> u64 {
        self.foreign + self.silent + self.crowded + self.unproven
    }
}

/// A connection that has not said anything yet.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    came: Instant,
    bytes: Vec<u8>,
    /// It asked for a sealed channel and was answered.
    seal: Option<Seal>,
}

/// What has become of a stranger.
#[derive(Debug)]
pub(super) enum Heard {
    /// There is more to come.
    Waits,
    /// It has said what callers say first.
    Greeted(Message, Option<Seal>),
    /// It left in peace, as who dialled and changed its mind.
    Left,
    /// It is no caller.
    Foreign,
    /// Either it has no key, or another one, or plays a recording.
    Unproven(Cow<'static, str>),
}

/// What is said in the clear to who has no key.
const KEY_WANTED: &str = "invalid-request: this side wants a sealed channel: give both ends the same key file (psk_file, --psk-file)";

impl Stranger {
    pub(super) const fn new(stream: TcpStream, from: SocketAddr, came: Instant) -> Self {
        Self { stream, from, came, bytes: Vec::new(), seal: None }
    }

    /// When it has been silent for too long.
    pub(super) fn deadline(&self) -> Instant {
        self.came + FIRST_WORD
    }

    /// Reads what has come, up to the end of its first message: what follows is the caller's. `key`: what seals the channel.
    pub(super) fn hear(&mut self, key: Option<&Psk>) -> Heard {
        loop {
            let Ok(wanted) = Frame::wanted(&self.bytes) else { return Heard::Foreign };
            let have = self.bytes.len();
            if have == wanted {
                let frame = Frame::parse(&self.bytes);
                self.bytes.clear();
                match frame.map_or(Heard::Foreign, |frame| self.take(frame, key)) {
                    Heard::Waits => continue,
                    became => return became,
                }
            }
            self.bytes.resize(wanted, 0);
            let read = (&self.stream).read(&mut self.bytes[have..]);
            self.bytes.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) if have == 0 => return Heard::Left,
                Ok(0) => return Heard::Foreign,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Waits,
                Err(_) => return Heard::Foreign,
            }
        }
    }

    fn take(&mut self, frame: Frame, key: Option<&Psk>) -> Heard {
        match (frame, key, self.seal.take()) {
            (Frame::Clear(message), None, _) => greeted(message, None),
            (
                Frame::Clear(Message::Bye | Message::Farewell(_) | Message::Refused(_)),
                Some(_),
                None,
            ) => Heard::Left,
            (Frame::Clear(Message::Hello(_)), Some(_), None) => {
                self.say(&Frame::Clear(Message::Refused(KEY_WANTED.into())));
                Heard::Unproven("has no key and speaks in the clear".into())
            }
            (Frame::Ask { .. }, None, _) => {
                self.say(&Frame::Unsealed(Unsealed::NoKey));
                Heard::Unproven("wants a sealed channel, and this side has no key".into())
            }
            (Frame::Ask { version, .. }, Some(_), None) if version != SEAL_VERSION => {
                self.say(&Frame::Unsealed(Unsealed::Version(SEAL_VERSION)));
                let why = format!("seals in version {version}, this side in {SEAL_VERSION}");
                Heard::Unproven(why.into())
            }
            (Frame::Ask { bytes, .. }, Some(key), None) => match answer(key, &bytes) {
                Ok((seal, bytes)) => {
                    self.seal = Some(seal);
                    // One that cannot be told hangs up, or is silent.
                    self.say(&Frame::Answer(bytes));
                    Heard::Waits
                }
                Err(_) => {
                    self.say(&Frame::Unsealed(Unsealed::OtherKey));
                    Heard::Unproven("has another key".into())
                }
            },
            (Frame::Sealed(bytes), Some(_), Some(mut seal)) => match seal.opener.open(&bytes) {
                Ok(plain) => match Message::from_plain(&plain) {
                    Some(message) => greeted(message, Some(seal)),
                    None => Heard::Foreign,
                },
                Err(_) => Heard::Unproven("plays a recording, or was disturbed on its way".into()),
            },
            _ => Heard::Foreign,
        }
    }

    /// Whether it was said. The socket of a stranger is empty: what does not fit was never read.
    fn say(&self, frame: &Frame) {
        let said = frame.encode().and_then(|bytes| (&self.stream).write_all(&bytes));
        if let Err(error) = said {
            tracing::debug!("{}: cannot answer: {error}", self.from);
        }
    }
}

fn greeted(message: Message, seal: Option<Seal>) -> Heard {
    match message {
        Message::Hello(_) => Heard::Greeted(message, seal),
        Message::Bye | Message::Farewell(_) | Message::Refused(_) => Heard::Left,
        _ => Heard::Foreign,
    }
}

/// Which of `strangers` makes room at `now`: of those that have been there for longer than [`UNDISTURBED`], the oldest of the
/// source that has most.
pub(super) fn who_yields(strangers: &[Stranger], now: Instant) -> Option<usize> {
    oldest_of_most(strangers.iter().map(|stranger| {
        let age = now.saturating_duration_since(stranger.came);
        (stranger.from.ip(), (age >= UNDISTURBED).then_some(stranger.came))
    }))
}

/// Of those that wait, each from a source, and since when it may be sent away if it may: the one that has been there for
/// longest, of the source that has most of them.
pub fn oldest_of_most<S, T>(waiting: impl IntoIterator<Item = (S, Option<T>)>) -> Option<usize>
where
    S: std::hash::Hash + Eq,
    T: Ord,
{
    let mut sources: HashMap<S, (usize, Option<(T, usize)>)> = HashMap::new();
    for (index, (source, since)) in waiting.into_iter().enumerate() {
        let (count, oldest) = sources.entry(source).or_default();
        *count += 1;
        if let Some(since) = since
            && oldest.as_ref().is_none_or(|(first, _)| since < *first)
        {
            *oldest = Some((since, index));
        }
    }
    let can_yield = sources.into_values().filter_map(|(count, oldest)| Some((count, oldest?)));
    let most = can_yield
        .max_by(|(a, (since_a, _)), (b, (since_b, _))| a.cmp(b).then_with(|| since_b.cmp(since_a)));
    most.map(|(_, (_, index))| index)
}

/// When the first of `strangers` may be sent away for others.
pub(super) fn first_yields(strangers: &[Stranger]) -> Option<Instant> {
    strangers.iter().map(|stranger| stranger.came + UNDISTURBED).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_source_with_most_makes_room() {
        let yields = |waiting: &[(&str, Option<u32>)]| oldest_of_most(waiting.iter().copied());
        assert_eq!(yields(&[]), None);
        assert_eq!(yields(&[("a", None), ("a", None)]), None, "nobody has been there for long");
        let crowd = [("b", Some(1)), ("a", Some(9)), ("a", Some(5)), ("a", None), ("c", Some(0))];
        assert_eq!(yields(&crowd), Some(2));
        // Where the largest crowd is new, others that have been there for long make room.
        assert_eq!(yields(&[("a", None), ("a", None), ("b", Some(3)), ("c", Some(2))]), Some(3));
    }
}
