//! The rows of the table: which work, ours, whose, and what ratio is wanted.

use crate::sockets;

/// A unit, and with it the way to compare: more is better, except for latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Millions of messages per second.
    Rate,
    /// 10^9 bytes per second.
    Bandwidth,
    /// Half a round trip, nanoseconds, median.
    Latency,
}

impl Unit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "M/s",
            Self::Bandwidth => "GB/s",
            Self::Latency => "ns",
        }
    }
}

/// What a figure is compared with.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// `ucx_perftest` with these transports, this test, and this size.
    Ucx { tls: &'static str, test: &'static str, size: usize },
    /// Plain sockets.
    Socket(sockets::Kind, usize),
    /// `fi_pingpong` with this provider.
    Libfabric { provider: &'static str, size: usize },
    /// fio, 4 KiB random reads.
    Fio(crate::fio::Kind),
    /// Ourselves doing it another way.
    Spinwire(Ours),
    /// The cache line's way from core to core.
    Probe,
    /// A figure that stands for itself: what is wanted is this much.
    Fixed(f64),
}

/// What spinwire does.
#[derive(Clone, Debug)]
pub(crate) enum Ours {
    /// `spinwire perf` with these arguments.
    Perf(Vec<String>),
    /// `spinwire run` of a pipeline; its rate is that of the node of this name.
    Pipeline { config: &'static str, node: &'static str, set: Vec<String> },
}

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want {
    /// At least this multiple of the peer (a latency: at most).
    Ratio(f64),
    /// At most this much above the peer's figure.
    Above(f64),
    /// Nothing: it is there to look at.
    Nothing,
}

/// One comparison.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) ours: Ours,
    pub(crate) peer: Peer,
    /// How the peer is called in the table.
    pub(crate) peer_name: &'static str,
    pub(crate) want: Want,
    /// A curve of a plot and the place on it, where it belongs to one.
    pub(crate) curve: Option<(&'static str, usize)>,
}

/// Sizes of the curves.
const SIZES: [usize; 6] = [8, 64, 256, 4096, 65536, 1 << 20];

/// The names, a line each.
pub(crate) fn names() -> String {
    all().iter().map(|row| format!("{}\n", row.name)).collect()
}

/// Every row.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    shm(&mut rows);
    ways_to_report(&mut rows);
    udp(&mut rows);
    block(&mut rows);
    rows
}

