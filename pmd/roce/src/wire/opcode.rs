//! Opcodes: a transport class and an operation that the class has (IBTA 1.4, table 35).

use core::fmt;

use super::operation::{HeaderSet, Operation, same_name};

/// Which service a packet belongs to: the top three bits of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransportClass {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram: recognised, spoken by nobody.
    Rd = 2,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification packet (IBTA annex A17.9.3).
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
}

impl TransportClass {
    /// The class of a raw opcode byte; `None` for the two that nobody defined.
    pub const fn of(byte: u8) -> Option<Self> {
        Some(match byte >> 5 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            3 => Self::Ud,
            4 => Self::Cnp,
            5 => Self::Xrc,
            _ => return None,
        })
    }

    /// Name as the prefix of an opcode's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
        }
    }
}

/// A defined opcode: a transport class and an operation that the class has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

macro_rules! opcodes {
    ($($name:ident = $byte:literal)*) => {
        impl Opcode {
            /// Every defined opcode, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            $(
                #[doc = concat!("`", stringify!($byte), "`.")]
                pub const $name: Self = Self($byte);
            )*

            const fn is_defined(byte: u8) -> bool {
                matches!(byte, $($byte)|*)
            }

            /// Full name, such as `RC_WRITE_FIRST`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    // The field is private, so that only the values above exist.
                    _ => unreachable!(),
                }
            }
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_IMM = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_IMM = 0x05
    RC_WRITE_FIRST = 0x06
    RC_WRITE_MIDDLE = 0x07
    RC_WRITE_LAST = 0x08
    RC_WRITE_LAST_IMM = 0x09
    RC_WRITE_ONLY = 0x0a
    RC_WRITE_ONLY_IMM = 0x0b
    RC_READ_REQUEST = 0x0c
    RC_READ_RESPONSE_FIRST = 0x0d
    RC_READ_RESPONSE_MIDDLE = 0x0e
    RC_READ_RESPONSE_LAST = 0x0f
    RC_READ_RESPONSE_ONLY = 0x10
    RC_ACKNOWLEDGE = 0x11
    RC_ATOMIC_ACKNOWLEDGE = 0x12
    RC_CMP_SWAP = 0x13
    RC_FETCH_ADD = 0x14
    RC_SEND_LAST_INV = 0x16
    RC_SEND_ONLY_INV = 0x17
    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_IMM = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_IMM = 0x25
    UC_WRITE_FIRST = 0x26
    UC_WRITE_MIDDLE = 0x27
    UC_WRITE_LAST = 0x28
    UC_WRITE_LAST_IMM = 0x29
    UC_WRITE_ONLY = 0x2a
    UC_WRITE_ONLY_IMM = 0x2b
    UD_SEND_ONLY = 0x64
    UD_SEND_ONLY_IMM = 0x65
    CNP_80 = 0x80
    CNP = 0x81
    XRC_SEND_FIRST = 0xa0
    XRC_SEND_MIDDLE = 0xa1
    XRC_SEND_LAST = 0xa2
    XRC_SEND_LAST_IMM = 0xa3
    XRC_SEND_ONLY = 0xa4
    XRC_SEND_ONLY_IMM = 0xa5
    XRC_WRITE_FIRST = 0xa6
    XRC_WRITE_MIDDLE = 0xa7
    XRC_WRITE_LAST = 0xa8
    XRC_WRITE_LAST_IMM = 0xa9
    XRC_WRITE_ONLY = 0xaa
    XRC_WRITE_ONLY_IMM = 0xab
    XRC_READ_REQUEST = 0xac
    XRC_READ_RESPONSE_FIRST = 0xad
    XRC_READ_RESPONSE_MIDDLE = 0xae
    XRC_READ_RESPONSE_LAST = 0xaf
    XRC_READ_RESPONSE_ONLY = 0xb0
    XRC_ACKNOWLEDGE = 0xb1
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2
    XRC_CMP_SWAP = 0xb3
    XRC_FETCH_ADD = 0xb4
    XRC_SEND_LAST_INV = 0xb6
    XRC_SEND_ONLY_INV = 0xb7
}

impl Opcode {
    /// The opcode of this byte. `None`: reserved, or of a class that is not spoken.
    #[inline]
    pub const fn new(byte: u8) -> Option<Self> {
        match MEANINGS[byte as usize] {
            Some(_) => Some(Self(byte)),
            None => None,
        }
    }

