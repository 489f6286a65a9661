//! Deregistration against peers that copy without asking.

use pmd_mem::Fence;
use rustix::process::Signal;

use super::*;

/// Writes without pause where it was last told to, and says so by its first byte.
pub(super) fn writer(directory: &Directory) {
    let mut device = Device::new(directory, 1);
    let source = device.buffer(1, 4096, Access::empty());
    let told = device.buffer(2, 4096, Access::empty());
    let mut target = None;
    loop {
        device.turn();
        let links = &mut device.links[0];
        if links.next_down().is_some() {
            return;
        }
        for link in links.active().to_vec() {
            if take_one(links, link, &told.sge(0, 64)).is_some() {
                let bytes = told.bytes(0, 13);
                let addr = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let rkey = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                source.region.fill(0, 4096, bytes[12]).unwrap();
                target = Some(Remote { addr, rkey, pd: PD, qpn: 0 });
            }
            if let Some(at) = &target {
                for _ in 0..64 {
                    match links.write(link, PD, Source::Sges(&[source.sge(0, 4096)]), at) {
                        Ok(()) | Err(MemoryFault::NotYet) => {}
                        Err(MemoryFault::Remote | MemoryFault::Gone | MemoryFault::Private) => {
                            target = None;
                            break;
                        }
                        Err(MemoryFault::Local) => panic!("the source is good"),
                    }
                }
                links.publish();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// A device and a writer that is linked to it.
struct Writer {
    device: Device,
    region: Arc<Region>,
    player: Player,
    link: u32,
}

impl Writer {
    fn start(scratch: &Scratch, fence: Fence) -> Self {
        let mut device = Device::with(&scratch.directory(), 1, |config| config.fence = fence);
        let target = device.buffer(1, 4096, Access::REMOTE);
        device.table.reclaim(device.table.deregister(target.key).unwrap());
        let player = Player::start("writer", scratch);
        let name = PeerName {
            prefix: player.prefix(&scratch.directory()),
            lcore: 0,
            address: None,
            nonce: None,
        };
        let mut link = Err(AttachError::Timeout);
        until("the writer is linked", || {
            link = device.port.attach(0, name, LIMIT);
            link.is_ok()
        });
        device.turn();
        Self { device, region: target.region, player, link: link.unwrap() }
    }

    /// Lets it write `byte` everywhere, waits until it does, and returns the key.
    fn provoke(&mut self, byte: u8) -> Key {
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let va = self.region.address();
        let what = Registration {
            region: 1,
            region_len: 4096,
            offset: 0,
            length: 4096,
            va,
            pd: PD,
            access,
        };
        let key = self.device.table.register(&what).unwrap();
        let mut told = va.to_le_bytes().to_vec();
        told.extend(key.0.to_le_bytes());
        told.push(byte);
        let links = &mut self.device.links[0];
        assert!(matches!(
            links.push(self.link, PD, &send(1, 2, 0, 13), Source::Inline(&told)),
            Push::At(_)
        ));
        links.publish();
        let region = &self.region;
        until("the writer writes", || region.eq_at(0, &[byte; 4096]).unwrap());
        key
    }
}

/// DESIGN section 4: when deregistration returns, nobody writes the memory any more. The peer writes all the time and is never
/// asked; each round ends with bytes of our own that must stay.
#[test]
fn deregistered_memory_is_not_written() {
    deregister_under_fire(Fence::register());
}

/// The same where membarrier(2) is refused, as some containers do: then initiators fence for themselves.
#[test]
fn deregistration_does_without_membarrier() {
    deregister_under_fire(Fence::without_membarrier());
}

fn deregister_under_fire(fence: Fence) {
    let scratch = Scratch::new();
    let mut writer = Writer::start(&scratch, fence);
    let free = writer.device.table.outstanding().free_entries;
    for round in 0..150 {
        let key = writer.provoke(1 + round % 200);
        let retired = writer.device.table.deregister(key).unwrap();
        writer.device.port.reclaim(retired, Some(writer.region.segment()), LIMIT).unwrap();
        writer.region.fill(0, 4096, 0).unwrap();
        // Long enough for a store that hung in another core's buffer.
        for _ in 0..50 {
            assert!(writer.region.eq_at(0, &[0; 4096]).unwrap(), "round {round}");
            std::thread::yield_now();
        }
        assert_eq!(writer.device.table.outstanding().free_entries, free);
    }
}

/// A peer that stops in the middle of a copy: the wait ends, its link is down, and the entry comes back when it is dead.
#[test]
fn a_peer_that_stays_in_the_memory_is_quarantined() {
    let scratch = Scratch::new();
    let mut writer = Writer::start(&scratch, Fence::register());
    let free = writer.device.table.outstanding().free_entries;
    let mut still_used = None;
    // Stopped at a random moment it may just be outside of a batch.
    for round in 0..200 {
        let key = writer.provoke(1 + round % 200);
        writer.player.signal(Signal::STOP);
        let retired = writer.device.table.deregister(key).unwrap();
        let limit = Duration::from_millis(20);
        match writer.device.port.reclaim(retired, Some(writer.region.segment()), limit) {
            Ok(()) => writer.player.signal(Signal::CONT),
            Err(e) => {
                still_used = Some(e);
                break;
            }
        }
    }
    let pid = writer.player.pid();
    let still_used = still_used.expect("stopped within a batch once");
    assert_eq!(still_used, StillUsed { pids: vec![pid], lcores: vec![] });
    assert!(
        still_used.to_string().contains(&format!("process {pid} did not stop")),
        "{still_used}"
    );
    let mut down = None;
    until("the link is down", || {
        writer.device.turn();
        down = writer.device.links[0].next_down();
        down.is_some()
    });
    assert_eq!((down.unwrap().fault, down.unwrap().peer.pid), (LinkFault::Stuck, pid));
    assert_eq!(writer.device.table.outstanding().free_entries, free - 1, "quarantined");
    writer.player.kill();
    let table = &writer.device.table;
    until("the entry is free again", || table.outstanding().free_entries == free);
}

/// The device's own lcores use its memory too: they are waited for, and named.
#[test]
fn an_own_lcore_in_the_memory_is_named() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let mut device = Device::new(&directory, 2);
    let (here, there) =
        (device.buffer(1, 4096, Access::empty()), device.buffer(2, 4096, Access::REMOTE));
    let link = device.port.attach(0, device.name(1), LIMIT).unwrap();
    device.turn();
    let free = device.table.outstanding().free_entries + 1;
    device.links[0].write(link, PD, Source::Sges(&[here.sge(0, 8)]), &there.remote(0, 0)).unwrap();
    let retired = device.table.deregister(there.key).unwrap();
    let refused = device.port.reclaim(retired, None, Duration::from_millis(5));
    assert_eq!(refused, Err(StillUsed { pids: vec![], lcores: vec![0] }));
    let write = device.links[0].write(link, PD, Source::Inline(&[1]), &there.remote(0, 0));
    assert_eq!(write, Err(MemoryFault::Remote));
    assert_eq!(device.table.outstanding().free_entries, free - 1);
    device.links[0].publish();
    until("the entry is free again", || device.table.outstanding().free_entries == free);
    // Outside of a batch nobody is waited for.
    let retired = device.table.deregister(here.key).unwrap();
    device.port.reclaim(retired, None, Duration::ZERO).unwrap();
}
