//! RoCE frames: headers read and written, and whole frames with their ICRC.

use std::hint::black_box;
use std::net::IpAddr;

use anyhow::Result;
use criterion::{Criterion, Throughput};
use pmd_roce::ids::{Gid, Psn, Qpn, Rkey};
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::wire::{
    Aeth, AtomicEth, Bth, CreditCode, Deth, Headers, Msn, Opcode, Packet, Pkey, Reth, Syndrome,
};

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("frame, headers");
    for (name, headers) in kinds() {
        let mut bytes = vec![0; headers.buffer_len(0)];
        headers.emit(0, &mut bytes);
        group.bench_function(format!("{name}, build"), |bencher| {
            let mut out = bytes.clone();
            bencher.iter(|| {
                black_box(&headers).emit(0, &mut out);
                black_box(&mut out);
            });
        });
        group.bench_function(format!("{name}, parse"), |bencher| {
            bencher.iter(|| Packet::parse(black_box(&bytes)));
        });
    }
    drop(group);
    let mut group = criterion.benchmark_group("frame, whole");
    let header = IcrcHeader {
        src: Gid::from(IpAddr::from([10, 0, 0, 1])),
        dst: Gid::from(IpAddr::from([10, 0, 0, 2])),
        src_port: 0xc123,
        ip_id: 7,
    };
    let send = kinds()[0].1;
    for size in [64, 1024, 4096] {
        let payload = vec![0x5a; size];
        let mut out = vec![0; send.buffer_len(size) + icrc::LEN];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(format!("send {size} b, build and seal"), |bencher| {
            bencher.iter(|| {
                send.emit(size, &mut out).copy_from_slice(black_box(&payload));
                icrc::seal(&header, &mut out);
            });
        });
        group.bench_function(format!("send {size} b, verify and parse"), |bencher| {
            bencher.iter(|| {
                let bytes = black_box(&out);
                assert!(icrc::verify(&header, bytes), "the frame is whole");
                Packet::parse(&bytes[..bytes.len() - icrc::LEN]).map(|packet| packet.payload.len())
            });
        });
    }
    Ok(())
}

/// What most frames are.
fn kinds() -> [(&'static str, Headers); 5] {
    let bare = |opcode| {
        Headers::new(Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pkey: Pkey(0xffff),
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(0x11),
            ack_req: true,
            psn: Psn::new(0x12_3456),
        })
    };
    let (va, rkey) = (0x7f00_0000_1000, Rkey(0x1234_5678));
    let syndrome = Syndrome::Ack { credits: CreditCode::for_receives(64) };
    let aeth = Some(Aeth { syndrome, msn: Msn::new(9) });
    let reth = Some(Reth { va, rkey, dma_len: 4096 });
    let atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 });
    let deth = Some(Deth { qkey: 0x1111_1111, src_qp: Qpn::new(0x12) });
    [
        ("rc send", bare(Opcode::RC_SEND_ONLY)),
        ("rc write", Headers { reth, ..bare(Opcode::RC_WRITE_ONLY) }),
        ("rc fetch-and-add", Headers { atomic_eth, ..bare(Opcode::RC_FETCH_ADD) }),
        ("rc acknowledge", Headers { aeth, ..bare(Opcode::RC_ACKNOWLEDGE) }),
        ("ud send", Headers { deth, ..bare(Opcode::UD_SEND_ONLY) }),
    ]
}
