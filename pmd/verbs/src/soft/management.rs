//! Connection management of an lcore: what passes queue pair 1 goes to the manager, and what that has to
//! say goes out.

use pmd_roce::cm::{Cm, CmConfig, Route};
use pmd_roce::engine::{PostMadError, ResourceError};
use pmd_roce::gsi::ManagementDatagram;
use pmd_roce::ids::{Instant, Qpn};
use pmd_roce::sink::Flow;

use super::core::Core;

impl Core {
    /// Opens queue pair 1 with a manager on it.
    pub(crate) fn open_cm(&mut self, config: CmConfig) -> Result<(), ResourceError> {
        self.engine.open_gsi()?;
        self.cm = Some(Box::new(Cm::new(config)));
        Ok(())
    }

    /// Hands the manager what arrived, and tells it the time.
    pub(crate) fn receive_mads(&mut self, now: Instant) {
        let Self { cm: Some(cm), engine, .. } = self else { return };
        while let Some(ManagementDatagram { flow, bytes }) = engine.poll_mad() {
            if let Err(reason) = cm.handle_mad(now, &flow, &bytes) {
                tracing::debug!(
                    "a management datagram from {} changes nothing: {reason}",
                    flow.src
                );
            }
        }
        cm.handle_timeout(now);
        self.ring_for_management();
    }

    /// Wakes whoever waits for an event of the manager.
    pub(crate) fn ring_for_management(&self) {
        if let (Some(cm), Some(bell)) = (&self.cm, &self.cm_bell)
            && cm.has_events()
        {
            bell.ring();
        }
    }

    /// Data has come to a queue pair: its peer considers it connected, whether its word has come or not.
    pub(crate) fn note_communication(&mut self, qpn: Qpn) {
        let Some(cm) = &mut self.cm else { return };
        if cm.communication_established_at(qpn) {
            self.ring_for_management();
        }
    }

    /// Hands the engine what the manager wants sent.
    pub(crate) fn post_mads(&mut self) {
        let Self { cm: Some(cm), engine, .. } = self else { return };
        while let Some(transmit) = cm.poll_transmit() {
            let flow = flow(&transmit.route);
            match engine.post_mad(&ManagementDatagram { flow, bytes: transmit.mad }) {
                Ok(()) => {}
                // Lost, as on the wire: sent again in time.
                Err(error @ PostMadError::Full) => tracing::debug!("{error}"),
                Err(error) => tracing::warn!("a management datagram to {}: {error}", flow.dst),
            }
        }
    }

    /// When the manager wants a turn.
    pub(crate) fn next_management(&mut self) -> Option<Instant> {
        self.cm.as_mut()?.poll_timeout()
    }
}

fn flow(route: &Route) -> Flow {
    let Route { source: src, destination: dst, traffic_class, hop_limit, .. } = *route;
    // The interface has a source port of its own.
    Flow { src, dst, src_port: 0, traffic_class, hop_limit }
}
