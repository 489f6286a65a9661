//! The flags, perftest's where it has them.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pmd_graph::app;
use pmd_graph::config::units;
use pmd_verbs::WireChoice;

use super::test::{AtomicKind, Buffers, Misconnect, Test, Transport};

/// `perf`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Without --listen and --peer both ends run on this machine, each on a CPU of its own. On two machines, or in two
terminals: `spinwire perf TEST --listen ADDRESS[:PORT]` first, then `spinwire perf TEST --peer ADDRESS[:PORT]` with all
the other flags; the listening end takes sizes, counts and depths from the other one.

Before the timed part, an untimed pass sends one message for each request that a queue pair can have in flight (-t),
up to 128 and 64 MiB, and at least one for each of its buffers; every message has bytes of its own, and each byte is
compared where it arrives: verified_bytes counts them. Latency tests and atomics move each buffer once.

Latencies of bandwidth tests are from posting to completion, of the last request of one list in eight.")]
pub(crate) struct PerfArgs {
    /// What to measure
    #[arg(value_enum, value_name = "TEST")]
    pub(super) test: Test,
    /// Device: KIND, or KIND:NAME
    #[arg(long, value_name = "KIND[:NAME]", default_value = "soft")]
    pub(super) device: String,
    /// Transport service
    #[arg(
        short = 'c',
        long,
        visible_alias = "connection",
        value_enum,
        ignore_case = true,
        default_value = "rc"
    )]
    pub(super) transport: Transport,
    /// How the ends reach each other
    #[arg(long, value_enum, default_value = "auto")]
    pub(super) wire: Wire,
    /// One process with both ends, or two
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) processes: Option<u8>,
    /// Wait for the other end here, serve it once, and end
    #[arg(long, value_name = "A[:P]", conflicts_with_all = ["peer", "processes"])]
    pub(super) listen: Option<String>,
    /// Measure against the end that listens there
    #[arg(long, value_name = "A[:P]", conflicts_with = "processes")]
    pub(super) peer: Option<String>,
    /// Port of --listen and --peer
    #[arg(short = 'p', long, default_value_t = 18515)]
    pub(super) port: u16,
    /// Bytes per message, as 64KiB or a number
    #[arg(short = 's', long, value_name = "N", value_parser = size)]
    pub(super) size: Option<u32>,
    /// Sizes from 2 bytes to 8 MiB
    #[arg(short = 'a', long, conflicts_with = "size")]
    pub(super) all: bool,
    /// Messages per queue pair and size [default: as many as go in a second, with -a in 200 ms]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) iters: Option<u64>,
    /// Measure each size for so long, as 10s or in seconds
    #[arg(short = 'D', long, value_name = "T", value_parser = seconds, conflicts_with = "iters")]
    pub(super) duration: Option<Duration>,
    /// Requests in flight per queue pair [default: 128, fewer where queue pairs are many or messages large]
    #[arg(short = 't', long, value_name = "N")]
    pub(super) tx_depth: Option<u32>,
    /// Receives posted per queue pair [default: twice the requests in flight]
    #[arg(short = 'r', long, value_name = "N")]
    pub(super) rx_depth: Option<u32>,
    /// Queue pairs
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1)]
    pub(super) qps: u32,
    /// Lcores per side, with the queue pairs spread over them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) lcores: u32,
    /// CPUs of the lcores: this side's, then the other's where it runs here
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(super) cpu: Vec<usize>,
    /// Path MTU: 256 to 4096 [default: what the wire carries]
    #[arg(short = 'm', long, value_name = "N")]
    pub(super) mtu: Option<u32>,
    /// Index of the source address in the GID table that `spinwire devices` lists [default: chosen automatically]
    #[arg(short = 'x', long, value_name = "N")]
    pub(super) gid_index: Option<u32>,
    /// Use IPv6 addresses: of the table, the first that is free, and another for the second process here
    #[arg(long)]
    pub(super) ipv6: bool,
    /// Messages up to so many bytes are copied into the queue when they are posted
    #[arg(
        short = 'I',
        long = "inline_size",
        visible_alias = "inline-size",
        value_name = "N",
        default_value_t = 0
    )]
    pub(super) inline: u32,
    /// Requests posted in one call
    #[arg(short = 'l', long = "post_list", visible_alias = "post-list", value_name = "N")]
    pub(super) post_list: Option<u32>,
    /// One completion per so many requests
    #[arg(short = 'Q', long = "cq-mod", value_name = "N", default_value_t = 1)]
    pub(super) cq_mod: u32,
    /// READs and atomics in flight per queue pair
    #[arg(short = 'o', long = "outs", value_name = "N")]
    pub(super) outs: Option<u8>,
    /// Sleep until there is a completion, instead of polling
    #[arg(short = 'e', long)]
    pub(super) events: bool,
    /// Both ends send
    #[arg(short = 'b', long)]
    pub(super) bidirectional: bool,
    /// Every second SEND is a WRITE of the same size; both count
    #[arg(long)]
    pub(super) alternate_write: bool,
    /// Which atomic
    #[arg(
        short = 'A',
        long = "atomic_type",
        visible_alias = "op",
        value_enum,
        ignore_case = true,
        default_value = "FETCH_AND_ADD"
    )]
    pub(super) atomic: AtomicKind,
    /// Which buffers messages come from and go to
    #[arg(long, value_enum, default_value = "warm")]
    pub(super) buffers: Buffers,
    /// Local ACK timeout: 4.096 us x 2^N; 0 waits for ever [default: $SPINWIRE_QP_TIMEOUT, else 14]
    #[arg(short = 'u', long = "qp-timeout", value_name = "N",  value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(super) timeout: Option<u8>,
    /// Retries without an answer [default: $SPINWIRE_QP_RETRY_CNT, else 7]
    #[arg(long, value_name = "N",  value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(super) retry_cnt: Option<u8>,
    /// Retries after "receiver not ready"; 7 is without end [default: $SPINWIRE_QP_RNR_RETRY, else 7]
    #[arg(long, value_name = "N",  value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(super) rnr_retry: Option<u8>,
    /// Code of the pause that a side without receives asks for [default: $SPINWIRE_QP_MIN_RNR_TIMER, else 12]
    #[arg(long, value_name = "N",  value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(super) min_rnr_timer: Option<u8>,
    /// How the ends find each other
    #[arg(long, value_enum, default_value = "oob")]
    pub(super) connect: Connect,
    /// Connect by the connection manager
    #[arg(short = 'R', long = "rdma_cm")]
    pub(super) rdma_cm: bool,
    /// File with the key that seals what the ends tell each other; both need the same one, made by
    /// `(umask 077; head -c 32 /dev/urandom | base64 > F)`
    #[arg(long, value_name = "F")]
    pub(super) psk_file: Option<std::path::PathBuf>,
    /// Without a key, let that cross a network all the same: whoever reads it there can reach the memory of both ends
    #[arg(long)]
    pub(super) plaintext: bool,
    /// Inject a fault: drop|delay T|dup|reorder|corrupt|partition [acks|OPCODE|all] [to END|from END] [after N] [every N] [count N] [for T] [psn N],
    /// or flip END OFFSET; the ends are client and server
    #[arg(long = "fault", value_name = "RULE")]
    pub(super) faults: Vec<String>,
    /// Where inputs are kept; with two processes here, the client's in F-0 and the server's in F-1.
    #[command(flatten)]
    pub(super) record: app::RecordTo,
    /// The server stops polling for so long, once, in the timed part
    #[arg(long, value_name = "T", value_parser = app::duration)]
    pub(super) pause_responder: Option<Duration>,
    /// The server connects wrongly, on purpose
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(super) misconnect: Option<Misconnect>,
    /// The server posts no receives
    #[arg(long)]
    pub(super) no_post_recv: bool,
    /// Keep the report and the journal of the run in this directory [default: one of its own; `last` leads to it]
    #[arg(long, value_name = "D")]
    pub(super) run_dir: Option<std::path::PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// The second process of a measurement: who started it listens there
    #[arg(long, hide = true, value_name = "A:P")]
    pub(super) part: Option<std::net::SocketAddr>,
}

