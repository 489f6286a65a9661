//! Times as messages carry them: five bits, as powers of two.

use core::time::Duration;

use super::limits::LONGEST_SPAN;

/// Bits of a time on the wire.
pub(super) const BITS: u8 = 0x1f;

/// How long a five-bit time is: 4.096 us x 2^code, which Linux takes as 2^(code - 8) ms. What a peer may
/// ask for is bounded by [`LONGEST_SPAN`].
pub(super) fn of_code(code: u8) -> Duration {
    let exponent = u32::from(code & BITS).saturating_sub(8);
    Duration::from_millis(1 << exponent).min(LONGEST_SPAN)
}

/// The local ACK timeout of a queue pair over a path of so long a packet lifetime to a peer that takes
/// so long to answer: a code for about 2 x lifetime + delay, all of them codes (IBTA 1.4, 12.7.34).
pub(super) const fn ack_timeout(ack_delay: u8, lifetime: u8) -> u8 {
    let twice = lifetime + 1;
    let code = if twice >= ack_delay {
        twice + (ack_delay >= lifetime) as u8
    } else {
        ack_delay + (twice + 1 >= ack_delay) as u8
    };
    if code > BITS { BITS } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_milliseconds_as_linux_counts_them() {
        assert_eq!(of_code(0), Duration::from_millis(1));
        assert_eq!(of_code(8), Duration::from_millis(1));
        assert_eq!(of_code(16), Duration::from_millis(256));
        assert_eq!(of_code(20), Duration::from_millis(4096));
        assert_eq!(of_code(31), LONGEST_SPAN);
    }

    /// Lifetimes of Linux 6.1, of 6.12, and of a queue pair whose timeout was set to 14.
    #[test]
    fn ack_timeouts_are_those_of_linux() {
        assert_eq!(ack_timeout(15, 18), 19);
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(15, 13), 16);
        assert_eq!(ack_timeout(31, 31), 31);
    }
}
