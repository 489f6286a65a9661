//! Bringing a queue pair up, and up again after a failure: the steps, each of them one edge of the state table.

use pmd_ledger::recovery::Failure;
use pmd_ledger::{Cause, Flushes, Side};
use pmd_observe::journal::By;
use pmd_roce::ids::{PathMtu, Qpn};
use pmd_roce::qp::attr::{AddressVector, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::Access;

use super::ConnectError;
use super::options::EndpointOptions;
use super::queue_pair::{Held, QueuePairEndpoint};
use crate::connect::{Hello, PathWish};
use crate::context::Context;

/// The steps by which a failed connection comes back, on the same queue pair. Who takes them in which order is
/// [`Recovery`](pmd_ledger::recovery::Recovery); what is in flight settles by [`Endpoint::poll`](super::Endpoint::poll) all the
/// while.
pub trait Reconnect {
    /// What failed: the queue pair, or only its send queue.
    fn failure(&self) -> Failure;

    /// Closes admission, then brings the queue pair to Error, where what is in flight is flushed.
    ///
    /// # Errors
    /// [`ConnectError::Device`] when it does not show Error afterwards.
    fn set_error(&mut self) -> Result<(), ConnectError>;

    /// Whether nothing is in flight any more, in the queues that failed.
    fn is_drained(&self) -> bool;

    /// Fails what is in flight: nobody waits for completions any more. Late ones change nothing.
    fn abandon(&mut self);

    /// To RESET. Receives are gone with everything else.
    ///
    /// # Errors
    /// [`ConnectError::Device`].
    fn reset(&mut self) -> Result<(), ConnectError>;

    /// Destroys the queue pair and creates another, where it refuses to go where it must.
    ///
    /// # Errors
    /// [`ConnectError::Device`].
    fn recreate(&mut self) -> Result<(), ConnectError>;

    /// Looks up again what may have changed, address and MTU, and chooses another first PSN.
    ///
    /// # Errors
    /// [`ConnectError::Device`] when the address is nowhere in the device's table.
    fn refresh(&mut self) -> Result<(), ConnectError>;

    /// To INIT: from here on receives are taken.
    ///
    /// # Errors
    /// [`ConnectError::Device`].
    fn init(&mut self) -> Result<(), ConnectError>;

    /// What the peer must know to reach the queue pair.
    fn hello(&self) -> Vec<u8>;

    /// Whether this is a hello of the peer that this side was connected to.
    fn is_of_the_peer(&self, hello: &[u8]) -> bool;

    /// To RTR, toward the peer whose hello this is.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn rtr(&mut self, peer: &[u8]) -> Result<(), ConnectError>;

    /// To RTS, toward the same peer: all work is taken again.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn rts(&mut self, peer: &[u8]) -> Result<(), ConnectError>;

    /// From SQE back to RTS.
    ///
    /// # Errors
    /// [`ConnectError::Device`].
    fn sqe_to_rts(&mut self) -> Result<(), ConnectError>;
}

impl QueuePairEndpoint {
    /// What this side tells a peer.
    pub(super) fn introduce(cx: &Context, options: &EndpointOptions, qpn: Qpn) -> Hello {
        let mut hello = cx.hello(options.transport, qpn);
        hello.mtu = options.mtu.unwrap_or(PathMtu::B4096).min(hello.mtu);
        hello.responder_resources = options.rd_atomic;
        hello.initiator_depth = options.rd_atomic;
        hello
    }

    pub(super) fn enter_init(&self, by: By) -> Result<(), ConnectError> {
        let mut init = QpAttr::new(QpState::Init);
        init.access = Access::REMOTE_WRITE;
        if self.options.transport == Transport::Rc {
            init.access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        self.qp.modify(
            by,
            &init,
            AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        )
    }

    /// Port and index of this side's address in the device's table, which may have moved.
    fn source(&self) -> Result<(u8, u8), ConnectError> {
        let gid = self.hello.gid;
        let found = self.cx.with(|core| core.find_gid(gid));
        found.ok_or_else(|| {
            let name = self.cx.device().name();
            ConnectError::Device(format!("{name}: the address {gid} is not in the table any more"))
        })
    }

    /// Whether the path to a peer is shared memory.
    pub(super) fn leads_by_memory(&self, peer: &Hello) -> Result<bool, ConnectError> {
        self.of_one_service(peer)?;
        Ok(self.cx.path(&self.hello, peer)?.link.is_some())
    }

    fn of_one_service(&self, peer: &Hello) -> Result<(), ConnectError> {
        let [ours, theirs] = [self.hello.transport, peer.transport];
        if ours == theirs {
            return Ok(());
        }
        let (ours, theirs) = (ours.to_string(), theirs.to_string());
        Err(ConnectError::Mismatch { what: "transport", ours, theirs })
    }

    /// Toward a peer. Returns whether the path is shared memory.
    pub(super) fn enter_rtr(&mut self, by: By, peer: &Hello) -> Result<bool, ConnectError> {
        self.of_one_service(peer)?;
        let mtu = self.hello.mtu;
        let (port, sgid_index) = self.source()?;
        let path = self.cx.path(&self.hello, peer)?;
        let mut rtr = QpAttr::new(QpState::Rtr);
        rtr.av = AddressVector { port, sgid_index, ..path };
        rtr.path_mtu = mtu.min(peer.mtu);
        rtr.dest_qpn = peer.qpn;
        rtr.rq_psn = peer.psn;
        let mut mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN;
        if self.options.transport == Transport::Rc {
            rtr.max_dest_rd_atomic = self.options.rd_atomic;
            rtr.min_rnr_timer = self.options.min_rnr_timer;
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        self.qp.modify(by, &rtr, mask)?;
        let shares_memory = path.link.is_some();
        self.peer.get_or_insert_with(|| peer.speaker());
        self.remote = Some(peer.source());
        self.connected(shares_memory);
        Ok(shares_memory)
    }

    pub(super) fn enter_rts(&self, by: By, peer: &Hello) -> Result<(), ConnectError> {
        let mut rts = QpAttr::new(QpState::Rts);
        rts.sq_psn = self.hello.psn;
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if self.options.transport == Transport::Rc {
            rts.max_rd_atomic = self.options.rd_atomic.min(peer.responder_resources);
            rts.timeout = self.options.timeout;
            rts.retry_cnt = self.options.retry_cnt;
            rts.rnr_retry = self.options.rnr_retry;
            mask |= AttrMask::MAX_QP_RD_ATOMIC
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY;
        }
        self.qp.modify(by, &rts, mask)
    }
}

impl Reconnect for QueuePairEndpoint {
    fn failure(&self) -> Failure {
        match self.qp.state() {
            QpState::Sqe => Failure::SendQueue,
            _ => Failure::QueuePair,
        }
    }

    fn set_error(&mut self) -> Result<(), ConnectError> {
        // Where this side had noticed something itself, that remains the cause.
        let drain = self.cx.device().switches().drain_ns;
        self.fail(Cause::PeerFailed, Flushes::Within(drain));
        self.qp.modify(By::Recovery, &QpAttr::new(QpState::Error), AttrMask::STATE)?;
        match self.qp.state() {
            QpState::Error => Ok(()),
            state => Err(ConnectError::Device(format!("asked for Error, it shows {state:?}"))),
        }
    }

    fn is_drained(&self) -> bool {
        match self.failure() {
            Failure::SendQueue => self.account.balance(Side::Send).in_flight == 0,
            Failure::QueuePair => self.account.is_empty(),
        }
    }

    fn abandon(&mut self) {
        self.fail(Cause::PeerFailed, Flushes::Never);
    }

    fn reset(&mut self) -> Result<(), ConnectError> {
        self.fail(Cause::Reset, Flushes::Never);
        self.qp.modify(By::Recovery, &QpAttr::new(QpState::Reset), AttrMask::STATE)
    }

    fn recreate(&mut self) -> Result<(), ConnectError> {
        self.fail(Cause::Reset, Flushes::Never);
        self.qp = Held::create(&self.pd, &self.cq, &self.options)?;
        Ok(())
    }

    fn refresh(&mut self) -> Result<(), ConnectError> {
        self.hello = Self::introduce(&self.cx, &self.options, self.qp.number());
        // Both sides must choose the same again.
        self.hello.path = match self.path {
            "local" => PathWish::SharedMemory,
            _ => PathWish::Packets,
        };
        self.source().map(|_| ())
    }

    fn init(&mut self) -> Result<(), ConnectError> {
        self.enter_init(By::Recovery)?;
        let reopened = self.account.reopen(self.identity());
        reopened.map(|_| ()).map_err(|error| ConnectError::Device(error.to_string()))
    }

    fn hello(&self) -> Vec<u8> {
        self.hello.encode()
    }

    fn is_of_the_peer(&self, hello: &[u8]) -> bool {
        let speaker = Hello::decode(hello).map(|hello| hello.speaker());
        speaker.is_ok_and(|speaker| self.peer.is_none_or(|peer| peer == speaker))
    }

    fn rtr(&mut self, peer: &[u8]) -> Result<(), ConnectError> {
        self.enter_rtr(By::Recovery, &Hello::decode(peer)?).map(|_| ())
    }

    fn rts(&mut self, peer: &[u8]) -> Result<(), ConnectError> {
        self.enter_rts(By::Recovery, &Hello::decode(peer)?)?;
        self.failed = None;
        self.first_failure = None;
        Ok(())
    }

    fn sqe_to_rts(&mut self) -> Result<(), ConnectError> {
        self.qp.modify(By::Recovery, &QpAttr::new(QpState::Rts), AttrMask::STATE)?;
        self.account.release(Side::Send);
        self.failed = None;
        self.first_failure = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pmd_mem::{Hugepages, Key, Numa, Region, RegionSpec, Seal};
    use pmd_roce::work::WcStatus;

    use super::*;
    use crate::device::{Device, DeviceConfig};
    use crate::endpoint::{Endpoint, Local, Op, Outcome, Pending, Settled, SubmitError, Token};

    fn region() -> Arc<Region> {
        let spec = RegionSpec {
            name: "test",
            len: 4096,
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        };
        Arc::new(Region::create(&spec).expect("a page of memory"))
    }

    /// A peer comes back as itself, on whichever queue pair and address; nobody else comes in its place.
    #[test]
    fn only_the_peer_that_was_met_comes_back() {
        let device =
            Device::open(&DeviceConfig { lcores: 2, ..DeviceConfig::default() }).expect("a device");
        let cxs = [0, 1].map(|lcore| device.context(lcore).expect("its lcore"));
        let options = EndpointOptions::default();
        let [mut a, mut b] = [0, 1].map(|at| cxs[at].prepare(&options).expect("an endpoint"));
        b.connect(&a.hello(b"")).expect("asked");
        a.connect(&b.hello(b"")).expect("answered");
        let met = Hello::decode(&b.hello(b"")).expect("its own hello");
        let steps = a.endpoint.reconnect().expect("it comes back");
        let again = Hello { qpn: Qpn::new(77), psn: pmd_roce::ids::Psn::new(5), ..met.clone() };
        assert!(steps.is_of_the_peer(&met.encode()) && steps.is_of_the_peer(&again.encode()));
        let another = [
            Hello { pid: met.pid + 1, ..met.clone() },
            Hello { nonce: None, ..met.clone() },
            Hello { transport: Transport::Uc, ..met.clone() },
            Hello {
                host: crate::connect::HostId { uid: met.host.uid + 1, ..met.host },
                ..met.clone()
            },
        ];
        for hello in another {
            assert!(!steps.is_of_the_peer(&hello.encode()), "{hello:?}");
        }
        for garbage in [&b""[..], b"SPWH", &met.encode()[1..]] {
            assert!(!steps.is_of_the_peer(garbage));
        }
    }

    /// E-23, S3-32: a send queue that failed alone (SQE) takes nothing until it has drained, keeps its receives, and goes back
    /// to RTS by itself.
    #[test]
    fn e23_a_send_queue_that_failed_alone_goes_back_to_rts() {
        let device =
            Device::open(&DeviceConfig { lcores: 2, ..DeviceConfig::default() }).expect("a device");
        let cxs = [0, 1].map(|lcore| device.context(lcore).expect("its lcore"));
        let options = EndpointOptions { transport: Transport::Uc, ..EndpointOptions::default() };
        let [mut a, mut b] = [0, 1].map(|at| cxs[at].prepare(&options).expect("an endpoint"));
        b.connect(&a.hello(b"")).expect("asked");
        a.connect(&b.hello(b"")).expect("answered");
        let mut end = a.endpoint;
        let [bad, good] = [region(), region()];
        let keys = [&bad, &good].map(|region| end.register(region).expect("registered"));
        let local = |key| Local { key, offset: 0, len: 64 };
        end.submit(Op::Recv { into: local(keys[1]) }, Token(9)).expect("a receive");
        // The memory is gone while a request points to it.
        let revoked = end.local[0].lkey().0;
        device.soft().expect("a software NIC").deregister(Key(revoked), &bad);
        let mut settled: Vec<Settled> = Vec::new();
        let mut turns = |end: &mut QueuePairEndpoint, count: usize| {
            settled.clear();
            for _ in 0..100_000 {
                for cx in &cxs {
                    cx.progress(device.now());
                }
                end.poll(&mut |one| settled.push(one));
                if settled.len() == count {
                    break;
                }
            }
            settled.iter().map(|one| (one.token.0, one.outcome)).collect::<Vec<_>>()
        };
        for (token, key) in [keys[0], keys[1]].into_iter().enumerate() {
            let op = Op::Send { from: local(key), imm: None };
            end.submit(op, Token(token as u64)).expect("it has room");
        }
        let failed = Outcome::Failed(WcStatus::LocProt);
        assert_eq!(turns(&mut end, 2), [(0, failed), (1, Outcome::Flushed)]);
        let good = Op::Send { from: local(keys[1]), imm: None };
        assert_eq!(end.submit(good, Token(2)), Err(SubmitError::Degraded));
        let steps = end.reconnect().expect("it comes back");
        assert_eq!((steps.failure(), steps.is_drained()), (Failure::SendQueue, true));
        steps.sqe_to_rts().expect("to RTS");
        end.submit(good, Token(2)).expect("it takes work again");
        assert_eq!(turns(&mut end, 1), [(2, Outcome::Done)]);
        assert_eq!(end.account.balance(Side::Recv).in_flight, 1, "the receive is still posted");
    }
}
