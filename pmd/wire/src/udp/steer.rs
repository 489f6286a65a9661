//! Choosing the receiving lcore by the destination queue pair number.
//!
//! The sockets of a process form a SO_REUSEPORT group; a classic BPF program, run by the kernel
//! on the UDP payload, returns the index of the socket (socket(7), SO_ATTACH_REUSEPORT_CBPF).

use std::io;
use std::os::fd::BorrowedFd;

use libc::{sock_filter, sock_fprog};

use super::socket;

/// Which bits of a queue pair number are the number of its lcore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LcoreBits {
    /// Lowest of them, 0..24.
    pub shift: u8,
    /// How many.
    pub width: u8,
}

impl LcoreBits {
    /// The lcore of a queue pair number, as far as these bits tell.
    pub(super) const fn of(self, qpn: u32) -> u32 {
        qpn >> self.shift & ((1 << self.width) - 1)
    }
}

/// The BTH word that holds the destination queue pair number in its low 24 bits.
const DESTINATION_QPN: u32 = 4;
const QPN_MASK: u32 = 0xff_ffff;
/// Connection management belongs to lcore 0.
const GSI_QPN: u32 = 1;
/// And so does multicast.
const MULTICAST_QPN: u32 = 0xff_ffff;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;

/// The program. A payload too short to load from ends it with 0, which is lcore 0.
fn program(bits: LcoreBits, lcores: u32) -> [sock_filter; 9] {
    let mask = (1_u32 << bits.width) - 1;
    [
        op(LOAD, DESTINATION_QPN, 0, 0),
        op(AND, QPN_MASK, 0, 0),
        op(IF_EQUAL, GSI_QPN, 5, 0),
        op(IF_EQUAL, MULTICAST_QPN, 4, 0),
        op(SHIFT_RIGHT, u32::from(bits.shift), 0, 0),
        op(AND, mask, 0, 0),
        op(IF_AT_LEAST, lcores, 1, 0),
        op(RETURN_A, 0, 0, 0),
        op(RETURN, 0, 0, 0),
    ]
}

fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    #[expect(clippy::cast_possible_truncation, reason = "opcodes have 16 bits")]
    sock_filter { code: code as u16, jt, jf, k }
}

/// Attaches the program to the group that `socket` belongs to; socket i, in order of binding,
/// serves lcore i.
pub(super) fn attach(fd: BorrowedFd<'_>, bits: LcoreBits, lcores: u32) -> io::Result<()> {
    let mut filter = program(bits, lcores);
    let len = u16::try_from(filter.len()).map_err(io::Error::other)?;
    // `filter` outlives the call, which copies it.
    let program = sock_fprog { len, filter: filter.as_mut_ptr() };
    socket::set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}
