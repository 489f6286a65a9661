//! What one end asks of the other once something is wrong.
//!
//! A status says that something failed, and hardly ever why: the other end's counters and attributes do. Each end tells its
//! own over the control channel, which lives beside the connection; what answers there, and what does not, is evidence
//! too. Waiting is bounded by [`ANSWER_WAIT`], whatever the other end does.

use std::time::Duration;

use pmd_observe::why::{End, Peer};

use super::channel::Channel;
use super::message::Message;

/// How long the other end is waited for. One that only stood still for a moment answers within it.
pub const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How long the first word of the other end is waited for: its process answers at once where it runs at all.
const WORD_WAIT: Duration = Duration::from_millis(100);
/// How often an end answers over one channel: nobody asks so often who has a reason.
pub const ANSWERS_MAX: u32 = 8;
/// How long an end that leaves waits for the other's last words.
pub const LAST_WORDS_WAIT: Duration = Duration::from_millis(250);

/// A question to the other end, and what came of it.
#[derive(Debug)]
pub struct Inquiry {
    begun: u64,
    deadline: u64,
    lives: bool,
    on_this_host: bool,
    told: Option<Result<End, String>>,
    told_at: u64,
}

impl Inquiry {
    /// Tells the other end what this one knows of itself, and asks for the same. `now`: nanoseconds of any clock.
    pub fn begin(channel: &mut Channel, own: &End, now: u64) -> Self {
        // A peer that is gone is noticed by listening.
        drop(channel.send(&Message::Ask(encode(own))));
        Self::new(channel, now, ANSWER_WAIT)
    }

    /// Says goodbye, with what this end knows of itself: the other end's last words are for the report.
    pub fn leave(channel: &mut Channel, own: &End, now: u64) -> Self {
        farewell(channel, own);
        Self::new(channel, now, LAST_WORDS_WAIT)
    }

    fn new(channel: &Channel, now: u64, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self {
            begun: now,
            deadline: now.saturating_add(wait),
            lives: channel.is_in_process(),
            on_this_host: channel.is_on_this_host(),
            told: None,
            told_at: now,
        }
    }

    /// Takes in a message of the other end, of whatever kind.
    pub fn hear(&mut self, message: &Message, now: u64) {
        match message {
            Message::Ask(bytes) | Message::Evidence(bytes) | Message::Farewell(bytes) => {
                self.lives = true;
                self.told = Some(decode(bytes));
                self.told_at = now;
            }
            Message::Lives => self.lives = true,
            _ => {}
        }
    }

    /// Whether there is nothing more to wait for at `now`.
    pub const fn is_over(&self, now: u64) -> bool {
        self.told.is_some() || now >= self.deadline
    }

    /// Whether nothing has been heard yet of an end that was asked at most `WORD_WAIT` ago.
    pub fn awaits_word(&self, now: u64) -> bool {
        !self.lives && self.told.is_none() && now < self.word_deadline()
    }

    /// When the first word of the other end is waited for no longer.
    pub fn word_deadline(&self) -> u64 {
        let wait = u64::try_from(WORD_WAIT.as_nanos()).unwrap_or(u64::MAX);
        self.begun.saturating_add(wait)
    }

    /// When it is over at the latest.
    pub const fn deadline(&self) -> u64 {
        self.deadline
    }

    /// What is known of the other end's process, while its channel is open.
    pub const fn peer(&self) -> Peer {
        match (self.lives, self.on_this_host) {
            (true, _) => Peer::Alive,
            (false, true) => Peer::Stopped,
            (false, false) => Peer::Silent,
        }
    }

    /// What the other end told of itself.
    pub fn told(&self) -> Option<&End> {
        self.told.as_ref()?.as_ref().ok()
    }

    /// How long after the question that was, nanoseconds.
    pub fn told_after(&self) -> Option<u64> {
        self.told().map(|_| self.told_at.saturating_sub(self.begun))
    }

    /// Why what it told is no evidence.
    pub fn nonsense(&self) -> Option<&str> {
        self.told.as_ref()?.as_ref().err().map(String::as_str)
    }
}

/// Says goodbye, with what this end knows of itself.
pub fn farewell(channel: &mut Channel, own: &End) {
    // A peer that is gone already needs no goodbye.
    drop(channel.send(&Message::Farewell(encode(own))));
}

/// Answers a question or a goodbye.
pub fn tell(channel: &mut Channel, own: &End) {
    // A peer that is gone is noticed by listening.
    drop(channel.send(&Message::Evidence(encode(own))));
}

/// An end as bytes: JSON, as reports show it.
fn encode(end: &End) -> Vec<u8> {
    // Texts, numbers and maps by name: nothing of it has no JSON.
    serde_json::to_vec(end).unwrap_or_default()
}

/// An end from a peer's bytes, [tamed](End::tamed).
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<End, String> {
    serde_json::from_slice::<End>(bytes)
        .map(End::tamed)
        .map_err(|error| format!("what the peer told of itself makes no sense: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::channel_pair;

    fn end() -> End {
        End {
            name: "target".into(),
            after: [("duplicate_request", 7)].into_iter().collect(),
            gap_ns: Some(5),
            ..End::default()
        }
    }

    #[test]
    fn an_answer_ends_it() {
        let (mut here, mut there) = channel_pair("client", "target");
        let mut inquiry = Inquiry::begin(&mut here, &End::default(), 100);
        let Some(Message::Ask(asked)) = there.poll() else { panic!("nothing was asked") };
        assert_eq!(decode(&asked), Ok(End::default()));
        assert!(!inquiry.is_over(1_000_000_099) && inquiry.is_over(1_000_000_100));
        tell(&mut there, &end());
        inquiry.hear(&here.poll().unwrap(), 130);
        assert!(inquiry.is_over(130));
        assert_eq!((inquiry.told(), inquiry.peer()), (Some(&end()), Peer::Alive));
        assert_eq!(inquiry.told_after(), Some(30));
    }

    #[test]
    fn the_first_word_is_waited_for_for_a_tenth_of_a_second() {
        let (mut here, _there) = channel_pair("client", "target");
        let mut inquiry = Inquiry::begin(&mut here, &End::default(), 5);
        assert!(!inquiry.awaits_word(5), "a node of this process has no need to say that it lives");
        inquiry.lives = false;
        let end = inquiry.word_deadline();
        assert_eq!(end, 100_000_005);
        assert!(inquiry.awaits_word(end - 1) && !inquiry.awaits_word(end));
        inquiry.hear(&Message::Lives, 6);
        assert!(!inquiry.awaits_word(6));
    }

    #[test]
    fn whoever_asks_at_the_same_time_has_told_as_well() {
        let (mut here, mut there) = channel_pair("client", "target");
        let mut inquiry = Inquiry::begin(&mut here, &End::default(), 0);
        Inquiry::begin(&mut there, &end(), 0);
        inquiry.hear(&here.poll().unwrap(), 0);
        assert_eq!(inquiry.told(), Some(&end()));
    }

    #[test]
    fn what_makes_no_sense_ends_it_and_is_named() {
        let (mut here, _there) = channel_pair("client", "target");
        for garbage in [&b""[..], b"\xff\xfe", b"[1, 2", b"{\"gap_ns\": \"long\"}", b"7"] {
            let mut inquiry = Inquiry::begin(&mut here, &End::default(), 0);
            inquiry.hear(&Message::Evidence(garbage.to_vec()), 0);
            assert!(inquiry.is_over(0));
            assert_eq!(inquiry.told(), None);
            let why = inquiry.nonsense().expect("a reason");
            assert!(why.starts_with("what the peer told of itself makes no sense: "), "{why}");
        }
    }
}
