//! How the ends of a control channel stand on a socket: messages in the clear, or what seals them.
//!
//! A frame is a length of four bytes, big-endian, a code of one, and a body; the length counts code and body. A message in the
//! clear is code and body of its own; sealed, both are inside one frame of another code. The codes of sealing are not those of
//! messages, so that each side notices with the first frame what the other one does.

use std::io::{self, Read};

use super::message::Message;
use super::seal::{SEALED_MAX, TAG};

/// Longest message, code and body: it can be sealed.
const MESSAGE_MAX: usize = SEALED_MAX - TAG;
/// Longest frame, code and body.
const FRAME_MAX: usize = SEALED_MAX + 1;
/// Bytes before the code.
const LENGTH: usize = 4;
/// How connections are sealed; another version is refused.
pub(super) const SEAL_VERSION: u8 = 1;

const ASK: u8 = 32;
const ANSWER: u8 = 33;
const UNSEALED: u8 = 34;
const SEALED: u8 = 35;

/// What stands on a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message that anybody can read.
    Clear(Message),
    /// The connecting side wants to seal the channel.
    Ask {
        /// How.
        version: u8,
        /// As [`super::SealAsk::begin`] gave it.
        bytes: Vec<u8>,
    },
    /// The accepting side does, too: as [`super::answer`] gave it.
    Answer(Vec<u8>),
    /// The accepting side does not, and why.
    Unsealed(Unsealed),
    /// A message that was sealed.
    Sealed(Vec<u8>),
}

/// Why a side seals no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealed {
    /// It has no key.
    NoKey,
    /// It has another key.
    OtherKey,
    /// It seals in this version.
    Version(u8),
}

impl Frame {
    /// As bytes on a socket.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where it is longer than any peer takes.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Clear(message) => framed(&message.plain(), &[]),
            Self::Ask { version, bytes } => framed(&[ASK, *version], bytes),
            Self::Answer(bytes) => framed(&[ANSWER], bytes),
            Self::Unsealed(Unsealed::NoKey) => framed(&[UNSEALED, 1], &[]),
            Self::Unsealed(Unsealed::OtherKey) => framed(&[UNSEALED, 2], &[]),
            Self::Unsealed(Unsealed::Version(version)) => framed(&[UNSEALED, 3, *version], &[]),
            Self::Sealed(bytes) => framed(&[SEALED], bytes),
        }
    }

    /// How many bytes the frame has that begins with `bytes`, as far as they tell: its length first.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: they begin no frame.
    pub fn wanted(bytes: &[u8]) -> io::Result<usize> {
        let Some(len) = bytes.first_chunk::<LENGTH>() else { return Ok(LENGTH) };
        let len = match u32::from_be_bytes(*len) as usize {
            len @ 1..=FRAME_MAX => LENGTH + len,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let is_long = len > LENGTH + MESSAGE_MAX;
        if is_long && bytes.get(LENGTH).is_some_and(|code| *code != SEALED) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(len)
    }

    /// A whole frame from its bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: they are none.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        if Self::wanted(bytes)? != bytes.len() {
            return Err(invalid());
        }
        Ok(match &bytes[LENGTH..] {
            [ASK, version, bytes @ ..] => Self::Ask { version: *version, bytes: bytes.to_vec() },
            [ANSWER, bytes @ ..] => Self::Answer(bytes.to_vec()),
            [UNSEALED, 1] => Self::Unsealed(Unsealed::NoKey),
            [UNSEALED, 2] => Self::Unsealed(Unsealed::OtherKey),
            [UNSEALED, 3, version] => Self::Unsealed(Unsealed::Version(*version)),
            [SEALED, bytes @ ..] => Self::Sealed(bytes.to_vec()),
            plain => Self::Clear(Message::from_plain(plain).ok_or_else(invalid)?),
        })
    }
}

/// A frame of these parts.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where it is longer than any peer takes.
pub(super) fn framed(head: &[u8], body: &[u8]) -> io::Result<Vec<u8>> {
    let len = head.len() + body.len();
    let max = if head == [SEALED] { FRAME_MAX } else { MESSAGE_MAX };
    if len > max {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok([&len.to_be_bytes()[..], head, body].concat())
}

/// The next frame of a socket that waits.
///
/// # Errors
/// As `read(2)`, and [`io::ErrorKind::InvalidData`] where what comes is no frame.
pub(super) fn read_frame(stream: &mut impl Read) -> io::Result<Frame> {
    let mut bytes = Vec::new();
    loop {
        let wanted = Frame::wanted(&bytes)?;
        let have = bytes.len();
        if wanted == have {
            return Frame::parse(&bytes);
        }
        bytes.resize(wanted, 0);
        stream.read_exact(&mut bytes[have..])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back() {
        let frames = [
            Frame::Clear(Message::Hello(vec![1, 2, 3])),
            Frame::Ask { version: SEAL_VERSION, bytes: vec![7; 48] },
            Frame::Answer(vec![8; 48]),
            Frame::Unsealed(Unsealed::NoKey),
            Frame::Unsealed(Unsealed::OtherKey),
            Frame::Unsealed(Unsealed::Version(9)),
            Frame::Sealed(vec![9; SEALED_MAX]),
        ];
        for frame in frames {
            let bytes = frame.encode().unwrap();
            assert_eq!(Frame::wanted(&bytes[..LENGTH]).unwrap(), bytes.len());
            assert_eq!(Frame::parse(&bytes).unwrap(), frame);
            assert!(Frame::parse(&bytes[..bytes.len() - 1]).is_err());
            assert_eq!(read_frame(&mut &*bytes).unwrap(), frame);
        }
    }

    /// Whatever can be sent in the clear can be sealed.
    #[test]
    fn the_longest_message_is_the_longest_that_can_be_sealed() {
        let longest = Message::Hello(vec![1; MESSAGE_MAX - 1]);
        assert!(Frame::Clear(longest.clone()).encode().is_ok());
        assert!(Frame::Sealed(vec![0; longest.plain().len() + TAG]).encode().is_ok());
        let longer = Frame::Clear(Message::Hello(vec![1; MESSAGE_MAX]));
        assert_eq!(longer.encode().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // Nor does a peer make anybody keep more.
        let header = [0, 1, 0, 0, 1];
        assert_eq!(Frame::wanted(&header).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(Frame::wanted(&[0, 1, 0, 0, SEALED]).is_ok());
        assert!(Frame::wanted(&[0, 1, 0, 1, SEALED]).is_err());
    }
}
