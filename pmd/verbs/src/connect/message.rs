//! What the two ends of a control channel tell each other, as a code of one byte and a body.

use std::borrow::Cow;
use std::fmt;

use pmd_ledger::recovery;
use zeroize::Zeroizing;

/// What one end tells the other.
#[derive(Clone, PartialEq, Eq)]
pub enum Message {
    /// Connection data, as [`super::Hello`] encodes it.
    Hello(Vec<u8>),
    /// The connecting side is ready to be sent to.
    Ready,
    /// This side does not connect, and why.
    Refused(String),
    /// This side is done and leaves in peace.
    Bye,
    /// The other end is gone without a word. Never sent, only received.
    Lost(String),
    /// Something is wrong: this is what this side knows of itself, as [`super::Inquiry`] encodes it, and the other side is
    /// asked for the same.
    Ask(Vec<u8>),
    /// What this side knows of itself, unasked or as the answer.
    Evidence(Vec<u8>),
    /// As [`Message::Bye`], with what this side knows of itself. The other side answers with the same of its own, for who wants
    /// it.
    Farewell(Vec<u8>),
    /// The process lives, whatever its lcores do: a channel's own thread answers so when it is asked.
    Lives,
    /// A step of bringing the connection back; with [`recovery::Message::Hello`], how to reach the queue pair.
    Recovery(recovery::Message, Vec<u8>),
}

/// Code of the first recovery message; the others follow.
const RECOVERY: u8 = 16;

fn recovery_parts(message: recovery::Message) -> (u8, u64) {
    use recovery::Message::{Behind, Failed, Hello, Ready};
    match message {
        Failed { generation } => (RECOVERY, generation),
        Hello { generation } => (RECOVERY + 1, generation),
        Ready { generation } => (RECOVERY + 2, generation),
        Behind { generation } => (RECOVERY + 3, generation),
    }
}

fn recovery_from(code: u8, body: &[u8]) -> Option<Message> {
    use recovery::Message::{Behind, Failed, Hello, Ready};
    let (generation, rest) = body.split_first_chunk()?;
    let generation = u64::from_be_bytes(*generation);
    let message = match code {
        16 => Failed { generation },
        17 => Hello { generation },
        18 => Ready { generation },
        19 => Behind { generation },
        _ => return None,
    };
    let fits = matches!(message, Hello { .. }) != rest.is_empty();
    fits.then(|| Message::Recovery(message, rest.to_vec()))
}

impl Message {
    fn code(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Ready => 2,
            Self::Refused(_) => 3,
            Self::Bye => 4,
            Self::Lost(_) => 5,
            Self::Ask(_) => 6,
            Self::Evidence(_) => 7,
            Self::Lives => 8,
            Self::Recovery(message, _) => recovery_parts(*message).0,
            Self::Farewell(_) => 9,
        }
    }

    fn body(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Hello(bytes)
            | Self::Ask(bytes)
            | Self::Evidence(bytes)
            | Self::Farewell(bytes) => bytes.into(),
            Self::Refused(text) | Self::Lost(text) => text.as_bytes().into(),
            Self::Ready | Self::Bye | Self::Lives => Cow::default(),
            Self::Recovery(message, hello) => {
                let (_, generation) = recovery_parts(*message);
                [&generation.to_be_bytes()[..], hello].concat().into()
            }
        }
    }

    /// As code and body; wiped when dropped.
    pub(super) fn plain(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([&[self.code()], &*self.body()].concat())
    }

    /// From code and body.
    pub(super) fn from_plain(plain: &[u8]) -> Option<Self> {
        let (code, body) = plain.split_first()?;
        Self::from_parts(*code, body.to_vec())
    }

    fn from_parts(code: u8, body: Vec<u8>) -> Option<Self> {
        let text = |body: Vec<u8>| {
            String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).collect()
        };
        Some(match code {
            1 => Self::Hello(body),
            2 if body.is_empty() => Self::Ready,
            3 => Self::Refused(text(body)),
            4 if body.is_empty() => Self::Bye,
            6 => Self::Ask(body),
            7 => Self::Evidence(body),
            8 if body.is_empty() => Self::Lives,
            9 => Self::Farewell(body),
            RECOVERY.. => return recovery_from(code, &body),
            _ => return None,
        })
    }
}

impl fmt::Debug for Message {
    /// Connection data opens memory to whoever has it: only its length is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = |name: &str, len: usize| write!(f, "{name}({len} bytes)");
        match self {
            Self::Hello(hello) => bytes("Hello", hello.len()),
            Self::Ask(end) => bytes("Ask", end.len()),
            Self::Evidence(end) => bytes("Evidence", end.len()),
            Self::Farewell(end) => bytes("Farewell", end.len()),
            Self::Ready => f.write_str("Ready"),
            Self::Bye => f.write_str("Bye"),
            Self::Lives => f.write_str("Lives"),
            Self::Refused(text) => write!(f, "Refused({text:?})"),
            Self::Lost(text) => write!(f, "Lost({text:?})"),
            Self::Recovery(message, hello) => {
                write!(f, "Recovery({message:?}, {} bytes)", hello.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0-43.
    #[test]
    fn s0_43_connection_data_is_never_shown() {
        let secret = b"rkey".to_vec();
        let recovery = recovery::Message::Hello { generation: 7 };
        for message in [
            Message::Hello(secret.clone()),
            Message::Farewell(secret.clone()),
            Message::Recovery(recovery, secret.clone()),
        ] {
            let shown = format!("{message:?}");
            assert!(!shown.contains("114") && !shown.contains("rkey"), "{shown}");
            assert!(shown.contains("4 bytes"), "{shown}");
        }
    }
}
