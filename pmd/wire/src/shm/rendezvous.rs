//! Where the processes of one host, user and rendezvous directory find each other.
//!
//! The directory itself stays empty: it decides who meets whom, by being reachable and private. What a process claims in it is a
//! Unix socket with an abstract name made of the directory's device and inode numbers. Such a name is exclusive while its
//! process lives and gone when it ends, also by `kill -9`, so nothing is ever stale or left over; and it is not visible from
//! another network namespace, where the same addresses mean other machines.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::fdpass::{self, PeerCred};
use super::limits::PREFIX_MAX;

/// A rendezvous directory that is safe to use.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be made or opened.
    #[error("cannot use the rendezvous directory {}: {source}; set XDG_RUNTIME_DIR to a directory of your own", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another user owns it.
    #[error("the rendezvous directory {} belongs to uid {owner}, not to {uid}; remove it, or set XDG_RUNTIME_DIR", path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's effective user.
        uid: u32,
    },
    /// Others may enter it.
    #[error("the rendezvous directory {} has mode {mode:04o}, which lets others in; run: chmod 0700 {}", path.display(), path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Why a prefix was not claimed.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// Every prefix is in use.
    #[error("all {PREFIX_MAX} device prefixes of {} are in use: end some processes, or use another XDG_RUNTIME_DIR", .0.display())]
    Full(PathBuf),
    /// The kernel refused.
    #[error("cannot claim a device prefix: {0}")]
    Io(#[from] io::Error),
}

