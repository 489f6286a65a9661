//! This end: a software NIC at the right address, with an event channel and memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_observe::{Code, Owner, Verdict};
use pmd_verbs::cm::{CmAgent, CmFailure, EventChannel, EventKind, Id, PortSpace, Unreached};
use pmd_verbs::roce::ids::Gid;
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::{
    Access, Context, Cq, Device, DeviceConfig, Mr, OpenError, Pd, QpOptions, WireChoice,
    soft_addresses,
};

use super::args::AddressFormat;
use super::failure::Failure;

/// The port of RoCEv2, toward which the kernel is asked for the way.
const ROCE_PORT: u16 = 4791;

/// An open device.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) cx: Context,
    pub(super) agent: CmAgent,
    pub(super) channel: EventChannel,
    pub(super) pd: Pd,
    /// How long a step may take.
    pub(super) limit: Duration,
}

impl Host {
    /// A device at an address; neither that nor an index: the first free loopback address. `flag` is the one that names
    /// another.
    fn open(
        address: Option<IpAddr>,
        gid_index: Option<u32>,
        flag: &str,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let wire = WireChoice::Udp;
        let config = DeviceConfig { address, gid_index, wire, ..DeviceConfig::default() };
        let opened = Device::open(&config).and_then(|device| device.context(0));
        let cx = opened.map_err(|error| {
            let failure = Failure::local(&error);
            match error {
                OpenError::Gid { reason, .. } => Failure::usage(format!("-x: {reason}")),
                OpenError::Address { .. } => Failure::of(failure.verdict.turn(flag)),
                _ => failure,
            }
        })?;
        let agent = cx.open_cm(|_| {}).map_err(Failure::local)?;
        let channel = agent.create_channel()?;
        let pd = cx.alloc_pd();
        Ok(Self { cx, agent, channel, pd, limit: Duration::from_secs(seconds) })
    }

    /// A server: at this address, at the one with this index, or the best that is free. Its address is printed by the caller.
    pub(super) fn serving(
        address: Option<IpAddr>,
        gid_index: Option<u32>,
        flag: &str,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let ip = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        if !ip.is_unspecified() || gid_index.is_some() {
            let address = Some(ip).filter(|ip| !ip.is_unspecified());
            return Self::open(address, gid_index, flag, seconds);
        }
        let found = soft_addresses()?;
        let free = |gid: Gid| gid.is_ipv4() == ip.is_ipv4();
        let choice = found.choice.filter(|choice| free(choice.gid)).map(|choice| choice.gid.ip());
        let other = found.addresses.iter().filter(|a| a.taken.is_none() && free(a.gid.gid));
        Self::open(choice.or_else(|| other.map(|a| a.gid.gid.ip()).next()), None, flag, seconds)
    }

    /// A client: at this address, at the one with this index, or at the one that leads to its server.
    pub(super) fn toward(
        server: SocketAddr,
        address: Option<IpAddr>,
        gid_index: Option<u32>,
        flag: &str,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let ip = match address {
            _ if gid_index.is_some() => address,
            Some(ip) => Some(ip),
            None => match leading_to(server.ip())? {
                // The server is here and has that address itself. From whichever other one leads to it.
                ip if ip == server.ip() && ip.is_ipv6() => Some(beside(ip)?),
                ip if ip.is_loopback() || ip == server.ip() => None,
                ip => Some(ip),
            },
        };
        Self::open(ip, gid_index, flag, seconds)
    }

    /// An id that listens here.
    pub(super) fn listen(&self, space: PortSpace, port: u16) -> Result<Id, Failure> {
        let id = self.channel.create_id(space);
        id.bind(SocketAddr::new(self.ip(), port))?;
        id.listen(0)?;
        Ok(id)
    }

    /// The address of this end.
    pub(super) fn ip(&self) -> IpAddr {
        self.cx.device().gid().ip()
    }

