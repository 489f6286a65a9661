//! The connection manager of a host, on queue pair 1 of its engine.

use pmd_roce::cm::{Cm, CmConfig, CmEvent, Route};
use pmd_roce::engine::PostMadError;
use pmd_roce::gsi::ManagementDatagram;
use pmd_roce::ids::Instant;
use pmd_roce::sink::Flow;

use crate::host::{Host, HostId};
use crate::world::World;

impl World {
    /// Opens queue pair 1 of a host, with a manager of connections as `configure` wants it; it starts
    /// from one that agrees to the MTU of the host's port.
    ///
    /// # Panics
    /// On a host whose device has failed.
    pub fn open_cm(&mut self, host: HostId, configure: impl FnOnce(&mut CmConfig)) {
        let mut config = CmConfig {
            mtu: self.engine(host).config().mtu,
            ..CmConfig::new(host.index() as u64 + 1, self.rng.bits())
        };
        configure(&mut config);
        self.with_engine(host, |engine| engine.open_gsi().expect("the device is alive"));
        self.hosts[host.0].cm = Some(Box::new(Cm::new(config)));
    }

    /// Runs `command` on a host's connection manager.
    ///
    /// # Panics
    /// When the host has none.
    pub fn with_cm<R>(&mut self, host: HostId, command: impl FnOnce(&mut Cm, Instant) -> R) -> R {
        let now = self.now();
        let cm = self.hosts[host.0].cm.as_mut().expect("the host has a connection manager");
        let result = command(cm, now);
        self.wake(host, now);
        result
    }

    /// The next event of a host's connection manager.
    pub fn poll_cm_event(&mut self, host: HostId) -> Option<CmEvent> {
        self.hosts[host.0].cm.as_mut()?.poll_event()
    }
}

impl Host {
    /// Hands over what arrived, runs timers, and has sent what there is to say. Returns how many
    /// datagrams went either way.
    pub(crate) fn manage_connections(&mut self, now: Instant) -> usize {
        let Self { engine, cm: Some(cm), .. } = self else { return 0 };
        let mut work = 0;
        while let Some(ManagementDatagram { flow, bytes }) = engine.poll_mad() {
            // The manager counts what it does not take.
            cm.handle_mad(now, &flow, &bytes).ok();
            work += 1;
        }
        cm.handle_timeout(now);
        while let Some(transmit) = cm.poll_transmit() {
            let flow = flow_of(&transmit.route);
            let datagram = ManagementDatagram { flow, bytes: transmit.mad };
            match engine.post_mad(&datagram) {
                Ok(()) => work += 1,
                // Lost, as by the wire: it is sent again, or its connection ends.
                Err(PostMadError::Full | PostMadError::Source(_) | PostMadError::DeviceFatal) => {}
                Err(error) => panic!("{}: {error}", self.name),
            }
        }
        work
    }

    /// When the manager wants a turn.
    pub(crate) fn management_due(&mut self) -> Option<Instant> {
        self.cm.as_mut()?.poll_timeout()
    }
}

fn flow_of(route: &Route) -> Flow {
    let Route { source: src, destination: dst, traffic_class, hop_limit, .. } = *route;
    Flow { src, dst, src_port: 0, traffic_class, hop_limit }
}
