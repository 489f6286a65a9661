//! What the two ends of a control channel tell each other, and its bytes on a socket.
//!
//! A message is a length of four bytes, big-endian, a code of one, and a body; the length counts code and body.

use std::borrow::Cow;
use std::io::{self, Read};

use pmd_ledger::recovery;

/// Longest message, bytes: a hello with all its private data fits many times.
const MAX_MESSAGE: usize = 64 * 1024;
/// Bytes before the code.
const LENGTH: usize = 4;

/// What one end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// As bytes on a socket.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where it is longer than any peer takes.
    pub(super) fn frame(&self) -> io::Result<Vec<u8>> {
        let body = self.body();
        let len = body.len() + 1;
        if len > MAX_MESSAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok([&len.to_be_bytes()[..], &[self.code()], &*body].concat())
    }

    /// How many bytes the message has that begins with `bytes`, as far as they tell: its length first.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: they begin no message.
    pub(super) fn wanted(bytes: &[u8]) -> io::Result<usize> {
        let Some(len) = bytes.first_chunk::<LENGTH>() else { return Ok(LENGTH) };
        match u32::from_be_bytes(*len) as usize {
            len @ 1..=MAX_MESSAGE => Ok(LENGTH + len),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// A whole message from its bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: they are none.
    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let (code, body) =
            bytes.get(LENGTH..).and_then(<[u8]>::split_first).ok_or(io::ErrorKind::InvalidData)?;
        Self::from_parts(*code, body.to_vec()).ok_or_else(|| io::ErrorKind::InvalidData.into())
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

/// The next message of a socket that waits.
///
/// # Errors
/// As `read(2)`, and [`io::ErrorKind::InvalidData`] where what comes is no message.
pub(super) fn read_message(stream: &mut impl Read) -> io::Result<Message> {
    let mut bytes = Vec::new();
    loop {
        let wanted = Message::wanted(&bytes)?;
        let have = bytes.len();
        if wanted == have {
            return Message::parse(&bytes);
        }
        bytes.resize(wanted, 0);
        stream.read_exact(&mut bytes[have..])?;
    }
}
