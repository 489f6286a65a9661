//! The flags of the stock programs, with their meanings.

use clap::{ArgGroup, Args, ValueEnum};
use pmd_verbs::cm::PortSpace;

/// How the ends find each other, in all of them.
const ADDRESSES: &str = "\
Addresses are names, IPv4 or IPv6 addresses of this machine's interfaces; the software NIC answers at one of them, on UDP port 4791, and
needs no privilege. Without one, a server takes the best free address that `spinwire devices` shows, and a client the one that leads to
its server. The exit code is 0 where all data came and was right, 1 where something failed, with a verdict that says what.";

/// A step that takes longer than a day has failed, whatever is said.
const LONGEST_WAIT: u64 = 86_400;

/// In all of them.
const GID_INDEX: &str = "Index of this end's address in the GID table that `spinwire devices` lists, instead of the address";

/// `rping`.
#[derive(Args, Debug)]
#[command(after_help = ADDRESSES, group = ArgGroup::new("role").args(["server", "client"]).required(true))]
pub(crate) struct RpingArgs {
    /// Be the server: serve one client, until it disconnects
    #[arg(short = 's')]
    pub(super) server: bool,
    /// Be the client
    #[arg(short = 'c', requires = "address")]
    pub(super) client: bool,
    /// The server's address; at the server, the one to serve at [default: the best one]
    #[arg(short = 'a', value_name = "ADDRESS")]
    pub(super) address: Option<String>,
    /// The client's own address
    #[arg(short = 'I', value_name = "ADDRESS", conflicts_with = "server")]
    pub(super) source: Option<String>,
    #[arg(short = 'x', long, value_name = "N", conflicts_with = "source", help = GID_INDEX)]
    pub(super) gid_index: Option<u32>,
    /// Port of the server
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Rounds [default: without end]
    #[arg(short = 'C', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) count: Option<u32>,
    /// Bytes of each ping
    #[arg(short = 'S', value_name = "SIZE", default_value_t = 64, value_parser = clap::value_parser!(u32).range(26..=65_536))]
    pub(super) size: u32,
    /// Print what was pinged
    #[arg(short = 'v')]
    pub(super) verbose: bool,
    /// Compare what comes back with what was sent; a client always does
    #[arg(short = 'V')]
    pub(super) validate: bool,
    /// Print events and addresses of buffers
    #[arg(short = 'd')]
    pub(super) debug: bool,
    /// Move the queue pair from here, instead of leaving that to the connection manager
    #[arg(short = 'q')]
    pub(super) own_qp: bool,
    /// Serve one client after the other, until told to end
    #[arg(short = 'P', conflicts_with = "client")]
    pub(super) persistent: bool,
    /// How long the other end may take for a step
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=LONGEST_WAIT))]
    pub(super) timeout: u64,
}

/// Name spaces of ports for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StreamSpace {
    /// RDMA_PS_TCP
    Tcp,
    /// RDMA_PS_IB
    Ib,
}

impl StreamSpace {
    pub(super) const fn space(self) -> PortSpace {
        match self {
            Self::Tcp => PortSpace::Tcp,
            Self::Ib => PortSpace::Ib,
        }
    }
}

/// How addresses are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AddressFormat {
    /// Names, or addresses of either kind
    Name,
    /// IPv4 addresses
    Ip,
    /// IPv6 addresses
    #[value(alias = "ip6")]
    Ipv6,
    /// GIDs, each the IP address that it stands for
    Gid,
}

/// What `ucmatose` and `udaddy` have in common.
#[derive(Args, Debug)]
pub(super) struct Exchange {
    /// Be the client of the server at this address
    #[arg(short = 's', value_name = "SERVER")]
    pub(super) server: Option<String>,
    /// The address of this end
    #[arg(short = 'b', value_name = "ADDRESS")]
    pub(super) bind: Option<String>,
    #[arg(short = 'x', long, value_name = "N", conflicts_with = "bind", help = GID_INDEX)]
    pub(super) gid_index: Option<u32>,
    /// What the addresses are
    #[arg(short = 'f', value_enum, value_name = "FORMAT", default_value_t = AddressFormat::Name)]
    pub(super) format: AddressFormat,
    /// Connections between the two
    #[arg(short = 'c', value_name = "CONNECTIONS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) connections: u32,
    /// Messages over each connection, in each direction
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(super) count: u32,
    /// Bytes of each message
    #[arg(short = 'S', value_name = "SIZE", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) size: u32,
    /// IPv4 type of service, IPv6 traffic class
    #[arg(short = 't', value_name = "TOS", default_value_t = 0)]
    pub(super) tos: u8,
    /// How long the other end may take for a step
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=LONGEST_WAIT))]
    pub(super) timeout: u64,
}

/// `ucmatose`.
#[derive(Args, Debug)]
#[command(after_help = ADDRESSES)]
pub(crate) struct UcmatoseArgs {
    #[command(flatten)]
    pub(super) exchange: Exchange,
    /// Name space of the port
    #[arg(short = 'P', value_enum, default_value_t = StreamSpace::Tcp)]
    pub(super) space: StreamSpace,
    /// Port of the server
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7471, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Move all ids to another event channel before they disconnect
    #[arg(short = 'm')]
    pub(super) migrate: bool,
    /// Local ACK timeout: 4.096 µs × 2^N [default: as follows from the path]
    #[arg(short = 'a', value_name = "N", value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(super) ack_timeout: Option<u8>,
}

/// `udaddy`.
#[derive(Args, Debug)]
#[command(after_help = ADDRESSES)]
pub(crate) struct UdaddyArgs {
    #[command(flatten)]
    pub(super) exchange: Exchange,
    /// Name space of the port: 0x111, which is RDMA_PS_UDP
    #[arg(short = 'p', value_name = "SPACE", default_value = "0x111", value_parser = datagram_space)]
    pub(super) _space: PortSpace,
}

fn datagram_space(text: &str) -> Result<PortSpace, String> {
    let number =
        text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16));
    match number {
        Ok(0x111) => Ok(PortSpace::Udp),
        _ => Err("0x111 is served, RDMA_PS_UDP; IPoIB is not for RoCE".to_owned()),
    }
}
