//! Every limit of the ledger, by name.

/// Queue pairs that one ledger can hold: as many as one lcore can own.
pub const MAX_ACCOUNTS: usize = 1 << 11;
/// Largest depth of a send or receive queue.
pub const MAX_DEPTH: u32 = 1 << 16;
/// Low bits of a ticket: how many came before it in its queue. Above them stands the queue. At ten million requests a
/// second a queue runs out of them after 14 years.
pub const TICKET_POSITION_BITS: u32 = 52;
/// Queues that tickets can name: two for each account.
pub const MAX_QUEUES: usize = 1 << (64 - TICKET_POSITION_BITS);
/// How long flushed completions are waited for after an event that fails one queue pair, unless configured otherwise.
pub const DRAIN_NS: u64 = 1_000_000_000;
/// By how much a proposal of a peer may be ahead of what this side would propose itself: attempts are counted one by one, and
/// both sides hear of each other's.
pub const GENERATIONS_AHEAD: u64 = 1 << 20;
/// How long the end of a queue pair waits for its last event before it goes on without.
pub const LAST_WQE_NS: u64 = 1_000_000_000;

const _: () = assert!(MAX_QUEUES == 2 * MAX_ACCOUNTS);