/// Why a listening port was not claimed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Another process has it.
    #[error("{name} is taken by {}", owner.map_or_else(|| "another process".into(), |pid| format!("process {pid}")))]
    Taken {
        /// Address and port.
        name: String,
        /// Its process, where it can be told.
        owner: Option<u32>,
    },
    /// The kernel refused.
    #[error("cannot claim {name}: {source}")]
    Io {
        /// Address and port.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Directory {
    /// Opens `$XDG_RUNTIME_DIR/spinwire`, or `spinwire-UID` under the temporary directory where that variable is not set or names
    /// a place that does not exist, as it may after su(1) and in containers.
    pub fn open_default() -> Result<Self, DirectoryError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Self::open_first(runtime.as_deref(), &std::env::temp_dir())
    }

    fn open_first(runtime: Option<&Path>, temporary: &Path) -> Result<Self, DirectoryError> {
        if let Some(runtime) = runtime.filter(|path| path.is_absolute()) {
            match Self::open(&runtime.join("spinwire")) {
                Err(DirectoryError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        let uid = rustix::process::geteuid().as_raw();
        Self::open(&temporary.join(format!("spinwire-{uid}")))
    }

    /// Opens a directory, making it where it is missing. Its parent must exist.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.into(), source };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        // O_NOFOLLOW: in a shared temporary directory somebody else may have put a link in our way.
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened: File =
            fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let metadata = opened.metadata().map_err(failed)?;
        let uid = rustix::process::geteuid().as_raw();
        if metadata.uid() != uid {
            return Err(DirectoryError::Owner { path: path.into(), owner: metadata.uid(), uid });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(DirectoryError::Mode { path: path.into(), mode });
        }
        Ok(Self { path: path.into(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self, kind: &str, what: &str) -> Vec<u8> {
        format!("spinwire/{:x}.{:x}/{kind}/{what}", self.device, self.inode).into_bytes()
    }

    fn prefix_name(&self, prefix: u8) -> Vec<u8> {
        self.name("device", &prefix.to_string())
    }

    /// Claims the first free prefix. It is free again when the claim is dropped or the process ends.
    pub fn claim_prefix(&self) -> Result<PrefixClaim, PrefixError> {
        for prefix in 1..=PREFIX_MAX {
            match fdpass::listen(&self.prefix_name(prefix)) {
                Ok(listener) => return Ok(PrefixClaim { prefix, listener }),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(PrefixError::Full(self.path.clone()))
    }

    /// Connects to the process that holds a prefix; `ConnectionRefused` when nobody does.
    pub(crate) fn connect(&self, prefix: u8) -> io::Result<OwnedFd> {
        fdpass::connect(&self.prefix_name(prefix))
    }

    /// The process that holds a prefix, if any does.
    pub fn prefix_owner(&self, prefix: u8) -> Option<PeerCred> {
        self.connect(prefix).and_then(fdpass::peer_cred).ok()
    }

    /// Claims `address:port` for a listener of this process: such ports are unique per address and host, whatever the wire.
    pub fn claim_port(
        &self,
        address: core::net::IpAddr,
        port: u16,
    ) -> Result<PortClaim, PortError> {
        let name = core::net::SocketAddr::new(address, port).to_string();
        match fdpass::listen(&self.name("listen", &name)) {
            Ok(socket) => Ok(PortClaim { socket }),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                Err(PortError::Taken { owner: self.port_owner(address, port), name })
            }
            Err(source) => Err(PortError::Io { name, source }),
        }
    }

    /// The process that listens on `address:port`, where there is one and it can be told.
    pub fn port_owner(&self, address: core::net::IpAddr, port: u16) -> Option<u32> {
        let name = core::net::SocketAddr::new(address, port).to_string();
        let cred = fdpass::connect(&self.name("listen", &name)).and_then(fdpass::peer_cred).ok()?;
        (cred.pid != 0).then_some(cred.pid)
    }
}

/// A prefix of QPNs that belongs to this process.
#[derive(Debug)]
pub struct PrefixClaim {
    prefix: u8,
    listener: OwnedFd,
}

impl PrefixClaim {
    /// The prefix, 1 ..= 127: the top seven bits of every QPN.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Where peers knock.
    pub(crate) const fn listener(&self) -> &OwnedFd {
        &self.listener
    }
}

/// A listening port that belongs to this process.
#[derive(Debug)]
pub struct PortClaim {
    socket: OwnedFd,
}

impl PortClaim {
    /// Lets go of those who asked for the owner. Call it now and then; a claim with thousands of them stops telling.
    pub fn answer(&self) -> io::Result<()> {
        while let Some(asker) = fdpass::accept(&self.socket)? {
            drop(asker);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::shm::tests::Scratch;

    #[test]
    fn prefixes_are_exclusive_and_come_back() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.join("d")).unwrap();
        let first = directory.claim_prefix().unwrap();
        let second = directory.claim_prefix().unwrap();
        assert_eq!((first.prefix(), second.prefix()), (1, 2));
        assert_eq!(directory.prefix_owner(1).unwrap().pid, std::process::id());
        drop(first);
        assert_eq!(directory.prefix_owner(1), None);
        assert_eq!(directory.claim_prefix().unwrap().prefix(), 1);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing to be left over");
    }

    #[test]
    fn the_128th_device_is_refused() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.join("d")).unwrap();
        let claims: Vec<_> = (0..PREFIX_MAX).map(|_| directory.claim_prefix().unwrap()).collect();
        assert_eq!(claims.last().unwrap().prefix(), PREFIX_MAX);
        let error = directory.claim_prefix().unwrap_err();
        assert!(error.to_string().contains("all 127 device prefixes"), "{error}");
    }

    #[test]
    fn directories_are_apart() {
        let scratch = Scratch::new();
        let one = Directory::open(&scratch.join("one")).unwrap();
        let two = Directory::open(&scratch.join("two")).unwrap();
        let claim = one.claim_prefix().unwrap();
        assert_eq!(two.claim_prefix().unwrap().prefix(), claim.prefix());
        assert_eq!(two.prefix_owner(1), None);
    }

    #[test]
    fn the_owner_of_a_port_is_named() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.join("d")).unwrap();
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let claim = directory.claim_port(address, 7471).unwrap();
        for _ in 0..3 {
            let error = directory.claim_port(address, 7471).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("127.0.0.1:7471 is taken by process {}", std::process::id())
            );
        }
        claim.answer().unwrap();
        directory.claim_port(address, 7472).unwrap();
        directory.claim_port(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 7471).unwrap();
        drop(claim);
        assert_eq!(directory.port_owner(address, 7471), None);
        directory.claim_port(address, 7471).unwrap();
    }

    #[test]
    fn the_runtime_directory_is_taken_where_there_is_one() {
        let scratch = Scratch::new();
        let temporary = scratch.join("");
        let open = |runtime: Option<&Path>| Directory::open_first(runtime, &temporary).unwrap();
        let fallback = temporary.join(format!("spinwire-{}", rustix::process::geteuid().as_raw()));
        for runtime in [
            None,
            Some(Path::new("")),
            Some(Path::new("relative")),
            Some(&*scratch.join("missing")),
        ] {
            assert_eq!(open(runtime).path(), fallback);
        }
        fs::create_dir(scratch.join("run")).unwrap();
        assert_eq!(open(Some(&scratch.join("run"))).path(), scratch.join("run/spinwire"));
        // What is there and unsafe is no reason to go elsewhere, where others may not look.
        fs::set_permissions(scratch.join("run/spinwire"), fs::Permissions::from_mode(0o755))
            .unwrap();
        assert!(Directory::open_first(Some(&scratch.join("run")), &temporary).is_err());
    }

    #[test]
    fn unsafe_directories_are_refused() {
        let scratch = Scratch::new();
        let open = scratch.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        let error = Directory::open(&open).unwrap_err();
        assert!(matches!(error, DirectoryError::Mode { mode: 0o750, .. }), "{error}");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        Directory::open(&open).unwrap();

        let link = scratch.join("link");
        symlink(&open, &link).unwrap();
        assert!(matches!(Directory::open(&link).unwrap_err(), DirectoryError::Io { .. }));
        fs::write(scratch.join("file"), "").unwrap();
        assert!(matches!(
            Directory::open(&scratch.join("file")).unwrap_err(),
            DirectoryError::Io { .. }
        ));
        assert!(matches!(
            Directory::open(&scratch.join("no/parent")).unwrap_err(),
            DirectoryError::Io { .. }
        ));
        // Only root can give a directory away, and only root sees this: as anybody, `/proc/1` belongs to somebody else.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&open, Some(12345), None).unwrap();
            let error = Directory::open(&open).unwrap_err();
            assert!(matches!(error, DirectoryError::Owner { owner: 12345, .. }), "{error}");
        } else {
            assert!(matches!(
                Directory::open(Path::new("/")).unwrap_err(),
                DirectoryError::Owner { owner: 0, .. }
            ));
        }
    }
}
