//! The usual message, which takes the shortest way: every size around the edges, whatever its key has been through.

use super::*;

/// A message of `len` bytes from the start of the buffer or of the slice arrives whole, with what its record says, and takes as
/// many bytes of the ring as a short header, or one piece, needs.
#[test]
fn plain_messages_arrive_whole() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 2));
    let from = a.buffer(1, 8192, Access::REMOTE_READ);
    let into = b.buffer(1, 8192, Access::empty());
    let (ab, ba) = link(&mut a, 0, &mut b, 1);
    let known = (a.qpn(0, 0x3fff), b.qpn(1, 0x3801));
    // A key that was never used takes the long way, once.
    let sges = [from.sge(0, 8)];
    let first = a.links[0].push(ab, PD, &send(known.0, known.1, 0, 8), Source::Sges(&sges));
    assert_eq!(first, Push::At(24));
    a.links[0].publish();
    assert!(take_one(&mut b.links[1], ba, &into.sge(0, 8)).is_some());
    let (mut at, mut seq) = (24, 0xff_ffe0_u32);
    for (src, dst) in [known, (1, known.1), (known.0, 2)] {
        for len in [1_u32, 7, 8, 9, 63, 64, 65, 200, 255, 256, 257, 4096] {
            for (is_inline, solicited) in [(false, false), (false, true), (true, false)] {
                seq = (seq + 1) & 0xff_ffff;
                let record = Record { solicited, ..send(src, dst, seq, len) };
                let bytes = pattern(u64::from(seq), len as usize);
                from.region.write_at(8, &bytes).unwrap();
                into.region.fill(0, 8192, 0xee).unwrap();
                let sges = [from.sge(8, len)];
                let source = if is_inline { Source::Inline(&bytes) } else { Source::Sges(&sges) };
                let Push::At(position) = a.links[0].push(ab, PD, &record, source) else {
                    panic!("pushed")
                };
                let body = u64::from(len).next_multiple_of(8);
                let size = match (is_inline, (src, dst) == known) {
                    (_, true) if len <= limits::INLINE_MAX => 8 + body,
                    (false, _) if len > limits::INLINE_MAX => 16 + 24,
                    _ => 16 + body,
                };
                let lap = limits::RING_BYTES;
                let pad = if at % lap + size > lap { lap - at % lap } else { 0 };
                at += pad + size;
                assert_eq!(position, at, "{record:?}");
                a.links[0].publish();
                assert_eq!(take_one(&mut b.links[1], ba, &into.sge(3, 8000)), Some(record));
                assert_eq!(into.bytes(3, len as usize), bytes);
                assert_eq!(
                    (into.bytes(2, 1), into.bytes(3 + u64::from(len), 1)),
                    (vec![0xee], vec![0xee])
                );
                assert_eq!(taken_up_to(&mut a.links[0], ab), position);
            }
        }
    }
}

/// A key that was used is not good for more than it was, nor after it was taken back.
#[test]
fn a_key_that_was_used_is_checked_again() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let local = a.buffer(1, 4096, Access::REMOTE_READ);
    let target = b.buffer(1, 4096, Access::REMOTE_WRITE);
    let (ab, _) = link(&mut a, 0, &mut b, 0);
    until("the target is mapped", || {
        a.turn();
        let sge = local.sge(0, 8);
        a.links[0].write(ab, PD, Source::Sges(&[sge]), &target.remote(0, 2)).is_ok()
    });
    let (src, dst) = (a.qpn(0, 1), b.qpn(0, 2));
    for round in 0..2 {
        let links = &mut a.links[0];
        let write = |links: &mut Links, pd, sge, to| links.write(ab, pd, Source::Sges(&[sge]), &to);
        let push = |links: &mut Links, pd, sge: Sge| {
            links.push(ab, pd, &send(src, dst, 0, sge.len), Source::Sges(&[sge]))
        };
        assert_eq!(write(links, PD, local.sge(4088, 8), target.remote(4088, 2)), Ok(()));
        assert!(matches!(push(links, PD, local.sge(4088, 8)), Push::At(_)));
        for (pd, sge) in [(PD + 1, local.sge(0, 8)), (PD, local.sge(4089, 8))] {
            let fault = write(links, pd, sge, target.remote(0, 2));
            assert_eq!((fault, push(links, pd, sge)), (Err(MemoryFault::Local), Push::LocalFault));
        }
        let beyond = target.remote(4089, 2);
        let foreign = Remote { pd: PD + 1, ..target.remote(0, 2) };
        for to in [beyond, foreign] {
            assert_eq!(write(links, PD, local.sge(0, 8), to), Err(MemoryFault::Remote));
            let inline = links.write(ab, PD, Source::Inline(&[1; 8]), &to);
            assert_eq!(inline, Err(MemoryFault::Remote));
        }
        // It is not to be read, nor may this side's be written.
        let read = links.read(ab, PD, &[local.sge(0, 8)], &target.remote(0, 2));
        assert_eq!(read, Err(MemoryFault::Remote), "round {round}");
        assert_eq!(links.write(ab, PD, Source::Inline(&[round; 8]), &target.remote(16, 2)), Ok(()));
        assert_eq!(target.bytes(16, 8), [round; 8]);
        links.publish();
    }
    // Kept: nobody waits for its users here, so it must not be used again.
    let _retired = b.table.deregister(target.key).unwrap();
    let to = target.remote(0, 2);
    let written = a.links[0].write(ab, PD, Source::Sges(&[local.sge(0, 8)]), &to);
    assert_eq!(written, Err(MemoryFault::Remote));
    assert_eq!(a.links[0].write(ab, PD, Source::Inline(&[1; 8]), &to), Err(MemoryFault::Remote));
    let _retired = a.table.deregister(local.key).unwrap();
    let sge = local.sge(0, 8);
    let pushed = a.links[0].push(ab, PD, &send(src, dst, 0, 8), Source::Sges(&[sge]));
    assert_eq!(pushed, Push::LocalFault);
}
