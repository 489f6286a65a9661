//! An open device of `pmd-verbs`, whichever kind it is.

use std::cell::OnceCell;
use std::rc::Rc;

use pmd_lcore::{Doorbells, Progress};
use pmd_observe::Snapshot;
use pmd_observe::why::FaultHits;
use pmd_verbs::endpoint::{ConnectError, EndpointOptions, MeetingPoint, Pending};
use pmd_verbs::roce::ids::Instant;
use pmd_verbs::{Context, Doorbell, JournalReader, Survey};

use super::{Device, DeviceError, DeviceLcore};

/// An open device.
pub(super) struct Open {
    pub(super) device: pmd_verbs::Device,
}

impl Device for Open {
    fn lcore(&self, index: u32) -> Result<Rc<dyn DeviceLcore>, DeviceError> {
        let context = self.device.context(index);
        let context = context.map_err(|error| DeviceError::Refused(error.to_string()))?;
        // The loop polls: queue pairs need not.
        context.drive();
        context.remember_ended();
        Ok(Rc::new(Lcore { context, point: Rc::default() }))
    }

    fn faults(&self) -> Vec<FaultHits> {
        self.device.faults()
    }

    fn finish(&self) -> Result<(), DeviceError> {
        self.device.finish_capture().map_err(|error| DeviceError::Refused(error.to_string()))
    }

    fn journal(&self) -> Option<JournalReader> {
        Some(self.device.journal())
    }
}

struct Lcore {
    context: Context,
    /// Where queue pairs meet by the connection manager; opened for the first that does.
    point: Rc<OnceCell<Rc<MeetingPoint>>>,
}

impl Lcore {
    fn meeting_point(&self) -> Result<&Rc<MeetingPoint>, ConnectError> {
        if let Some(point) = self.point.get() {
            return Ok(point);
        }
        let point = self.context.open_meeting_point()?;
        Ok(self.point.get_or_init(|| point))
    }
}

impl DeviceLcore for Lcore {
    fn progress(&self, now: u64) -> Box<dyn Progress> {
        let name = self.context.device().name().to_owned();
        let ahead = now.wrapping_sub(self.context.device().now().0);
        let doorbell = self.context.create_doorbell().inspect_err(|error| {
            tracing::warn!("{name}: naps last their time whatever arrives: {error}");
        });
        Box::new(Poll { name, context: self.context.clone(), ahead, doorbell: doorbell.ok() })
    }

    fn prepare(&self, options: &EndpointOptions) -> Result<Box<dyn Pending>, DeviceError> {
        let prepared = match options.managed {
            false => self.context.prepare(options),
            true => {
                let point = self.meeting_point();
                point.and_then(|point| self.context.prepare_at(point, options))
            }
        };
        match prepared {
            Ok(pending) => Ok(Box::new(pending)),
            Err(error) => Err(DeviceError::Refused(error.to_string())),
        }
    }

    fn on_behalf(&self, node: u32) -> Option<Rc<dyn DeviceLcore>> {
        Some(Rc::new(Self { context: self.context.on_behalf(node), point: Rc::clone(&self.point) }))
    }

    fn survey(&self, survey: &mut Survey, budget: usize) -> bool {
        self.context.survey(survey, budget)
    }

    fn counters(&self) -> Snapshot {
        self.context.snapshot()
    }

    fn verbs(&self) -> Option<Context> {
        Some(self.context.clone())
    }
}

/// What the lcore's loop polls.
struct Poll {
    name: String,
    context: Context,
    /// How far the loop's clock is ahead of the device's, in nanoseconds: each counts from its own start.
    ahead: u64,
    doorbell: Option<Doorbell>,
}

impl Poll {
    fn device_time(&self, now: u64) -> Instant {
        Instant(now.wrapping_sub(self.ahead))
    }
}

impl Progress for Poll {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, now: u64) -> usize {
        self.context.receive(self.device_time(now))
    }

    fn tx(&mut self, now: u64) -> usize {
        self.context.transmit(self.device_time(now))
    }

    fn next_timeout(&self) -> Option<u64> {
        self.context.next_timeout().map(|due| due.0.wrapping_add(self.ahead))
    }

    fn arm<'a>(&'a mut self, doorbells: &mut Doorbells<'a>) {
        let Some(doorbell) = &self.doorbell else { return };
        if doorbell.arm() {
            doorbells.watch(doorbell.fd());
        } else {
            doorbells.ring();
        }
    }
}
