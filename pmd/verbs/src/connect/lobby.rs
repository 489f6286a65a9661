//! Who has called and not said anything yet.
//!
//! Anybody can call a port. A caller is a stranger until its first message is there, and whole: strangers cost a socket each
//! and no thread, all of them are heard at once, and there is room for a number of them. Where that runs out, whoever has
//! been silent for longest leaves, of the source that has most of them, so that no source crowds out another.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::message::Message;

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
}

impl TurnedAway {
    pub(super) const fn total(&self) -> u64 {
        self.foreign + self.silent + self.crowded
    }
}

/// A connection that has not said anything yet.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    came: Instant,
    bytes: Vec<u8>,
}

/// What has become of a stranger that was looked at.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing yet.
    Waits,
    /// It said what callers say first.
    Greeted(Message),
    /// It left in peace, as who dialled and changed its mind.
    Left,
    /// It is no caller.
    Foreign,
}

impl Stranger {
    pub(super) const fn new(stream: TcpStream, from: SocketAddr, came: Instant) -> Self {
        Self { stream, from, came, bytes: Vec::new() }
    }

    /// When it has been silent for too long.
    pub(super) fn deadline(&self) -> Instant {
        self.came + FIRST_WORD
    }

    /// Reads what has come, up to the end of its first message: what follows is the caller's.
    pub(super) fn hear(&mut self) -> Heard {
        loop {
            let Ok(wanted) = Message::wanted(&self.bytes) else { return Heard::Foreign };
            let have = self.bytes.len();
            if have == wanted {
                return match Message::parse(&self.bytes) {
                    Ok(hello @ Message::Hello(_)) => Heard::Greeted(hello),
                    Ok(Message::Bye | Message::Farewell(_) | Message::Refused(_)) => Heard::Left,
                    _ => Heard::Foreign,
                };
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
