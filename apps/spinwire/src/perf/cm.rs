//! Queue pairs that find each other by the connection manager's protocol.
//!
//! The control channel stays what it is: it carries what no private data has room for, and lives on beside the connections.
//! On it the server says where its manager listens, and each end names its queue pairs by a number that nobody can guess. A
//! request carries that number back, so that it is the peer's and not somebody else's.

use std::net::SocketAddr;

use pmd_verbs::cm::{
    CmAgent, CmFailure, ConnParam, ConnectParams, Established, EventChannel, EventKind, Id,
    LocalQp, Negotiated, OpenCmError, PortSpace, Request, Unreached,
};
use pmd_verbs::connect::Hello;
use pmd_verbs::roce::ids::{PathMtu, Qpn};
use pmd_verbs::roce::qp::state::Transport as Kind;
use pmd_verbs::{Context, Service};

use super::failure::Failure;
use super::limits::CONNECT;
use super::params::Params;

/// The manager's part of one lcore.
#[derive(Debug)]
pub(super) struct Managed {
    channel: EventChannel,
    /// The server's.
    listener: Option<Id>,
    /// Connections end with them.
    ids: Vec<Id>,
    _agent: CmAgent,
}

/// Which queue pair of the peer a request is for.
pub(super) type Number = [u8; 8];

/// Of the queue pair of this index, which the client introduced like that.
pub(super) fn number(index: usize, asked: &Hello) -> Number {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    let words = [index, asked.generation].map(u32::to_be_bytes);
    words.concat().try_into().unwrap_or_default()
}

impl Managed {
    /// Opens the device's manager; the server's listens.
    pub(super) fn open(
        cx: &Context,
        transport: Kind,
        mtu: Option<PathMtu>,
        server: bool,
    ) -> Result<Self, Failure> {
        let agent =
            cx.open_cm(|config| config.mtu = mtu.map_or(config.mtu, |it| it.min(config.mtu)));
        let agent = agent.map_err(|error| match error {
            OpenCmError::NoPackets => {
                Failure::Usage("--connect cm needs packets: use --wire auto or udp".into())
            }
            error => Failure::device(error),
        })?;
        let channel = agent.create_channel().map_err(Failure::device)?;
        let listen = || {
            let id = channel.create_id(space(transport));
            id.bind(SocketAddr::new(cx.device().gid().ip(), 0)).map_err(Failure::device)?;
            id.listen(0).map_err(Failure::device)?;
            Ok::<_, Failure>(id)
        };
        let listener = server.then(listen).transpose()?;
        Ok(Self { channel, listener, ids: Vec::new(), _agent: agent })
    }

    /// Where the server listens; 0 at a client.
    pub(super) fn port(&self) -> u16 {
        let local = self.listener.as_ref().and_then(|id| id.view().local);
        local.map_or(0, |local| local.port())
    }

    /// Connects a queue pair of the client in INIT, which `up` brings to RTS.
    pub(super) fn ask<S: Service>(
        &mut self,
        ours: &Hello,
        number: Number,
        to: SocketAddr,
        params: &Params,
        up: impl FnOnce(&Negotiated) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let id = self.channel.open(PortSpace::Tcp, to, CONNECT).map_err(failed)?;
        let asks = wishes::<S>(params, ours, &number);
        id.connect(&asks).map_err(Failure::device)?;
        let wanted = "CONNECT_RESPONSE";
        match self.channel.outcome(&id, wanted, CONNECT).map_err(failed)? {
            EventKind::ConnectResponse(terms, _) => up(&terms)?,
            got => return Err(failed(CmFailure::Unexpected { wanted, got: got.into() })),
        }
        id.establish(&[]).map_err(Failure::device)?;
        self.ids.push(id);
        Ok(())
    }

    /// Accepts the next request. `up` brings the queue pair that it is for to RTS, before the client can know of it.
    pub(super) fn answer<S: Service>(
        &mut self,
        ours: &[Hello],
        asked: &[Hello],
        params: &Params,
        up: impl FnOnce(usize, &Negotiated) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (id, request) = self.request()?;
        let Request::Connection(request) = request else { return Err(stranger()) };
        let index = meant(request.private_data.as_bytes(), asked).ok_or_else(stranger)?;
        let answer = wishes::<S>(params, &ours[index], &[]);
        let terms = id.negotiate(&answer).map_err(Failure::device)?;
        up(index, &terms)?;
        self.channel.accept(&id, &answer, CONNECT).map_err(failed)?;
        self.ids.push(id);
        Ok(())
    }

