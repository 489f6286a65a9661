//! How a control channel is protected, and why there may be none.

use std::io;
use std::net::SocketAddr;

use super::psk::Psk;
use super::seal::SealError;

/// How control channels of a listener or a caller are protected. What crosses them opens memory to whoever reads it.
#[derive(Clone, Debug, Default)]
pub enum Guard {
    /// Not at all, and only over loopback, where nobody but this host can listen.
    #[default]
    Loopback,
    /// Not at all, wherever they lead: for networks of which every host and every switch is trusted.
    Plaintext,
    /// Sealed with a key that both ends have.
    Sealed(Psk),
}

impl Guard {
    /// Whether a channel between this host and `address` can be had.
    pub fn admits(&self, address: SocketAddr) -> bool {
        !matches!(self, Self::Loopback) || address.ip().is_loopback()
    }

    /// The key, if there is one.
    pub(super) const fn key(&self) -> Option<&Psk> {
        match self {
            Self::Sealed(key) => Some(key),
            Self::Loopback | Self::Plaintext => None,
        }
    }
}

/// A channel would be in the clear where others can read it, and nobody asked for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not on this host's loopback, and connection data in the clear opens memory to whoever reads it there: give both ends one key (psk_file, --psk-file), or say that the network is trusted (plaintext = true, --plaintext)"
)]
pub struct Exposed(pub SocketAddr);

/// Why nobody can call.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// [`Exposed`].
    #[error(transparent)]
    Exposed(#[from] Exposed),
    /// As `bind(2)`.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a call has not become a channel.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// [`Exposed`].
    #[error(transparent)]
    Exposed(#[from] Exposed),
    /// As `connect(2)`, or the connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other side has no key, this one does.
    #[error(
        "the peer has no key and speaks in the clear, this side has one: give both the same key file (psk_file, --psk-file), or neither"
    )]
    NoKey,
    /// The other side has another key.
    #[error("the peer has another key: both ends need the same key file (psk_file, --psk-file)")]
    OtherKey,
    /// The other side does not prove that it has the key.
    #[error("whoever answers there does not prove that it has the key: {0}")]
    Unproven(SealError),
    /// The other side seals in another way.
    #[error("the peer seals in version {theirs}, this side in {ours}: update the older side")]
    Version {
        /// The peer's.
        theirs: u8,
        /// This side's.
        ours: u8,
    },
    /// The other side refused before the channel was sealed, in words of its own that nobody vouches for.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// Another program answers there.
    #[error("the peer does not speak this protocol")]
    Foreign,
}
