//! Why a request was rejected, in numbers and in words (IBTA 1.4, 12.6.7.2).

use core::fmt;

macro_rules! reasons {
    ($($name:ident = $number:literal, $words:literal;)*) => {
        impl RejectReason {
            $(
                #[doc = $words]
                pub const $name: Self = Self($number);
            )*

            /// What it means; `None` for a number that nobody defined.
            pub const fn words(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($words),)*
                    _ => None,
                }
            }
        }
    };
}

/// The reason in a REJ.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

reasons! {
    NO_QP = 1, "no queue pair available";
    NO_EEC = 2, "no EE context available";
    NO_RESOURCES = 3, "no resources available";
    TIMEOUT = 4, "the other side gave up waiting";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication id";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "invalid service id: nobody listens there";
    INVALID_TRANSPORT = 9, "invalid transport service type";
    STALE = 10, "stale connection: the peer still knows an earlier one of this queue pair";
    NO_RDC = 11, "the reliable datagram channel does not exist";
    INVALID_GID = 12, "primary remote GID rejected";
    INVALID_LID = 13, "primary remote LID rejected";
    INVALID_SL = 14, "invalid primary service level";
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    INVALID_ALT_GID = 18, "alternate remote GID rejected";
    INVALID_ALT_LID = 19, "alternate remote LID rejected";
    INVALID_ALT_SL = 20, "invalid alternate service level";
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    PORT_AND_CM_REDIRECT = 24, "port and connection manager redirection";
    PORT_REDIRECT = 25, "port redirection";
    INVALID_MTU = 26, "path MTU larger than the peer's";
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    CONSUMER = 28, "rejected by the consumer";
    INVALID_RNR_RETRY = 29, "RNR retry count rejected";
    DUPLICATE_COMM_ID = 30, "duplicate local communication id";
    INVALID_CLASS_VERSION = 31, "invalid class version";
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    VENDOR_OPTION = 35, "vendor option not supported";
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.words().unwrap_or("a reason that nobody defined"), self.0)
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0-31: the reason is told in words, with its number.
    #[test]
    fn s0_31_reasons_have_words() {
        let nobody = "invalid service id: nobody listens there (8)";
        assert_eq!(RejectReason::INVALID_SERVICE_ID.to_string(), nobody);
        assert_eq!(RejectReason(28).to_string(), "rejected by the consumer (28)");
        assert_eq!(RejectReason(34).words(), None);
        assert_eq!((1..=35).filter(|n| RejectReason(*n).words().is_some()).count(), 34);
    }
}
