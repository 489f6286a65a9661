//! Big-endian numbers at an offset of a header, which is an array: a constant offset is checked at
//! compile time after inlining.

/// 16 bits at `at`.
pub(crate) const fn u16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// 24 bits at `at`.
pub(crate) const fn u24<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

/// 32 bits at `at`.
pub(crate) const fn u32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// 64 bits at `at`.
pub(crate) const fn u64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    ((u32(bytes, at) as u64) << 32) | u32(bytes, at + 4) as u64
}

/// Writes 16 bits at `at`.
pub(crate) fn put_u16<const N: usize>(bytes: &mut [u8; N], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes the low 24 bits of `value` at `at`.
pub(crate) fn put_u24<const N: usize>(bytes: &mut [u8; N], at: usize, value: u32) {
    bytes[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

/// Writes 32 bits at `at`.
pub(crate) fn put_u32<const N: usize>(bytes: &mut [u8; N], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes 64 bits at `at`.
pub(crate) fn put_u64<const N: usize>(bytes: &mut [u8; N], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
