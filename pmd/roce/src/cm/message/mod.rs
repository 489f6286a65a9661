//! The messages of connection management, one per file: what their bytes mean, and the bytes of what
//! they mean (IBTA 1.4, 12.6 and 12.11). Reserved fields are sent as 0 and not looked at.
//!
//! A message has one size, so that reading it cannot fail once the datagram's header says which it is;
//! whether its values make sense is for the state machine to judge, which can answer.

mod drep;
mod dreq;
mod mra;
mod path;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr_rep;
mod sidr_req;

pub use drep::Drep;
pub use dreq::Dreq;
pub use mra::Mra;
pub use path::RequestPath;
pub use rej::{Rej, RejectInfo};
pub use rep::Rep;
pub use req::{Req, ServiceType};
pub use rtu::Rtu;
pub use sidr_rep::{SidrRep, SidrStatus};
pub use sidr_req::SidrReq;

use super::limits::MAD_LEN;
use super::mad::{Mad, MadError, MadHeader};

/// Which message an MRA or REJ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answered {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// In an MRA a LAP, in a REJ no message.
    Other = 2,
    /// A number that nobody defined.
    Reserved = 3,
}

impl Answered {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal, $abbreviation:literal;)*) => {
        /// A message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        impl Message {
            /// Its number in the header.
            pub const fn attribute_id(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $attribute,)*
                }
            }

            /// Its name in the specification.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $abbreviation,)*
                }
            }

            /// Reads a datagram.
            ///
            /// # Errors
            /// [`MadError`] when it is no message of connection management.
            pub fn parse(mad: &[u8]) -> Result<(u64, Self), MadError> {
                let (header, data) = MadHeader::parse(mad)?;
                let message = match header.attribute_id {
                    $($attribute => Self::$name($name::parse(data)),)*
                    other => return Err(MadError::Attribute(other)),
                };
                Ok((header.transaction_id, message))
            }

            /// Writes it as a datagram.
            pub fn emit(&self, transaction_id: u64) -> Mad {
                let mut mad = [0; MAD_LEN];
                if let Some(data) = mad.last_chunk_mut() {
                    match self {
                        $(Self::$name(message) => message.emit(data),)*
                    }
                }
                MadHeader { transaction_id, attribute_id: self.attribute_id() }.emit(&mut mad);
                mad
            }
        }

        $(
            impl From<$name> for Message {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*
    };
}

messages! {
    /// Asks for a connection.
    Req = 0x10, "REQ";
    /// Asks to wait.
    Mra = 0x11, "MRA";
    /// Refuses.
    Rej = 0x12, "REJ";
    /// Accepts.
    Rep = 0x13, "REP";
    /// Confirms.
    Rtu = 0x14, "RTU";
    /// Disconnects.
    Dreq = 0x15, "DREQ";
    /// Confirms that.
    Drep = 0x16, "DREP";
    /// Looks a datagram service up.
    SidrReq = 0x17, "SIDR REQ";
    /// Answers that.
    SidrRep = 0x18, "SIDR REP";
}
