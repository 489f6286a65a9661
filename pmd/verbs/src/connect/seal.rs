//! Sealing of what two ends say to each other: [Noise](https://noiseprotocol.org/noise.html), pattern `NNpsk0`, over any channel.
//!
//! Who connects [asks](SealAsk::begin), who accepts [answers](answer). Each side puts a key of its own into the exchange that is
//! never used again: so a recorded exchange cannot be played to either of them, and a key that is stolen later opens no
//! recording. An answer proves to the asking side that the other has the pre-shared key. An ask proves nothing yet, since it
//! may be an old one: the accepting side knows whom it talks to when it has [opened](Opener::open) the first message.
//!
//! ```
//! use pmd_verbs::connect::{Psk, SealAsk, answer};
//!
//! let key = Psk::parse(b"AAcOFRwjKjE4P0ZNVFtiaXB3foWMk5qhqK+2vcTL0tk=")?;
//! // The asking side has `waiting`, and its channel carries `ask` to the accepting side.
//! let (waiting, ask) = SealAsk::begin(&key)?;
//! let (mut there, reply) = answer(&key, &ask)?;
//! let mut here = waiting.finish(&reply)?;
//! // Connection data crosses sealed, in both directions, in order.
//! let sealed = here.sealer.seal(b"hello of a queue pair")?;
//! assert_eq!(&**there.opener.open(&sealed)?, b"hello of a queue pair");
//! // Played a second time it is refused.
//! assert!(there.opener.open(&sealed).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};
use zeroize::Zeroizing;

use super::psk::Psk;

/// What is spoken, in Noise's own words.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// What both ends must mean beside the key.
const PROLOGUE: &[u8] = b"spinwire control channel 1";
/// Bytes that sealing adds.
pub(super) const TAG: usize = 16;
/// Longest sealed message, bytes: the limit of Noise.
pub(super) const SEALED_MAX: usize = 65_535;
/// Bytes of an ask and of an answer: a fresh key and a tag.
const HANDSHAKE: usize = 32 + TAG;

/// Why something is not sealed, or not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// An ask or an answer was not made with this key, or was changed on its way.
    #[error("the other side has another key, or its bytes were changed on their way")]
    OtherKey,
    /// A message was changed on its way, comes a second time or out of order, or belongs to another exchange.
    #[error("a message was changed on its way, or played again")]
    Forged,
    /// A message is longer than 65 519 bytes.
    #[error("{0} bytes are more than one sealed message takes")]
    TooLong(usize),
    /// The machine has no randomness, or the connection has sealed 2^64 messages.
    #[error("the system gives no random bytes")]
    Exhausted,
}

/// Both directions of a sealed connection.
#[derive(Debug)]
pub struct Seal {
    /// For what this side sends.
    pub sealer: Sealer,
    /// For what it receives.
    pub opener: Opener,
}

impl Seal {
    fn of(state: HandshakeState) -> Result<Self, SealError> {
        let state = state.into_stateless_transport_mode().map_err(|_| SealError::Exhausted)?;
        let state = Arc::new(state);
        let sealer = Sealer { state: Arc::clone(&state), next: 0 };
        Ok(Self { sealer, opener: Opener { state, next: 0 } })
    }
}

/// The asking side, until it has the answer.
pub struct SealAsk(HandshakeState);

impl fmt::Debug for SealAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealAsk(secret)")
    }
}

impl SealAsk {
    /// Begins; the bytes are for the accepting side.
    ///
    /// # Errors
    /// [`SealError::Exhausted`].
    pub fn begin(key: &Psk) -> Result<(Self, Vec<u8>), SealError> {
        let build = || {
            let mut state = builder(key)?.build_initiator()?;
            let ask = written(&mut state)?;
            Ok::<_, snow::Error>((Self(state), ask))
        };
        build().map_err(|_| SealError::Exhausted)
    }

    /// Takes the answer: whoever gave it has the key, and gave it to this ask.
    ///
    /// # Errors
    /// [`SealError::OtherKey`].
    pub fn finish(mut self, answer: &[u8]) -> Result<Seal, SealError> {
        read(&mut self.0, answer)?;
        Seal::of(self.0)
    }
}

/// Takes an ask; the bytes are the answer to it. Nothing expensive is done for whoever does not have the key.
///
/// # Errors
/// [`SealError::OtherKey`].
pub fn answer(key: &Psk, ask: &[u8]) -> Result<(Seal, Vec<u8>), SealError> {
    let build = || builder(key)?.build_responder();
    let mut state = build().map_err(|_| SealError::Exhausted)?;
    read(&mut state, ask)?;
    let answer = written(&mut state).map_err(|_| SealError::Exhausted)?;
    Ok((Seal::of(state)?, answer))
}

fn builder(key: &Psk) -> Result<Builder<'_>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, key.bytes())?.prologue(PROLOGUE)
}

