//! A peer that writes nonsense into everything it can write.

use super::*;

/// Numbers that are likely to hurt.
fn nasty(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let random = *state;
    match random % 8 {
        0 => 0,
        1 => u64::MAX,
        2 => random % 4096 * 8,
        3 => 1 << (random % 64),
        // Nearly a record: a good op, some receiver, some length.
        4 => (random >> 8 & 0x3f) << 56 | (random & 0xff_ffff) << 32 | random >> 40 & 0x1_ffff,
        // A padding.
        5 => 0xff << 56 | random >> 30 & 0xffff,
        6 => (random & 0xffff_ffff) << 32 | 1,
        _ => random,
    }
}

/// Fills all of its own shared memory, rings, pages and table, with nonsense, again and again. Its control thread stays honest,
/// so that it gets new links whenever it has lost one.
pub(super) fn scribbler(directory: &Directory) {
    let mut device = Device::new(directory, 1);
    let buffer = device.buffer(1, 1 << 16, Access::REMOTE);
    // Its key, which stays good while everything around it is spoilt.
    std::fs::write(directory.path().join("key.new"), buffer.key.0.to_string()).unwrap();
    std::fs::rename(directory.path().join("key.new"), directory.path().join("key")).unwrap();
    let mut state = 0x1234_5678_9abc_def1_u64;
    loop {
        device.turn();
        while device.links[0].next_down().is_some() {}
        let mut all = Vec::new();
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let is_ours = ["ring", "page", "table"]
                .iter()
                .any(|kind| line.contains(&format!("/memfd:spinwire-{kind}")));
            if line.contains(" rw-s ") && is_ours {
                let (range, _) = line.split_once(' ').unwrap();
                let (from, to) = range.split_once('-').unwrap();
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                all.push((number(from), number(to), line.contains("table")));
            }
        }
        for _ in 0..200 {
            for (from, to, is_table) in &all {
                let words = (to - from) / 8;
                for _ in 0..words / 64 {
                    let word = usize::try_from(nasty(&mut state)).unwrap() % words;
                    // Most of the time near the start, where the first records are.
                    let word = if state.is_multiple_of(4) { word } else { word % 64 };
                    // Keys stay, so that what they lead to is used.
                    if *is_table && word % 8 == 0 {
                        continue;
                    }
                    let at = core::ptr::with_exposed_provenance_mut::<u64>(from + word * 8);
                    let value = nasty(&mut state);
                    // SAFETY: `at` lies in a writable mapping of this process, which nothing unmaps between two turns; that others
                    // use it is the point.
                    unsafe { at.write_volatile(value) };
                }
            }
        }
    }
}

/// DESIGN section 4, Trust: a hostile peer may spoil the bytes it was granted, never crash, hang or misdirect us.
#[test]
fn a_peer_that_writes_garbage_is_contained() {
    let scratch = Scratch::new();
    let mut device = Device::new(&scratch.directory(), 1);
    let granted = device.buffer(1, 1 << 16, Access::REMOTE);
    let read_only = device.buffer(2, 1 << 16, Access::REMOTE_READ);
    let private = device.buffer(3, 1 << 16, Access::empty());
    let into = device.buffer(4, 1 << 16, Access::empty());
    read_only.region.write_at(0, &pattern(1, 1 << 16)).unwrap();
    private.region.write_at(0, &pattern(2, 1 << 16)).unwrap();
    let player = Player::start("scribbler", &scratch);
    let name = PeerName {
        prefix: player.prefix(&scratch.directory()),
        lcore: 0,
        address: None,
        nonce: None,
    };
    let key_file = scratch.directory().path().join("key");
    until("the peer tells its key", || key_file.exists());
    let key = std::fs::read_to_string(&key_file).unwrap().parse().unwrap();

    let mut garbage = Vec::new();
    let mut refused = 0;
    until("the peer is caught often enough", || {
        // Its table and pages are nonsense too: that may be noticed at once.
        let link = match device.port.attach(0, name, LIMIT) {
            Ok(link) => link,
            Err(AttachError::Timeout) => panic!("the control thread hangs"),
            Err(_) => {
                refused += 1;
                return garbage.len() >= 20 || refused > 5000;
            }
        };
        let mut rounds = 0;
        loop {
            device.turn();
            if let Some(down) = device.links[0].next_down() {
                if let LinkFault::Garbage(what) = down.fault {
                    garbage.push(what);
                }
                break;
            }
            let links = &mut device.links[0];
            links.rx(link, |links, record, payload| {
                for offset in [0, record.len / 2, record.len, u32::MAX] {
                    // Whatever it says: it ends, and within the element.
                    payload.copy_to(PD, offset, &into.sge(0, 1 << 16)).unwrap_or_default();
                }
                links.push(link, PD, &send(1, record.src, 1, 8), Source::Inline(&[0; 8]));
                true
            });
            for addr in [0, 8, 1 << 15, u64::MAX - 7] {
                let at = Remote { addr, rkey: key, pd: PD, qpn: 0 };
                links
                    .write(link, PD, Source::Sges(&[granted.sge(0, 4096)]), &at)
                    .unwrap_or_default();
                links.read(link, PD, &[into.sge(0, 4096)], &at).unwrap_or_default();
                links.atomic(link, &at, AtomicOp::FetchAdd(1)).unwrap_or_default();
            }
            for qpn in 0..64 {
                if let Target::Qp(qp) = links.target(link, qpn) {
                    assert!(qp.state <= 6 && qp.access & !0b1110 == 0);
                }
            }
            links.consumed(link);
            links.push(link, PD, &send(1, 2, 0, 3000), Source::Sges(&[granted.sge(0, 3000)]));
            links.publish();
            rounds += 1;
            assert!(rounds < 200_000, "never caught");
        }
        garbage.len() >= 20
    });
    player.kill();
    assert!(garbage.len() >= 20, "{garbage:?}, refused {refused} times");
    assert!(read_only.region.eq_at(0, &pattern(1, 1 << 16)).unwrap());
    assert!(private.region.eq_at(0, &pattern(2, 1 << 16)).unwrap());
    // And others are served as before.
    let mut other = Device::new(&scratch.directory(), 1);
    link(&mut device, 0, &mut other, 0);
}
