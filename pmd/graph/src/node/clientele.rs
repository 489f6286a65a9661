//! Whom a node with several clients serves, how many of them are still to come, and whom it lost.

use pmd_observe::Code;

use super::NodeContext;
use crate::edge::Refusal;
use crate::failure::Failure;
use crate::limits::STRANGERS_LOGGED;

/// The clients of a node, counted. `here`: a client of this process, which is known from the start.
pub(crate) struct Clientele {
    name: String,
    listens: bool,
    /// Clients of this process that have not ended.
    here_left: usize,
    /// Clients of other processes that have not ended; `None`: for ever.
    serve_left: Option<u64>,
    /// Why the first client that counts was lost.
    failed: Option<Failure>,
    errors: u64,
    strangers: Strangers,
}

/// Those who did not become clients, as the log tells of them: whoever calls a thousand times does not fill it.
#[derive(Debug, Default)]
pub(crate) struct Strangers(u64);

impl Strangers {
    /// One more.
    pub(crate) fn note(&mut self, node: &str, failure: &Failure) {
        self.0 += 1;
        let count = self.0;
        if count <= STRANGERS_LOGGED {
            tracing::warn!("`{node}`: {failure}");
        } else if count.is_power_of_two() {
            tracing::warn!("`{node}`: {failure}; {count} have come so far that became no clients");
        }
    }
}

impl Clientele {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Self {
        Self {
            name: cx.name().to_owned(),
            listens: cx.listens(),
            here_left: cx.clients(),
            serve_left: cx.settings().count_opt("serve"),
            failed: None,
            errors: 0,
            strangers: Strangers::default(),
        }
    }

    /// Whether everybody has come and gone who was to.
    pub(crate) fn has_served_all(&self) -> bool {
        (!self.listens || self.serves_no_more()) && self.here_left == 0
    }

    /// Whether no client of another process is let in any more.
    pub(crate) fn serves_no_more(&self) -> bool {
        self.serve_left == Some(0)
    }

    /// Whether one more client may come in.
    pub(crate) fn admit(&self, here: bool) -> Result<(), Refusal> {
        if here || !self.serves_no_more() {
            return Ok(());
        }
        let reason = format!("`{}` has served all clients it was to serve", self.name);
        Err(Refusal::new(Code::PeerNotReady, reason))
    }

    /// A client has ended, well or not.
    pub(crate) fn ended(&mut self, here: bool) {
        if here {
            self.here_left = self.here_left.saturating_sub(1);
        } else if let Some(left) = &mut self.serve_left {
            *left = left.saturating_sub(1);
        }
    }

    /// A connection was lost. Who serves a number of clients misses each of them that `counts`; who serves for ever goes
    /// on, as it does after somebody who did not become a client.
    pub(crate) fn lost(&mut self, here: bool, counts: bool, failure: Failure) {
        self.errors += 1;
        let name = &self.name;
        if !counts {
            self.strangers.note(name, &failure);
        } else if here || self.serve_left.is_some() {
            self.failed.get_or_insert(failure);
        } else {
            tracing::warn!("`{name}` lost a client: {failure}");
        }
    }

    /// Somebody never got a place. One of this process was to be served; a stranger, or a client that was told why it may not
    /// come in, does not count.
    pub(crate) fn never_came(&mut self, here: bool, why: Option<Failure>) {
        if here {
            self.ended(true);
        }
        if let Some(why) = why {
            self.lost(here, here, why);
        }
    }

    /// So many strangers were turned away before they had said who they are.
    pub(crate) fn turned_away(&mut self, count: u64) {
        self.errors += count;
    }

    /// Errors since the last call.
    pub(crate) fn take_errors(&mut self) -> u64 {
        std::mem::take(&mut self.errors)
    }

    /// Why the first client that counts was lost.
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failed.take()
    }
}
