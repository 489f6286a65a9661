//! Batches of datagrams: the buffers, and sendmmsg(2) and recvmmsg(2) over them.
//!
//! The arrays of pointers the kernel wants are built on the stack for each call, from buffers
//! borrowed for that call: nothing here outlives a borrow.

use std::io;
use std::mem::{self, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, sockaddr_in, sockaddr_in6, socklen_t};

use super::cmsg::Control;
use crate::limits::{MESSAGE_BYTES, RX_MESSAGES, TX_MESSAGES};

/// Messages of one batch; both directions have the same number so that one type serves.
pub(super) const BATCH: usize = RX_MESSAGES;
const _: () = assert!(RX_MESSAGES == TX_MESSAGES);

const NAME_BYTES: usize = size_of::<sockaddr_in6>();
#[expect(clippy::cast_possible_truncation, reason = "28")]
const NAME_LEN: socklen_t = NAME_BYTES as socklen_t;

/// A `sockaddr_in` or `sockaddr_in6`, as bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Name([u8; NAME_BYTES]);

impl Name {
    const EMPTY: Self = Self([0; NAME_BYTES]);

    /// The form the kernel wants, and its length.
    pub(super) fn encode(address: SocketAddr) -> (Self, u8) {
        let mut bytes = [0; NAME_BYTES];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, size_of::<sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, size_of::<sockaddr_in6>())
            }
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "2 and 10")]
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "16 and 28")]
        (Self(bytes), len as u8)
    }

    fn decode(&self, len: socklen_t) -> Option<SocketAddr> {
        let bytes = self.0.get(..usize::try_from(len).ok()?)?;
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
        match c_int::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
                Some(SocketAddrV4::new(Ipv4Addr::from(octets), port).into())
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
                let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// What the kernel said about one received datagram.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    len: usize,
    name: socklen_t,
    control: usize,
    flags: c_int,
}

impl Received {
    fn new(len: usize, header: &msghdr) -> Self {
        Self {
            len,
            name: header.msg_namelen,
            control: header.msg_controllen,
            flags: header.msg_flags,
        }
    }
}

/// A received datagram, or several merged into one buffer.
#[derive(Debug)]
pub(super) struct Datagram<'a> {
    pub(super) payload: &'a [u8],
    /// None when the kernel gave no address of a family we know.
    pub(super) from: Option<(IpAddr, u16)>,
    pub(super) control: &'a [u8],
    pub(super) truncated: bool,
}

/// Which part of a message's buffer to send, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) name: u8,
    pub(super) control: u8,
}

impl Outgoing {
    /// Has `header` send this part of `buffer`.
    fn describe(
        &self,
        header: &mut msghdr,
        iovec: &mut iovec,
        buffer: &mut [u8],
        name: &mut Name,
        control: &mut Control,
    ) {
        let part = &mut buffer[self.offset..self.offset + self.len];
        iovec.iov_base = part.as_mut_ptr().cast();
        iovec.iov_len = part.len();
        header.msg_iov = iovec;
        header.msg_iovlen = 1;
        header.msg_name = name.0[..usize::from(self.name)].as_mut_ptr().cast();
        header.msg_namelen = socklen_t::from(self.name);
        if self.control > 0 {
            let control = &mut control.0[..usize::from(self.control)];
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = control.len() as _;
        }
    }
}

/// The buffers of one batch.
#[derive(Debug)]
pub(super) struct Messages {
    data: Box<[u8]>,
    names: Box<[Name; BATCH]>,
    controls: Box<[Control; BATCH]>,
    received: [Received; BATCH],
    /// How many to ask the kernel for: the call that finds nothing more costs as much as a datagram.
    wanted: usize,
}

impl Messages {
    pub(super) fn new() -> Self {
        let mut data = vec![0_u8; BATCH * MESSAGE_BYTES].into_boxed_slice();
        // Touched here, so that no page is first touched on the data path.
        data.iter_mut().step_by(rustix::param::page_size()).for_each(|byte| *byte = 1);
        Self {
            data,
            names: Box::new([Name::EMPTY; BATCH]),
            controls: Box::new([Control::EMPTY; BATCH]),
            received: [Received::default(); BATCH],
            wanted: 1,
        }
    }

