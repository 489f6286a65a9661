//! Unix sockets that keep message boundaries and carry descriptors: see unix(7), SCM_RIGHTS, SO_PEERCRED.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Descriptors that one message can carry.
pub(crate) const FDS_MAX: usize = 10;

/// Who is at the other end of a Unix socket, as the kernel vouches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id in our namespace; 0 when it is not visible from here.
    pub pid: u32,
    /// Effective user when the socket was connected, or began to listen.
    pub uid: u32,
}

/// What [`receive`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message of so many bytes, with these descriptors.
    Message(usize, ArrayVec<OwnedFd, FDS_MAX>),
    /// Nothing now.
    Nothing,
    /// The other end is closed.
    HangUp,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens on an abstract name, which is gone with the process however it ends. See unix(7).
pub(crate) fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, libc::SOMAXCONN)?;
    Ok(socket)
}

/// Connects to an abstract name, without waiting for anybody to accept.
pub(crate) fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// The next connection, if there is one.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(
            rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR,
        ) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Who is at the other end. See SO_PEERCRED in unix(7).
pub(crate) fn peer_cred(socket: impl AsFd) -> io::Result<PeerCred> {
    // Not through rustix, whose process ids cannot be 0; the kernel says 0 for a process of another namespace.
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&cred)).map_err(io::Error::other)?;
    // SAFETY: `cred` and `len` are valid for the call, and `len` is the size of `cred`.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCred { pid: u32::try_from(cred.pid).unwrap_or(0), uid: cred.uid })
}

/// Sends one message. Returns false when the socket has no room now.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // Alignment may leave room for more than are received.
    let fits = fds.len() <= FDS_MAX
        && (fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    if !fits {
        return Err(io::Error::other("more descriptors than a message carries"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        // A message is sent whole or not at all.
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::NOBUFS) => {
            Ok(false)
        }
        Err(e) => Err(e.into()),
    }
}

/// Receives one message without waiting. A message longer than `into`, or with more descriptors than [`FDS_MAX`], is an error.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags)
    {
        Ok(got) => got,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
        Err(rustix::io::Errno::CONNRESET) => return Ok(Received::HangUp),
        Err(e) => return Err(e.into()),
    };
    let mut fds = ArrayVec::new();
    let mut too_many = false;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for fd in rights {
                // What does not fit is closed by its drop.
                too_many |= fds.try_push(fd).is_err();
            }
        }
    }
    if too_many || got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a control message that is too long",
        ));
    }
    // Messages of this protocol are never empty: an empty read is the end.
    if got.bytes == 0 { Ok(Received::HangUp) } else { Ok(Received::Message(got.bytes, fds)) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    fn pair(name: &str) -> (OwnedFd, OwnedFd) {
        let name = format!("spinwire-fdpass-{name}-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        assert!(accept(&listener).unwrap().is_none());
        let client = connect(name.as_bytes()).unwrap();
        (client, accept(&listener).unwrap().unwrap())
    }

    #[test]
    fn messages_keep_their_boundaries_and_descriptors() {
        let (a, b) = pair("bounds");
        let mut file =
            File::from(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"through the socket").unwrap();
        assert!(send(&a, b"one", &[file.as_fd(), file.as_fd()]).unwrap());
        assert!(send(&a, b"two", &[]).unwrap());
        let mut buffer = [0; 16];
        let Received::Message(3, fds) = receive(&b, &mut buffer).unwrap() else { panic!("one") };
        assert_eq!(&buffer[..3], b"one");
        assert_eq!(fds.len(), 2);
        let mut text = String::new();
        let mut received = File::from(fds.into_iter().next().unwrap());
        received.rewind().unwrap();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the socket");
        assert!(
            matches!(receive(&b, &mut buffer).unwrap(), Received::Message(3, fds) if fds.is_empty())
        );
        assert!(matches!(receive(&b, &mut buffer).unwrap(), Received::Nothing));
        drop(a);
        assert!(matches!(receive(&b, &mut buffer).unwrap(), Received::HangUp));
    }

    #[test]
    fn what_is_too_long_is_refused_and_closed() {
        let (a, b) = pair("long");
        assert!(send(&a, &[7; 17], &[]).unwrap());
        assert_eq!(receive(&b, &mut [0; 16]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let fds = [a.as_fd(); FDS_MAX + 1];
        assert!(send(&a, b"x", &fds).is_err());
    }

    #[test]
    fn the_kernel_vouches_for_both_ends() {
        let (a, b) = pair("cred");
        let me = PeerCred { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
        assert_eq!(peer_cred(&a).unwrap(), me);
        assert_eq!(peer_cred(&b).unwrap(), me);
    }

    #[test]
    fn a_name_has_one_listener() {
        let name = format!("spinwire-fdpass-once-{}", std::process::id());
        let first = listen(name.as_bytes()).unwrap();
        assert_eq!(listen(name.as_bytes()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(connect(name.as_bytes()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        listen(name.as_bytes()).unwrap();
    }
}
