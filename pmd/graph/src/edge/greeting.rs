//! What two ends tell each other about themselves before they connect.

use pmd_verbs::roce::qp::state::Transport;
use thiserror::Error;

use crate::limits::GREETING_BYTES_MAX;

/// First bytes of every greeting.
const MAGIC: [u8; 4] = *b"SPGR";
/// Version of the layout; another one is refused.
const VERSION: u16 = 2;
/// Bytes before the texts.
const FIXED: usize = 20;

/// Numbers of the service types, as the verbs number their queue pair types (`ibv_qp_type`).
const TRANSPORTS: [(u8, Transport); 3] =
    [(2, Transport::Rc), (3, Transport::Uc), (4, Transport::Ud)];

/// One end's greeting.
///
/// As bytes, little-endian: magic (4), version (2), transport (1), length of protocol (1), process (4), length of node (2),
/// length of payload (2), reconnect (4), protocol, node, payload, and the device's connection data up to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// What the node speaks.
    pub protocol: &'a str,
    /// Service type of the connection.
    pub transport: Transport,
    /// The process.
    pub pid: u32,
    /// The node, by its name in that process.
    pub node: &'a str,
    /// For how many milliseconds a broken connection is to be brought back: asked for, and in the answer granted; 0: not at
    /// all.
    pub reconnect: u32,
    /// What the protocol says first.
    pub payload: &'a [u8],
    /// The device's connection data.
    pub device: &'a [u8],
}

/// Why bytes are no greeting.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GreetingError {
    /// They end too early, or do not start as one.
    #[error("another program answers there: this is no greeting of a pipeline")]
    Foreign,
    /// Another version.
    #[error("the peer greets in version {theirs}, this side in {VERSION}: update the older side")]
    Version {
        /// The peer's.
        theirs: u16,
    },
    /// A field makes no sense.
    #[error("the peer's greeting is damaged: {0}")]
    Damaged(&'static str),
}

impl<'a> Greeting<'a> {
    /// As bytes.
    ///
    /// # Panics
    /// With a protocol, node or payload longer than names and payloads are: a mistake of the program.
    pub fn encode(&self) -> Vec<u8> {
        let number = TRANSPORTS.iter().find(|(_, transport)| *transport == self.transport);
        let (transport, _) = number.expect("nodes connect over RC, UC or UD");
        let protocol = u8::try_from(self.protocol.len()).expect("a protocol has a short name");
        let node = u16::try_from(self.node.len()).expect("a node has a short name");
        assert!(self.payload.len() <= GREETING_BYTES_MAX, "the payload of a greeting is bounded");
        let payload = u16::try_from(self.payload.len()).expect("just checked");
        let mut bytes = Vec::with_capacity(FIXED + self.device.len() + self.payload.len() + 64);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([*transport, protocol]);
        bytes.extend(self.pid.to_le_bytes());
        bytes.extend(node.to_le_bytes());
        bytes.extend(payload.to_le_bytes());
        bytes.extend(self.reconnect.to_le_bytes());
        bytes.extend(self.protocol.as_bytes());
        bytes.extend(self.node.as_bytes());
        bytes.extend(self.payload);
        bytes.extend(self.device);
        bytes
    }

    /// From the bytes of a peer.
    ///
    /// # Errors
    /// [`GreetingError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, GreetingError> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>().ok_or(GreetingError::Foreign)?;
        if fixed[..4] != MAGIC {
            return Err(GreetingError::Foreign);
        }
        let theirs = u16::from_le_bytes([fixed[4], fixed[5]]);
        if theirs != VERSION {
            return Err(GreetingError::Version { theirs });
        }
        let damaged = GreetingError::Damaged;
        let transport = TRANSPORTS.iter().find(|(number, _)| *number == fixed[6]);
        let (_, transport) = transport.ok_or_else(|| damaged("no such service type"))?;
        let lengths = [
            usize::from(fixed[7]),
            usize::from(u16::from_le_bytes([fixed[12], fixed[13]])),
            usize::from(u16::from_le_bytes([fixed[14], fixed[15]])),
        ];
        let mut rest = rest;
        let mut parts = [[].as_slice(); 3];
        for (part, length) in parts.iter_mut().zip(lengths) {
            (*part, rest) =
                rest.split_at_checked(length).ok_or_else(|| damaged("it is cut short"))?;
        }
        let [protocol, node, payload] = parts;
        let text = |part: &'a [u8]| {
            let text = std::str::from_utf8(part).ok();
            text.filter(|text| !text.contains(char::is_control))
                .ok_or_else(|| damaged("a name is no text"))
        };
        if payload.len() > GREETING_BYTES_MAX {
            return Err(damaged("its payload is too long"));
        }
        Ok(Self {
            protocol: text(protocol)?,
            transport: *transport,
            pid: u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
            node: text(node)?,
            reconnect: u32::from_le_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]),
            payload,
            device: rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_greeting_survives(
            transport in prop_oneof![Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Ud)],
            pid: u32,
            reconnect: u32,
            protocol in "[a-z]{0,20}",
            node in "[a-z0-9-]{0,63}",
            payload in prop::collection::vec(any::<u8>(), 0..300),
            device in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let greeting = Greeting {
                protocol: &protocol, transport, pid, node: &node, reconnect, payload: &payload, device: &device,
            };
            let bytes = greeting.encode();
            prop_assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        }

        #[test]
        fn any_bytes_are_a_greeting_or_an_error(tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &tail].concat();
            if let Ok(greeting) = Greeting::decode(&bytes) {
                prop_assert_eq!(greeting.encode(), bytes);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let greeting = Greeting {
            protocol: "block",
            transport: Transport::Rc,
            pid: 7,
            node: "client",
            reconnect: 0,
            payload: b"pay",
            device: b"dev",
        };
        let bytes = greeting.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Greeting::decode(&bytes).map(|_| ()).unwrap_err()
        };
        assert_eq!(Greeting::decode(b"GET / HTTP/1.1\r\n\r\n"), Err(GreetingError::Foreign));
        assert_eq!(with(4, 9), GreetingError::Version { theirs: 9 });
        assert_eq!(with(6, 9), GreetingError::Damaged("no such service type"));
        assert_eq!(with(14, 200), GreetingError::Damaged("it is cut short"));
        assert_eq!(with(FIXED, 7), GreetingError::Damaged("a name is no text"));
    }
}
