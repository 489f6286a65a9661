//! Out-of-band connecting: what two ends tell each other, and the channel that carries it.
//!
//! The connecting side says hello, the accepting side answers, the connecting side says ready. The
//! channel stays open while the connection lives, so that either side learns at once that the
//! other is gone, and whether it left in peace.

mod channel;
mod frame;
mod guard;
mod hello;
mod inquiry;
mod listener;
mod lobby;
mod message;
mod path;
mod psk;
mod seal;
mod ways;

pub use channel::{Channel, Connecting, FOREIGN, FORGED, channel_pair, connect};
pub use pmd_wire::shm::Nonce;

pub use frame::{Frame, Unsealed};
pub use guard::{CallError, Exposed, Guard, ListenError};
pub use hello::{HELLO_VERSION, Hello, HostId, PathWish, Role, Speaker};
pub use listener::{Listener, listen};
pub use lobby::oldest_of_most;
pub use message::Message;
pub use psk::{Psk, PskError, PskFormat};
pub use seal::{Opener, Seal, SealAsk, SealError, Sealer, answer};
pub use ways::Ways;

pub use inquiry::{
    ANSWER_WAIT, ANSWERS_MAX, Inquiry, LAST_WORDS_WAIT, decode as decode_evidence, farewell, tell,
};
