//! This end: a software NIC at the right address, with an event channel and memory.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
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
    /// A device at an address; `None`: the first free loopback address. `flag` is the one that names another.
    fn open(address: Option<IpAddr>, flag: &str, seconds: u64) -> Result<Self, Failure> {
        let config = DeviceConfig { address, wire: WireChoice::Udp, ..DeviceConfig::default() };
        let opened = Device::open(&config).and_then(|device| device.context(0));
        let cx = opened.map_err(|error| {
            let failure = Failure::local(&error);
            match error {
                OpenError::Address { .. } => Failure::of(failure.verdict.turn(flag)),
                _ => failure,
            }
        })?;
        let agent = cx.open_cm(|_| {}).map_err(Failure::local)?;
        let channel = agent.create_channel()?;
        let pd = cx.alloc_pd();
        Ok(Self { cx, agent, channel, pd, limit: Duration::from_secs(seconds) })
    }

    /// A server: at this address, or the best that is free. Its address is printed by the caller.
    pub(super) fn serving(
        address: Option<&str>,
        flag: &str,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let ip = match address {
            Some(name) => resolve(name, 0)?.ip(),
            None => IpAddr::from([0, 0, 0, 0]),
        };
        if !ip.is_unspecified() {
            return Self::open(Some(ip), flag, seconds);
        }
        let found = soft_addresses()?;
        let free = |gid: Gid| gid.is_ipv4() == ip.is_ipv4();
        let choice = found.choice.filter(|choice| free(choice.gid)).map(|choice| choice.gid.ip());
        let other = found.addresses.iter().filter(|a| a.taken.is_none() && free(a.gid.gid));
        Self::open(choice.or_else(|| other.map(|a| a.gid.gid.ip()).next()), flag, seconds)
    }

    /// A client: at this address, or the one that leads to its server.
    pub(super) fn toward(
        server: SocketAddr,
        address: Option<&str>,
        flag: &str,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let ip = match address {
            Some(name) => Some(resolve(name, 0)?.ip()),
            // The server has its own loopback address, and this end another one.
            None if server.ip().is_loopback() && server.is_ipv4() => None,
            None => Some(leading_to(server.ip())?),
        };
        Self::open(ip, flag, seconds)
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

/// The address that a name means.
pub(super) fn resolve(name: &str, port: u16) -> Result<SocketAddr, Failure> {
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
