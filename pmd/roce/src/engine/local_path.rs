//! A turn of the local path.

use super::Engine;
use crate::device::Io;
use crate::limits::TURN_BUDGET;
use crate::local::{self, LocalPeer, ahead};
use crate::memory::Memory;
use crate::qp::state::QpState;
use crate::sink::CqSink;

impl Engine {
    /// Runs requests of the local path, then completes what is done after one fence for all.
    #[inline]
    pub(super) fn run_local<M: Memory, C: CqSink>(
        &mut self,
        io: &mut Io<'_, M, C>,
        peers: &mut impl LocalPeer,
        budget: usize,
    ) -> usize {
        let dev = &mut self.device;
        let mut done = 0;
        dev.lanes.reopen();
        // Everybody who is listed now, once; then whoever waits for room, as long as there is some.
        let mut listed = dev.local.len();
        ahead::first_turns(&self.qps, dev, peers);
        while done < budget {
            let slot = if listed > 0 { dev.local.pop() } else { dev.lanes.next_blocked() };
            listed = listed.saturating_sub(1);
            let Some(slot) = slot else { break };
            if listed > 0 {
                ahead::next_turn(&self.qps, dev, peers);
            }
            let Some(qp) = self.qps.at(slot) else { continue };
            if local::lone::send(qp, dev, io.cq, peers) {
                done += 1;
                continue;
            }
            if qp.state() != QpState::Rts {
                qp.flush(dev, io.cq);
            }
            if let (Some(link), QpState::Rts | QpState::Sqd) = (qp.attr.av.link, qp.state()) {
                let budget = TURN_BUDGET.min(budget - done);
                done += local::requester::transmit(qp, dev, io, peers, link, budget);
            }
        }
        peers.publish();
        done += self.settle_local(io, peers);
        self.fail_overrun(io.cq);
        self.publish(peers);
        done
    }

    /// Completes what the peers have taken, and ends the turns of this poll.
    #[inline]
    fn settle_local<M: Memory, C: CqSink>(
        &mut self,
        io: &mut Io<'_, M, C>,
        peers: &mut impl LocalPeer,
    ) -> usize {
        let Self { qps, device: dev } = self;
        let mut completed = 0;
        if core::mem::take(&mut dev.unfenced) {
            peers.fence();
        }
        for lane in 0..dev.lanes.len() {
            let taken = peers.consumed(dev.lanes.link(lane));
            while let Some(slot) = dev.lanes.next_taken(lane, taken) {
                // Marks may be older than what is in the slot now.
                if let Some(qp) = qps.at(slot).filter(|qp| qp.local.lane == lane) {
                    completed += local::requester::finish(qp, dev, io, peers, taken);
                }
            }
        }
        while let Some(slot) = dev.unsettled.pop() {
            let Some(qp) = qps.at(slot) else { continue };
            match qp.attr.av.link {
                Some(link) => {
                    let taken = peers.consumed(link);
                    completed += local::requester::finish(qp, dev, io, peers, taken);
                }
                None => dev.ready.push(slot),
            }
        }
        completed
    }
}
