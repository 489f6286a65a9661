//! Which CPUs the lcores of a user's processes poll on, so that the next process takes others.
//!
//! Each CPU has a few places, each an abstract name of the rendezvous directory: whoever has a name polls there. The kernel
//! takes the name back when its process ends, however it ends.

use std::io;
use std::os::fd::OwnedFd;

use super::fdpass;
use super::limits::CPU_PLACES;
use super::rendezvous::Directory;

/// An lcore that polls on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuHolder {
    /// The CPU.
    pub cpu: usize,
    /// Its process, where that can be told.
    pub pid: Option<u32>,
}

/// A place on a CPU that belongs to an lcore of this process, until it is dropped.
#[derive(Debug)]
pub struct CpuClaim {
    cpu: usize,
    place: usize,
    /// The name lives as long as it does.
    _name: OwnedFd,
}

impl CpuClaim {
    /// The CPU.
    pub const fn cpu(&self) -> usize {
        self.cpu
    }

    /// How many places before this one were taken: 0 for the first lcore of a CPU.
    pub const fn place(&self) -> usize {
        self.place
    }
}

impl Directory {
    fn cpu_name(&self, cpu: usize, place: usize) -> Vec<u8> {
        self.name("cpu", &format!("{cpu}.{place}"))
    }

    /// Takes the first free place on `cpu`, for an lcore that will poll there; `None` where all are taken.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn claim_cpu(&self, cpu: usize) -> io::Result<Option<CpuClaim>> {
        for place in 0..CPU_PLACES {
            match fdpass::listen(&self.cpu_name(cpu, place)) {
                Ok(name) => return Ok(Some(CpuClaim { cpu, place, _name: name })),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The lcores that poll on `cpu` now, those of this process included.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn cpu_holders(&self, cpu: usize) -> io::Result<Vec<CpuHolder>> {
        let mut holders = Vec::new();
        for place in 0..CPU_PLACES {
            let pid = match fdpass::connect(&self.cpu_name(cpu, place)) {
                Ok(socket) => fdpass::peer_cred(socket).ok().map(|cred| cred.pid),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                // It has been asked too often: it is there, and does not say who it is.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(error) => return Err(error),
            };
            holders.push(CpuHolder { cpu, pid: pid.filter(|pid| *pid != 0) });
        }
        Ok(holders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::tests::Scratch;

    #[test]
    fn a_cpu_is_held_until_its_claim_goes() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.join("d")).unwrap();
        assert_eq!(directory.cpu_holders(3).unwrap(), []);
        let first = directory.claim_cpu(3).unwrap().unwrap();
        let second = directory.claim_cpu(3).unwrap().unwrap();
        assert_eq!((first.cpu(), first.place(), second.place()), (3, 0, 1));
        let own = CpuHolder { cpu: 3, pid: Some(std::process::id()) };
        assert_eq!(directory.cpu_holders(3).unwrap(), [own, own]);
        assert_eq!(directory.cpu_holders(30).unwrap(), [], "another CPU whose number begins alike");
        drop(first);
        assert_eq!(directory.cpu_holders(3).unwrap(), [own]);
        assert_eq!(directory.claim_cpu(3).unwrap().unwrap().place(), 0);
        drop(second);
        assert_eq!(directory.cpu_holders(3).unwrap(), []);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing left over");
    }

    #[test]
    fn places_are_bounded_and_directories_apart() {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.join("d")).unwrap();
        let all: Vec<_> =
            (0..CPU_PLACES).map(|_| directory.claim_cpu(0).unwrap().unwrap()).collect();
        assert!(directory.claim_cpu(0).unwrap().is_none());
        assert_eq!(directory.cpu_holders(0).unwrap().len(), all.len());
        let other = Directory::open(&scratch.join("other")).unwrap();
        assert_eq!(other.cpu_holders(0).unwrap(), []);
    }
}