fn written(state: &mut HandshakeState) -> Result<Vec<u8>, snow::Error> {
    let mut bytes = vec![0; HANDSHAKE];
    let len = state.write_message(&[], &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn read(state: &mut HandshakeState, bytes: &[u8]) -> Result<(), SealError> {
    // What carries more than a key belongs to another version.
    if bytes.len() != HANDSHAKE {
        return Err(SealError::OtherKey);
    }
    state.read_message(bytes, &mut [0; TAG]).map(drop).map_err(|_| SealError::OtherKey)
}

/// Seals what one side sends; messages arrive in the order in which they were sealed.
pub struct Sealer {
    state: Arc<StatelessTransportState>,
    next: u64,
}

impl Sealer {
    /// A message, sealed.
    ///
    /// # Errors
    /// [`SealError::TooLong`] and [`SealError::Exhausted`].
    pub fn seal(&mut self, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        if plain.len() > SEALED_MAX - TAG {
            return Err(SealError::TooLong(plain.len()));
        }
        let mut sealed = vec![0; plain.len() + TAG];
        let written = self.state.write_message(self.next, plain, &mut sealed);
        written.map_err(|_| SealError::Exhausted)?;
        self.next += 1;
        Ok(sealed)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({} sealed)", self.next)
    }
}

/// Opens what the other side has sealed.
pub struct Opener {
    state: Arc<StatelessTransportState>,
    next: u64,
}

impl Opener {
    /// The message, if it is the next that the other side has sealed. It is wiped when dropped.
    ///
    /// # Errors
    /// [`SealError::Forged`].
    pub fn open(&mut self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let len = sealed.len().checked_sub(TAG).ok_or(SealError::Forged)?;
        let mut plain = Zeroizing::new(vec![0; len]);
        let opened = self.state.read_message(self.next, sealed, &mut plain);
        opened.map_err(|_| SealError::Forged)?;
        self.next += 1;
        Ok(plain)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({} opened)", self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> Psk {
        Psk::new(std::array::from_fn(|at| seed + u8::try_from(at).unwrap()))
    }

    fn both() -> (Seal, Seal) {
        let (waiting, ask) = SealAsk::begin(&key(1)).unwrap();
        let (there, reply) = answer(&key(1), &ask).unwrap();
        (waiting.finish(&reply).unwrap(), there)
    }

    #[test]
    fn both_directions_are_sealed_apart() {
        let (mut here, mut there) = both();
        for text in [&b"first"[..], b"", &[7; SEALED_MAX - TAG]] {
            let sealed = here.sealer.seal(text).unwrap();
            assert_eq!(&**there.opener.open(&sealed).unwrap(), text);
            let back = there.sealer.seal(text).unwrap();
            assert_ne!(back, sealed);
            assert_eq!(&**here.opener.open(&back).unwrap(), text);
        }
        let long = vec![0; SEALED_MAX - TAG + 1];
        assert_eq!(here.sealer.seal(&long), Err(SealError::TooLong(long.len())));
    }

    /// S0-43: nothing of what is said can be read on the way, not even that the same is said twice.
    #[test]
    fn s0_43_nothing_can_be_read_on_the_way() {
        let (mut here, _) = both();
        let secret = b"rkey=0x12345678 rkey=0x12345678";
        let sealed = [(); 2].map(|()| here.sealer.seal(secret).unwrap());
        assert_ne!(sealed[0], sealed[1]);
        assert!(!sealed[0].windows(4).any(|part| part == b"rkey"));
        assert_eq!(
            format!("{here:?}"),
            "Seal { sealer: Sealer(2 sealed), opener: Opener(0 opened) }"
        );
    }

    #[test]
    fn another_key_is_refused_at_once() {
        let (waiting, ask) = SealAsk::begin(&key(1)).unwrap();
        assert_eq!(answer(&key(2), &ask).unwrap_err(), SealError::OtherKey);
        let (_, other) = SealAsk::begin(&key(2)).unwrap();
        let (_, reply) = answer(&key(2), &other).unwrap();
        assert_eq!(waiting.finish(&reply).unwrap_err(), SealError::OtherKey);
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let (mut here, mut there) = both();
        let (_, ask) = SealAsk::begin(&key(1)).unwrap();
        for bit in 0..8 * ask.len() {
            let mut bad = ask.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // The highest bit of a curve's point is no part of it, but of what is authenticated.
            assert_eq!(answer(&key(1), &bad).unwrap_err(), SealError::OtherKey, "bit {bit}");
        }
        let sealed = here.sealer.seal(b"rkey").unwrap();
        for bit in 0..8 * sealed.len() {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(there.opener.open(&bad), Err(SealError::Forged), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(there.opener.open(&sealed[..len]), Err(SealError::Forged), "{len} bytes");
            assert!(answer(&key(1), &ask[..len.min(HANDSHAKE - 1)]).is_err());
        }
        assert!(there.opener.open(&sealed).is_ok(), "what was refused has changed nothing");
    }

    #[test]
    fn what_was_recorded_cannot_be_played_again() {
        let (waiting, ask) = SealAsk::begin(&key(1)).unwrap();
        let (mut first, reply) = answer(&key(1), &ask).unwrap();
        let mut here = waiting.finish(&reply).unwrap();
        let hello = here.sealer.seal(b"hello").unwrap();
        assert!(first.opener.open(&hello).is_ok());
        assert_eq!(first.opener.open(&hello), Err(SealError::Forged), "the same message again");
        // The whole conversation again: the accepting side has put another key into its answer.
        let (mut second, other) = answer(&key(1), &ask).unwrap();
        assert_ne!(other, reply);
        assert_eq!(second.opener.open(&hello), Err(SealError::Forged));
        // And an old answer does not answer a new ask.
        let (again, _) = SealAsk::begin(&key(1)).unwrap();
        assert_eq!(again.finish(&reply).unwrap_err(), SealError::OtherKey);
        // Nor does what a side has sent itself come back as its peer's.
        assert_eq!(here.opener.open(&hello), Err(SealError::Forged));
    }
}
