//! What `rdma-client` and `rdma-server` have in common: a device with an event channel, a queue pair, and one message each way. Either of
//! them can talk to `rdma_client` and `rdma_server` of librdmacm, which have the same protocol.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::IpAddr;
use std::rc::Rc as Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::cm::{EventChannel, Id};
use pmd_verbs::roce::ids::WrId;
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::{
    Access, Context, Cq, Data, Device, DeviceConfig, Mr, Qp, QpOptions, Rc, RecvWr, WcStatus,
    WireChoice, WorkRequest,
};

/// What goes wrong in an example is printed.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// The port of librdmacm's programs.
pub const PORT: u16 = 7471;
/// Bytes of a message.
pub const LEN: u32 = 16;
/// How long each step may take.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A software NIC at an address, and what tells of its connections.
#[derive(Debug)]
pub struct Host {
    cx: Context,
    /// Tells what happens to ids.
    pub channel: EventChannel,
}

impl Host {
    /// Opens it; `None`: at the first free loopback address.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn open(address: Option<IpAddr>) -> Outcome<Self> {
        let config = DeviceConfig { address, wire: WireChoice::Udp, ..DeviceConfig::default() };
        let cx = Device::open(&config)?.context(0)?;
        let channel = cx.open_cm(|_| {})?.create_channel()?;
        Ok(Self { cx, channel })
    }

    /// Its address.
    pub fn ip(&self) -> IpAddr {
        self.cx.device().gid().ip()
    }
}

/// A connection's queue pair with room for one message each way.
#[derive(Debug)]
pub struct Talk {
    cq: Cq,
    qp: Shared<Qp<Rc>>,
    mr: Mr,
}

impl Talk {
    /// Gives an id its queue pair, and posts a receive: it is there before the peer can send.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn on(host: &Host, id: &Id) -> Outcome<Self> {
        let (pd, cq) = (host.cx.alloc_pd(), host.cx.create_cq(4)?);
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: LEN,
        };
        let options =
            QpOptions { send_cq: &cq, recv_cq: &cq, srq: None, xrcd: None, cap, signal_all: true };
        let qp = id.create_qp::<Rc>(&pd, &options)?;
        let region = Region::create(&RegionSpec {
            name: "message",
            len: u64::from(LEN),
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        })?;
        let mr = pd.register(&Arc::new(region), 0, u64::from(LEN), Access::LOCAL_WRITE)?;
        qp.post_recv(&RecvWr { wr_id: WrId(0), sges: &[mr.sge(0, LEN)] })?;
        Ok(Self { cq, qp, mr })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When it cannot be posted.
    pub fn send(&self, text: &[u8; LEN as usize]) -> Outcome<()> {
        Ok(self.qp.post_send(&WorkRequest::send(Data::Inline(&[text])))?)
    }

    /// Waits for so many completions.
    ///
    /// # Errors
    /// When one of them is no success, or none comes.
    pub fn complete(&self, count: usize) -> Outcome<()> {
        let (start, mut done) = (Instant::now(), Vec::new());
        while done.len() < count {
            self.cq.poll(count - done.len(), |completion| done.push(completion));
            if let Some(failed) = done.iter().find(|one| one.status != WcStatus::Success) {
                return Err(format!("{:?}: {}", failed.opcode, failed.status.text()).into());
            }
            if start.elapsed() > LIMIT {
                return Err(format!("{} of {count} requests completed", done.len()).into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// What was received.
    ///
    /// # Errors
    /// Never: the memory is there.
    pub fn received(&self) -> Outcome<String> {
        let mut text = [0; LEN as usize];
        self.mr.region().read_at(0, &mut text)?;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
    }
}
