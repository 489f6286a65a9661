//! The invariant CRC by size, and what an IPv4 identification that nobody told costs.

use std::hint::black_box;
use std::net::IpAddr;

use anyhow::Result;
use criterion::{Criterion, Throughput};
use pmd_roce::ids::Gid;
use pmd_roce::wire::icrc::{self, IcrcHeader};

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let v4 = IcrcHeader {
        src: Gid::from(IpAddr::from([10, 0, 0, 1])),
        dst: Gid::from(IpAddr::from([10, 0, 0, 2])),
        src_port: 0xc123,
        ip_id: 7,
    };
    let v6 = IcrcHeader {
        src: Gid::from("fd00::1".parse::<IpAddr>()?),
        dst: Gid::from("fd00::2".parse::<IpAddr>()?),
        ..v4
    };
    let mut group = criterion.benchmark_group("icrc");
    for size in [16, 80, 256, 1024, 4112] {
        let mut packet = vec![0x5a; size];
        group.throughput(Throughput::Bytes(size as u64));
        for (name, header) in [("ipv4", v4), ("ipv6", v6)] {
            group.bench_function(format!("{size} b, {name}"), |bencher| {
                bencher.iter(|| icrc::compute(&header, black_box(&packet)));
            });
        }
        icrc::seal(&v4, &mut packet);
        let guess = IcrcHeader { ip_id: 0, ..v4 };
        group.bench_function(format!("{size} b, ipv4, identification solved"), |bencher| {
            bencher.iter(|| icrc::solve_ip_id(&guess, black_box(&packet)));
        });
    }
    Ok(())
}