    /// Why a server was not reached, with where it was looked for.
    pub(super) fn unreached(&self, failure: CmFailure, server: SocketAddr) -> Failure {
        let silent = match &failure {
            CmFailure::Late { .. } => true,
            CmFailure::Failed(kind) => matches!(
                **kind,
                EventKind::Unreachable(Unreached::Silence(_) | Unreached::LookupSilence)
            ),
            _ => false,
        };
        let (ip, port) = (server.ip(), server.port());
        let mut arrived = 0;
        self.cx.counters(|name, count| arrived += if name == "rx_packets" { count } else { 0 });
        if silent {
            let text = format!(
                "nothing answered at {ip}, UDP port {ROCE_PORT}: no server runs there, it serves somebody else, \
                 or a firewall drops the packets"
            );
            let verdict = Verdict::new(Code::LinkDead, Owner::Remote, text);
            let came = format!("packets that came here, of anybody: {arrived}");
            return Failure::of(verdict.because(came).because(failure.to_string()));
        }
        let mut failure = Failure::from(failure);
        failure.verdict = failure.verdict.because(format!("{ip} was asked for port {port}"));
        failure
    }

    pub(super) fn cq(&self, depth: u32) -> Result<Cq, Failure> {
        self.cx.create_cq(depth.max(1)).map_err(Failure::local)
    }

    pub(super) fn memory(&self, len: u64, rights: Access) -> Result<Mr, Failure> {
        self.register(&region(len)?, rights)
    }

    /// All of a region. The device keeps every region that it has seen: who serves one client after the other registers
    /// one region again and again, with a key of its own for each.
    pub(super) fn register(&self, region: &Arc<Region>, rights: Access) -> Result<Mr, Failure> {
        self.pd.register(region, 0, region.len(), rights).map_err(Failure::local)
    }
}

/// Memory that can be registered.
pub(super) fn region(len: u64) -> Result<Arc<Region>, Failure> {
    let spec = RegionSpec {
        name: "stock",
        len,
        hugepages: Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::Data,
    };
    Ok(Arc::new(Region::create(&spec).map_err(Failure::local)?))
}

/// A queue pair of these depths, all of whose requests complete.
pub(super) const fn options<'a>(
    send_cq: &'a Cq,
    recv_cq: &'a Cq,
    (sends, receives): (u32, u32),
    inline: u32,
) -> QpOptions<'a> {
    let cap = QpCap {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: inline,
    };
    QpOptions { send_cq, recv_cq, srq: None, xrcd: None, cap, signal_all: true }
}

/// An IPv6 address of this machine that is free, beside one that is not.
fn beside(ip: IpAddr) -> Result<IpAddr, Failure> {
    let found = soft_addresses()?;
    let mut free = found.addresses.iter().filter(|one| one.taken.is_none());
    let other = free.find_map(|one| match one.gid.gid.ip() {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() && IpAddr::V6(v6) != ip => Some(v6.into()),
        _ => None,
    });
    other.ok_or_else(|| {
        Failure::usage(format!(
            "the server is on this machine, and no other IPv6 address is free beside {ip}: add one, as in \
             `sudo ip -6 address add fd00::77/128 dev lo`"
        ))
    })
}

/// The address that a name means, at no port.
pub(super) fn address(
    name: Option<&str>,
    format: AddressFormat,
) -> Result<Option<IpAddr>, Failure> {
    name.map(|name| Ok(resolve(name, 0, format)?.ip())).transpose()
}

/// The address that a name means.
pub(super) fn resolve(name: &str, port: u16, format: AddressFormat) -> Result<SocketAddr, Failure> {
    let literal = match format {
        AddressFormat::Name => None,
        AddressFormat::Ip => Some(name.parse().map(IpAddr::V4)),
        AddressFormat::Ipv6 => Some(name.parse().map(IpAddr::V6)),
        AddressFormat::Gid => Some(name.parse().map(|gid: Ipv6Addr| gid.to_canonical())),
    };
    if let Some(literal) = literal {
        let ip = literal.map_err(|_| Failure::usage(format!("{name}: not as -f says")))?;
        return Ok(SocketAddr::new(ip, port));
    }
    let found = (name, port).to_socket_addrs().map_err(|error| error.to_string());
    let first = found.and_then(|mut all| all.next().ok_or_else(|| "it has no address".to_owned()));
    first.map_err(|error| Failure::usage(format!("{name}: {error}")))
}

/// The address of this machine that packets to `ip` leave from. Nothing is sent.
fn leading_to(ip: IpAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let way = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, ROCE_PORT))?;
        socket.local_addr()
    });
    way.map(|local| local.ip())
        .map_err(|error| Failure::usage(format!("no way from here to {ip}: {error}")))
}
