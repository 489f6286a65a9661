//! What the two sides of a connection tell each other while they bring it back.

/// A message over the control channel. Each names a *generation*: the number of the connection it is about, which rises
/// with every attempt, so that what is late is recognised.
///
/// The driver adds to a [`Hello`](Message::Hello) what the peer's queue pair needs: number, first PSN, address, MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// My side of this connection failed.
    Failed {
        /// Which.
        generation: u64,
    },
    /// My queue pair is in INIT, its receives are posted, and this is how to reach it.
    Hello {
        /// For which connection.
        generation: u64,
    },
    /// My queue pair is in RTR, toward yours.
    Ready {
        /// For which connection.
        generation: u64,
    },
    /// You proposed a connection that I consider past: propose a later one than this.
    Behind {
        /// Mine.
        generation: u64,
    },
}

/// Which side proposes first when both want to reconnect, so that proposals do not chase each other: the one that calls
/// the other, or by comparison of two names that both know. None: the names are equal, so take others.
pub fn leads(ours: &[u8], theirs: &[u8]) -> Option<bool> {
    match ours.cmp(theirs) {
        std::cmp::Ordering::Equal => None,
        order => Some(order.is_gt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_of_two_sides_leads() {
        assert_eq!((leads(b"a", b"b"), leads(b"b", b"a")), (Some(false), Some(true)));
        assert_eq!(leads(b"a", b"a"), None);
    }
}