    /// The buffer of message `index`.
    pub(super) fn data_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.data[index * MESSAGE_BYTES..(index + 1) * MESSAGE_BYTES]
    }

    pub(super) fn set_name(&mut self, index: usize, name: Name) {
        self.names[index] = name;
    }

    pub(super) fn control_mut(&mut self, index: usize) -> &mut Control {
        &mut self.controls[index]
    }

    /// Message `index` of the last [`Messages::receive`].
    pub(super) fn datagram(&self, index: usize) -> Datagram<'_> {
        let received = &self.received[index];
        let at = index * MESSAGE_BYTES;
        Datagram {
            payload: &self.data[at..at + received.len],
            from: self.names[index].decode(received.name).map(|a| (a.ip(), a.port())),
            control: &self.controls[index].0[..received.control],
            truncated: received.flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }

    /// Fills messages 0.. with what has arrived, without waiting, and returns how many. Asks for more
    /// as long as there are as many as were asked for, so that a lone datagram costs one look.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let received = match self.wanted {
            1 => self.receive_one(socket).map(|()| 1),
            _ => self.receive_many(socket),
        };
        self.wanted = match received {
            Ok(count) if count == self.wanted => (2 * count).min(BATCH),
            Ok(count) => count.max(1),
            Err(_) => 1,
        };
        received
    }

    fn receive_one(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let buffer = &mut self.data[..MESSAGE_BYTES];
        let mut iovec = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut header = empty_header();
        describe(&mut header, &mut iovec, &mut self.names[0], &mut self.controls[0]);
        // SAFETY: the header points to an iovec, name and control buffer of the lengths it states,
        // each borrowed exclusively above and alive until the call returns.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        self.received[0] = Received::new(len, &header);
        Ok(())
    }

    fn receive_many(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut iovecs = [NO_IOVEC; BATCH];
        let mut headers = empty_headers();
        let buffers = self.data.chunks_exact_mut(MESSAGE_BYTES);
        let places = self.names.iter_mut().zip(self.controls.iter_mut());
        let parts = iovecs.iter_mut().zip(headers.iter_mut());
        let mut wanted: c_uint = 0;
        for (((iovec, header), buffer), (name, control)) in
            parts.zip(buffers).zip(places).take(self.wanted)
        {
            iovec.iov_base = buffer.as_mut_ptr().cast();
            iovec.iov_len = buffer.len();
            describe(&mut header.msg_hdr, iovec, name, control);
            wanted += 1;
        }
        // SAFETY: the first `wanted` headers point to an iovec, name and control buffer of the
        // lengths they state, each borrowed exclusively above and alive until the call returns.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                wanted,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (received, header) in self.received.iter_mut().zip(&headers[..count]) {
            *received = Received::new(header.msg_len as usize, &header.msg_hdr);
        }
        Ok(count)
    }

    /// Sends messages `first`.., each as told by `outgoing`, and returns how many the kernel took.
    /// An error is that of the first message; a later one's shows on the next call.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        first: usize,
        outgoing: &[Outgoing],
    ) -> io::Result<usize> {
        match outgoing {
            [out] => self.send_one(socket, first, out).map(|()| 1),
            _ => self.send_many(socket, first, outgoing),
        }
    }

    fn send_one(&mut self, socket: BorrowedFd<'_>, index: usize, out: &Outgoing) -> io::Result<()> {
        let (mut iovec, mut header) = (NO_IOVEC, empty_header());
        let (name, control) = (&mut self.names[index], &mut self.controls[index]);
        let buffer = &mut self.data[index * MESSAGE_BYTES..(index + 1) * MESSAGE_BYTES];
        out.describe(&mut header, &mut iovec, buffer, name, control);
        // SAFETY: the header points to an iovec, name and control buffer of the lengths it states,
        // borrowed above and alive until the call returns.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, SEND_FLAGS) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(())
    }

    fn send_many(
        &mut self,
        socket: BorrowedFd<'_>,
        first: usize,
        outgoing: &[Outgoing],
    ) -> io::Result<usize> {
        let mut iovecs = [NO_IOVEC; BATCH];
        let mut headers = empty_headers();
        let buffers = self.data.chunks_exact_mut(MESSAGE_BYTES).skip(first);
        let places = self.names.iter_mut().zip(self.controls.iter_mut()).skip(first);
        let parts = iovecs.iter_mut().zip(headers.iter_mut()).zip(outgoing);
        let mut count: c_uint = 0;
        for ((((iovec, header), out), buffer), (name, control)) in parts.zip(buffers).zip(places) {
            out.describe(&mut header.msg_hdr, iovec, buffer, name, control);
            count += 1;
        }
        // SAFETY: the first `count` headers point to an iovec, name and control buffer of the
        // lengths they state, borrowed above and alive until the call returns.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, SEND_FLAGS) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

const NO_IOVEC: iovec = iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// Has `header` receive into these places.
fn describe(header: &mut msghdr, iovec: &mut iovec, name: &mut Name, control: &mut Control) {
    header.msg_iov = iovec;
    header.msg_iovlen = 1;
    header.msg_name = name.0.as_mut_ptr().cast();
    header.msg_namelen = NAME_LEN;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
}

fn empty_header() -> msghdr {
    // SAFETY: an msghdr is made of integers and raw pointers, for which all zeros is a value.
    unsafe { mem::zeroed() }
}

fn empty_headers() -> [mmsghdr; BATCH] {
    // SAFETY: an mmsghdr is made of integers and raw pointers, for which all zeros is a value.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_encoding() {
        for text in ["127.0.0.1:4791", "[::1]:4791", "[fe80::1%3]:50000"] {
            let address: SocketAddr = text.parse().unwrap();
            let (name, len) = Name::encode(address);
            assert_eq!(name.decode(socklen_t::from(len)), Some(address));
            assert_eq!(name.decode(3), None, "{text}");
        }
        assert_eq!(Name::EMPTY.decode(28), None, "an unknown family");
    }
}