/// How the ends reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    /// Shared memory where the ends share a host and user, else UDP
    Auto,
    /// Shared memory
    Shm,
    /// UDP, RoCEv2
    Udp,
}

impl From<Wire> for WireChoice {
    fn from(wire: Wire) -> Self {
        match wire {
            Wire::Auto => Self::Auto,
            Wire::Shm => Self::Shm,
            Wire::Udp => Self::Udp,
        }
    }
}

/// How the ends find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
pub(crate) enum Connect {
    /// By a TCP connection
    Oob,
    /// By the connection manager
    Cm,
}

impl Connect {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Oob => "oob",
            Self::Cm => "cm",
        }
    }
}

fn size(text: &str) -> Result<u32, String> {
    let bytes = match text.parse::<u64>() {
        Ok(bytes) => bytes,
        Err(_) => units::parse_size(text).map_err(|error| error.reason)?.get(),
    };
    u32::try_from(bytes).map_err(|_| "a message has at most 1 GiB".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(0) => app::duration(text),
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => app::duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_numbers_as_perftest_takes_them() {
        assert_eq!((size("64KiB"), size("65536")), (Ok(65536), Ok(65536)));
        assert!(size("8GiB").is_err() && size("x").is_err());
        assert_eq!(seconds("3"), Ok(Duration::from_secs(3)));
        assert_eq!(seconds("250ms"), Ok(Duration::from_millis(250)));
        assert!(seconds("0").is_err());
    }
}