/// Bytes as people write them.
fn human(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn perf(test: &str, wire: &str, size: usize, more: &str) -> Ours {
    let line = format!("{test} --wire {wire} -s {size} --processes 2 {more}");
    Ours::Perf(line.split_whitespace().map(String::from).collect())
}

/// What is wanted of the sizes that somebody promised something about.
fn wanted(op: &str, size: usize) -> Want {
    match (op, size) {
        ("SEND", 8) => Want::Ratio(1.8),
        ("SEND", 64) => Want::Ratio(1.5),
        ("SEND", 4096) => Want::Ratio(1.4),
        ("SEND", 65536) => Want::Ratio(1.6),
        ("SEND", 1_048_576) => Want::Ratio(1.04),
        ("WRITE", 8) => Want::Ratio(2.0),
        ("WRITE", 65536) => Want::Ratio(0.9),
        ("WRITE", 1_048_576) => Want::Ratio(1.0),
        ("READ", 8) => Want::Ratio(15.0),
        ("READ", 65536) => Want::Ratio(2.2),
        ("READ", 1_048_576) => Want::Ratio(1.1),
        _ => Want::Nothing,
    }
}

fn shm(rows: &mut Vec<Row>) {
    for (op, test, ucx) in [
        ("SEND", "send-bw", "tag_bw"),
        ("WRITE", "write-bw", "ucp_put_bw"),
        ("READ", "read-bw", "ucp_get"),
    ] {
        for size in SIZES {
            let unit = if size < 4096 { Unit::Rate } else { Unit::Bandwidth };
            rows.push(Row {
                name: format!("shm {op} {}", human(size)),
                unit,
                ours: perf(test, "shm", size, ""),
                peer: Peer::Ucx { tls: "posix", test: ucx, size },
                peer_name: "UCX posix",
                want: wanted(op, size),
                curve: Some((op, size)),
            });
        }
    }
    for (size, tls) in [(65536, "sm"), (1 << 20, "sm")] {
        rows.push(Row {
            name: format!("shm WRITE {} against the default", human(size)),
            unit: Unit::Bandwidth,
            ours: perf("write-bw", "shm", size, ""),
            peer: Peer::Ucx { tls, test: "ucp_put_bw", size },
            peer_name: "UCX sm",
            want: Want::Nothing,
            curve: None,
        });
    }
    for (op, test, ucx) in [("SEND", "send-lat", "tag_lat"), ("WRITE", "write-lat", "ucp_put_lat")]
    {
        let ours = perf(test, "shm", 8, "");
        rows.push(Row {
            name: format!("shm half round trip {op} 8 B"),
            unit: Unit::Latency,
            ours: ours.clone(),
            peer: Peer::Probe,
            peer_name: "one cache line",
            want: Want::Above(25.0),
            curve: None,
        });
        rows.push(Row {
            name: format!("shm half round trip {op} 8 B against UCX"),
            unit: Unit::Latency,
            ours,
            peer: Peer::Ucx { tls: "posix", test: ucx, size: 8 },
            peer_name: "UCX posix",
            want: Want::Nothing,
            curve: None,
        });
    }
    rows.push(Row {
        name: "shm SEND and WRITE 8 B alternating".into(),
        unit: Unit::Rate,
        ours: perf("send-bw", "shm", 8, "--alternate-write"),
        peer: Peer::Fixed(80.0),
        peer_name: "80 M/s",
        want: Want::Ratio(1.0),
        curve: None,
    });
    for wire in ["shm", "udp"] {
        rows.push(Row {
            name: format!("{wire} SEND 8 B, 1024 queue pairs against 1"),
            unit: Unit::Rate,
            ours: perf("send-bw", wire, 8, "-q 1024"),
            peer: Peer::Spinwire(perf("send-bw", wire, 8, "")),
            peer_name: "one queue pair",
            want: Want::Ratio(0.8),
            curve: None,
        });
    }
}

/// One warm buffer is how the peers report; the other two are nearer to an application.
fn ways_to_report(rows: &mut Vec<Row>) {
    for (op, test) in [("SEND", "send-bw"), ("WRITE", "write-bw"), ("READ", "read-bw")] {
        for size in [4096, 65536, 1 << 20] {
            for (buffers, what) in
                [("rotating", "16 rotating buffers"), ("app", "written and read")]
            {
                rows.push(Row {
                    name: format!("shm {op} {}, {what}", human(size)),
                    unit: Unit::Bandwidth,
                    ours: perf(test, "shm", size, &format!("--buffers {buffers}")),
                    peer: Peer::Spinwire(perf(test, "shm", size, "")),
                    peer_name: "one warm buffer",
                    want: Want::Nothing,
                    curve: None,
                });
            }
        }
    }
}

fn udp(rows: &mut Vec<Row>) {
    // A datagram holds 128 frames: with four of them outstanding, both ends work at once, as they do
    // for a sender that never waits.
    let send_64 = perf("send-bw", "udp", 64, "-t 512");
    let mut row = |name: &str, unit, ours: &Ours, peer, peer_name, want| {
        rows.push(Row {
            name: name.into(),
            unit,
            ours: ours.clone(),
            peer,
            peer_name,
            want,
            curve: None,
        });
    };
    row(
        "udp SEND 64 B, 512 in flight",
        Unit::Rate,
        &send_64,
        Peer::Socket(sockets::Kind::UdpSend, 64),
        "UDP send()",
        Want::Ratio(12.0),
    );
    row(
        "udp SEND 64 B, 512 in flight, against UCX",
        Unit::Rate,
        &send_64,
        Peer::Ucx { tls: "tcp", test: "tag_bw", size: 64 },
        "UCX tcp",
        Want::Nothing,
    );
    let lat = perf("send-lat", "udp", 64, "");
    row(
        "udp half round trip 64 B",
        Unit::Latency,
        &lat,
        Peer::Socket(sockets::Kind::UdpSpin, 64),
        "UDP, spinning",
        Want::Ratio(1.9),
    );
    row(
        "udp half round trip 64 B against libfabric udp",
        Unit::Latency,
        &lat,
        Peer::Libfabric { provider: "udp", size: 64 },
        "fi_pingpong udp",
        Want::Nothing,
    );
    row(
        "udp half round trip 64 B against libfabric udp;ofi_rxd",
        Unit::Latency,
        &lat,
        Peer::Libfabric { provider: "udp;ofi_rxd", size: 64 },
        "fi_pingpong ofi_rxd",
        Want::Nothing,
    );
    row(
        "udp WRITE 1 MiB, path MTU 4096",
        Unit::Bandwidth,
        &perf("write-bw", "udp", 1 << 20, "-m 4096"),
        Peer::Socket(sockets::Kind::TcpStream, 1 << 20),
        "TCP stream",
        Want::Ratio(1.2),
    );
}

fn block(rows: &mut Vec<Row>) {
    let set = ["workload=random", "verify=false", "duration=2s"];
    let set: Vec<_> = set.iter().map(|pair| format!("node.load.{pair}")).collect();
    let pipeline = |config| Ours::Pipeline { config, node: "load", set: set.clone() };
    let memory = pipeline("configs/storage-memory.toml");
    for (name, peer, peer_name, want) in [
        ("", crate::fio::Kind::UringTmpfs, "fio io_uring, tmpfs", Want::Ratio(5.0)),
        (" against mmap", crate::fio::Kind::MmapTmpfs, "fio mmap, tmpfs", Want::Nothing),
    ] {
        rows.push(Row {
            name: format!("block READ 4 KiB random, memory{name}"),
            unit: Unit::Rate,
            ours: memory.clone(),
            peer: Peer::Fio(peer),
            peer_name,
            want,
            curve: None,
        });
    }
    rows.push(Row {
        name: "block READ 4 KiB random, file, O_DIRECT, depth 32".into(),
        unit: Unit::Rate,
        ours: pipeline("configs/storage-file.toml"),
        peer: Peer::Fio(crate::fio::Kind::UringDirect),
        peer_name: "fio io_uring",
        want: Want::Ratio(0.9),
        curve: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_rows_apart() {
        let mut names: Vec<_> = all().into_iter().map(|row| row.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn sizes_are_written_as_people_do() {
        assert_eq!([8, 1024, 65536, 1 << 20].map(human), ["8 B", "1 KiB", "64 KiB", "1 MiB"]);
    }
}