    /// The opcode of an operation on a transport; `None` where the transport lacks it.
    pub const fn of(class: TransportClass, operation: Operation) -> Option<Self> {
        match (class, operation) {
            (TransportClass::Cnp, Operation::Cnp) => Some(Self::CNP),
            (TransportClass::Cnp, _) | (_, Operation::Cnp) => None,
            _ => Self::new((class as u8) << 5 | operation as u8),
        }
    }

    /// The opcode with this name: a full one, or a short one for RC.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|opcode| same_name(opcode.name(), name))
            .or_else(|| Self::of(TransportClass::Rc, Operation::from_name(name)?))
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// The transport class.
    #[inline]
    pub const fn class(self) -> TransportClass {
        self.meaning().class
    }

    /// The operation.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.meaning().operation
    }

    /// The extended headers that follow the BTH.
    #[inline]
    pub const fn headers(self) -> HeaderSet {
        self.meaning().headers
    }

    /// Bytes of these headers.
    #[inline]
    pub const fn headers_len(self) -> usize {
        self.meaning().headers_len as usize
    }

    #[inline]
    const fn meaning(self) -> &'static Meaning {
        match &MEANINGS[self.0 as usize] {
            Some(meaning) => meaning,
            // The field is private, so that only defined opcodes exist.
            None => unreachable!(),
        }
    }
}

/// What an opcode says, looked up rather than worked out for every packet.
#[derive(Clone, Copy)]
struct Meaning {
    class: TransportClass,
    operation: Operation,
    headers: HeaderSet,
    headers_len: u8,
}

static MEANINGS: [Option<Meaning>; 256] = {
    let (mut meanings, mut byte) = ([None; 256], 0_u8);
    loop {
        if Opcode::is_defined(byte) {
            meanings[byte as usize] = Some(Meaning::of(byte));
        }
        if byte == u8::MAX {
            break meanings;
        }
        byte += 1;
    }
};