    /// Looks up a queue pair of the server that takes datagrams: its number and Q_Key.
    pub(super) fn look_up(
        &mut self,
        number: Number,
        to: SocketAddr,
    ) -> Result<(Qpn, u32), Failure> {
        let id = self.channel.open(PortSpace::Udp, to, CONNECT).map_err(failed)?;
        let found = self.channel.connect(&id, &ConnectParams::with(&number), CONNECT);
        match found.map_err(failed)? {
            (Established::Datagrams { qpn, qkey, .. }, _) => Ok((qpn, qkey)),
            (Established::Connection(_), _) => Err(stranger()),
        }
    }

    /// Says which queue pair the next lookup is for. Returns its index.
    pub(super) fn tell(&mut self, ours: &[Hello], asked: &[Hello]) -> Result<usize, Failure> {
        let (id, request) = self.request()?;
        let Request::Datagrams(request) = request else { return Err(stranger()) };
        let index = meant(request.private_data.as_bytes(), asked).ok_or_else(stranger)?;
        let Hello { qpn, psn, .. } = ours[index];
        let qp = Some(LocalQp { qpn, psn, srq: false });
        id.accept(&ConnectParams { qp, ..ConnectParams::default() }).map_err(Failure::device)?;
        self.ids.push(id);
        Ok(index)
    }

    fn request(&self) -> Result<(Id, Request), Failure> {
        let listener = self.listener.as_ref().ok_or_else(|| Failure::device("nobody listens"))?;
        self.channel.request(listener, CONNECT).map_err(failed)
    }
}

/// Name space of the ports of a service.
fn space(transport: Kind) -> PortSpace {
    if transport == Kind::Ud { PortSpace::Udp } else { PortSpace::Tcp }
}

/// The queue pair that a request is for, if it is one of those that were introduced.
fn meant(data: &[u8], asked: &[Hello]) -> Option<usize> {
    let given = data.first_chunk::<8>()?;
    let index = u32::from_be_bytes(*given.first_chunk()?) as usize;
    (number(index, asked.get(index)?) == *given).then_some(index)
}

fn wishes<'a, S: Service>(params: &Params, ours: &Hello, data: &'a [u8]) -> ConnectParams<'a> {
    let param = ConnParam {
        responder_resources: params.outs,
        initiator_depth: params.outs,
        retry_count: params.retry_cnt,
        rnr_retry_count: params.rnr_retry,
        min_rnr_timer: params.min_rnr_timer,
        ack_timeout: Some(params.timeout),
        ..ConnParam::DEFAULT
    };
    let qp = Some(LocalQp { qpn: ours.qpn, psn: ours.psn, srq: false });
    ConnectParams { param, private_data: data, qp, transport: S::TRANSPORT }
}

#[expect(clippy::needless_pass_by_value, reason = "a mapping of errors")]
fn failed(failure: CmFailure) -> Failure {
    let silent = match &failure {
        CmFailure::Late { .. } => true,
        CmFailure::Failed(kind) => matches!(
            **kind,
            EventKind::Unreachable(Unreached::Silence(_) | Unreached::LookupSilence)
        ),
        _ => false,
    };
    Failure::Unmet { reason: failure.to_string(), silent }
}

fn stranger() -> Failure {
    Failure::Device("the connection manager was asked for something that nobody introduced".into())
}

#[cfg(test)]
mod tests {
    use pmd_verbs::{Device, DeviceConfig};

    use super::*;

    #[test]
    fn a_request_is_for_whom_it_names() {
        let device = Device::open(&DeviceConfig::default()).expect("a device");
        let cx = device.context(0).expect("its lcore");
        let asked = [0x0102_0304, 7]
            .map(|generation| Hello { generation, ..cx.hello(Kind::Rc, Qpn::new(5)) });
        let one = number(1, &asked[1]);
        assert_eq!(one, [0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(meant(&[&one[..], &[0; 48]].concat(), &asked), Some(1));
        for wrong in [[0, 0, 0, 0, 0, 0, 0, 7], [0, 0, 0, 2, 0, 0, 0, 7], [0, 0, 0, 1, 0, 0, 0, 8]]
        {
            assert_eq!(meant(&wrong, &asked), None, "{wrong:?}");
        }
        assert_eq!(meant(&one[..7], &asked), None);
    }
}