impl Meaning {
    const fn of(byte: u8) -> Self {
        let Some(class) = TransportClass::of(byte) else { unreachable!() };
        let operation = match Operation::of(byte) {
            _ if matches!(class, TransportClass::Cnp) => Operation::Cnp,
            Some(operation) => operation,
            None => unreachable!(),
        };
        let headers = match class {
            TransportClass::Ud => HeaderSet::DETH.union(operation.rc_headers()),
            TransportClass::Xrc if operation.is_request() => {
                HeaderSet::XRCETH.union(operation.rc_headers())
            }
            _ => operation.rc_headers(),
        };
        #[expect(clippy::cast_possible_truncation, reason = "76 at most")]
        let headers_len = headers.wire_len() as u8;
        Self { class, operation, headers, headers_len }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1-05, S1-06: the class in the top three bits, the place in the message in the low five.
    #[test]
    fn s1_05_class_and_operation_are_fields_of_the_byte() {
        assert_eq!(Opcode::RC_SEND_ONLY.class(), TransportClass::Rc);
        assert_eq!(Opcode::UC_SEND_ONLY.class(), TransportClass::Uc);
        assert_eq!(Opcode::UD_SEND_ONLY.class(), TransportClass::Ud);
        assert_eq!(Opcode::UD_SEND_ONLY.byte(), 0b011_00100);
        assert_eq!(Opcode::XRC_SEND_ONLY.class(), TransportClass::Xrc);
        assert_eq!(TransportClass::of(0b010_00000), Some(TransportClass::Rd));
        assert_eq!(TransportClass::of(0b110_00000), None);
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::new(opcode.byte()), Some(*opcode));
            if opcode.class() != TransportClass::Cnp {
                let full = format!("{}_{}", opcode.class().name(), opcode.operation());
                assert_eq!(opcode.name(), full);
                assert_eq!(opcode.operation() as u8, opcode.byte() & 0x1f);
            }
        }
    }

    /// S1-08: RC and XRC have all operations, UC no READ, atomic or invalidate, UD only SEND ONLY.
    #[test]
    fn s1_08_legal_set_per_transport() {
        let legal =
            |class: u8| (0..32u8).filter(move |low| Opcode::new(class << 5 | low).is_some());
        let reliable = (0..0x15).chain([0x16, 0x17]);
        assert!(legal(0).eq(reliable.clone()));
        assert!(legal(1).eq(0..0x0c));
        assert!(legal(2).eq([]), "RD is not spoken");
        assert!(legal(3).eq([4, 5]));
        assert!(legal(4).eq([0, 1]));
        assert!(legal(5).eq(reliable));
        assert!(legal(6).chain(legal(7)).eq([]));
        assert_eq!(Opcode::of(TransportClass::Uc, Operation::ReadRequest), None);
        assert_eq!(Opcode::of(TransportClass::Ud, Operation::WriteOnly), None);
        assert_eq!(
            Opcode::of(TransportClass::Xrc, Operation::FetchAdd),
            Some(Opcode::XRC_FETCH_ADD)
        );
    }

    /// S1-07, S1-37, S1-38, S1-40: RETH on FIRST and ONLY, ImmDt on LAST and ONLY, DETH on UD,
    /// XRCETH on every XRC request.
    #[test]
    fn s1_37_extended_headers_by_opcode() {
        for opcode in Opcode::ALL.iter().copied() {
            let (headers, operation) = (opcode.headers(), opcode.operation());
            let takes_address =
                operation.is_write() && operation.starts_message() || opcode.byte() & 0x1f == 0x0c;
            let is_cnp = opcode.class() == TransportClass::Cnp;
            assert_eq!(headers.contains(HeaderSet::RETH), takes_address && !is_cnp, "{opcode}");
            let imm = opcode.name().ends_with("_IMM");
            assert_eq!(headers.contains(HeaderSet::IMMDT), imm, "{opcode}");
            assert!(!imm || operation.ends_message());
            let is_ud = opcode.class() == TransportClass::Ud;
            assert_eq!(headers.contains(HeaderSet::DETH), is_ud, "{opcode}");
            let xrc_request = opcode.class() == TransportClass::Xrc && operation.is_request();
            assert_eq!(headers.contains(HeaderSet::XRCETH), xrc_request, "{opcode}");
        }
        assert_eq!(Opcode::RC_READ_RESPONSE_MIDDLE.headers(), HeaderSet::empty());
        assert_eq!(Opcode::RC_READ_RESPONSE_LAST.headers(), HeaderSet::AETH);
        assert_eq!(Opcode::RC_WRITE_ONLY_IMM.headers(), HeaderSet::RETH | HeaderSet::IMMDT);
        assert_eq!(Opcode::RC_SEND_ONLY_INV.headers(), HeaderSet::IETH);
        assert_eq!(Opcode::CNP.headers(), HeaderSet::empty());
    }

    /// S1-34: what each place in a message may carry.
    #[test]
    fn s1_34_payload_rules() {
        let rule = |opcode: Opcode| opcode.operation().payload_rule();
        for (opcode, fits, fails) in [
            (Opcode::RC_SEND_FIRST, &[1024][..], &[0, 1023, 1025][..]),
            (Opcode::UC_WRITE_MIDDLE, &[1024], &[0, 4]),
            (Opcode::RC_READ_RESPONSE_LAST, &[1, 1024], &[0, 1025]),
            (Opcode::UD_SEND_ONLY, &[0, 1024], &[1025]),
            (Opcode::RC_READ_REQUEST, &[0], &[1]),
            (Opcode::RC_ACKNOWLEDGE, &[0], &[4]),
            (Opcode::CNP, &[16], &[0]),
        ] {
            assert!(fits.iter().all(|len| rule(opcode).admits(*len, 1024)), "{opcode}");
            assert!(!fails.iter().any(|len| rule(opcode).admits(*len, 1024)), "{opcode}");
        }
    }

    #[test]
    fn each_operation_is_a_request_a_response_or_a_notification() {
        let responses = Operation::ALL.into_iter().filter(|operation| operation.is_response());
        assert!(responses.map(|operation| operation as u8).eq(0x0d..=0x12));
        for operation in Operation::ALL {
            assert_ne!(operation.is_request(), operation.is_response(), "{operation}");
        }
        assert!(!Operation::Cnp.is_request() && !Operation::Cnp.is_response());
    }

    #[test]
    fn names_are_read_with_or_without_the_transport() {
        assert_eq!(Opcode::from_name("WRITE_MIDDLE"), Some(Opcode::RC_WRITE_MIDDLE));
        assert_eq!(Opcode::from_name("write-middle"), Some(Opcode::RC_WRITE_MIDDLE));
        assert_eq!(Opcode::from_name("ACKNOWLEDGE"), Some(Opcode::RC_ACKNOWLEDGE));
        assert_eq!(Opcode::from_name("READ RESPONSE LAST"), Some(Opcode::RC_READ_RESPONSE_LAST));
        assert_eq!(Opcode::from_name("UD_SEND_ONLY"), Some(Opcode::UD_SEND_ONLY));
        assert_eq!(Opcode::from_name("CNP"), Some(Opcode::CNP));
        assert_eq!(Opcode::from_name("UD_WRITE_ONLY"), None);
        assert_eq!(Opcode::from_name(""), None);
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_name(opcode.name()), Some(*opcode));
        }
    }
}
