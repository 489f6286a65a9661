//! Every bound a pipeline is held to, in one place.

use std::time::Duration;

use crate::config::units::Size;

/// Longest name of a node, lcore or device, in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Largest config file, in bytes. A pipeline is a page of text; more is the wrong file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Most nodes of one pipeline.
pub const NODES_MAX: usize = 1024;

/// How often CPUs are chosen anew because another process took one of them in between.
pub const CPU_CLAIM_TRIES: u32 = 16;

/// Smallest memory of a process.
pub const MEMORY_MIN: Size = Size::mib(1);
/// Largest memory of a process; far above any machine, so that "too large" is the machine's answer.
pub const MEMORY_MAX: Size = Size::tib(1024);
/// Memory of a process when the config does not say.
pub const MEMORY_DEFAULT: Size = Size::mib(256);

/// Smallest block that a stage passes on.
pub const BLOCK_MIN: Size = Size::bytes(1);
/// Largest block that a stage passes on. RC could carry 2 GiB; a block is also a buffer, and buffers are counted by the
/// hundred.
pub const BLOCK_MAX: Size = Size::mib(64);
/// Blocks that a source may have read ahead, beyond those its consumers hold.
pub const READ_AHEAD: u64 = 32;

/// Most QPs of one node.
pub const QPS_MAX: u64 = 1024;
/// Most blocks in flight on one QP.
pub const DEPTH_MAX: u64 = 8192;
/// Largest completion queue, in entries. The verbs number of most NICs.
pub const CQ_DEPTH_MAX: u64 = 1 << 22;
/// Receives posted per QP of a client that is not known yet.
pub const LISTEN_DEPTH: u64 = 128;
/// Most clients that a node serves before it ends.
pub const SERVE_MAX: u64 = 1_000_000;

/// Most keys of a key-value client or server: each costs a client four bytes, and a server a bucket.
pub const KV_KEYS_MAX: u64 = 1 << 28;
/// Longest value under a key: larger ones are blocks.
pub const KV_VALUE_MAX: Size = Size::kib(64);
/// Connections of other processes that a key-value server has room for when the config does not say.
pub const KV_CONNECTIONS_DEFAULT: u64 = 64;
/// Longest time that a key-value client loads its server.
pub const KV_DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Most others that a discovery node keeps track of: each has an address handle, of which an lcore has 4096.
pub const DISCOVERY_NEIGHBOURS_MAX: u64 = 1024;
/// Receives of a discovery node: datagrams beyond those that come between two turns are lost.
pub const DISCOVERY_RECEIVES: u32 = 256;
/// Datagrams of a discovery node that can be on their way out.
pub const DISCOVERY_SENDS: u32 = 64;
/// Longest interval, time to live or timeout of a discovery node.
pub const DISCOVERY_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Intervals for which a discovery node that has found everybody goes on answering.
pub const DISCOVERY_LINGER: u64 = 3;

/// Longest wait for a listener to appear.
pub const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Wait for a listener to appear when the config does not say.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Longest time that a broken connection may take to work again.
pub const RECONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Time that a broken connection may take to work again when the config does not say.
pub const RECONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long a peer may take for each step of bringing a connection back.
pub const RECONNECT_STEP: Duration = Duration::from_secs(1);
/// Waits between attempts to bring a connection back: the first, and the longest.
pub const RECONNECT_BACKOFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// How long requests may be under way without one that ends, when the config does not say and retries take no longer.
pub const STALL_DEFAULT: Duration = Duration::from_secs(30);
/// Longest such time.
pub const STALL_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest retry budget that still ends while someone is watching; more is refused as impossible.
pub const RETRY_BUDGET_MAX: Duration = Duration::from_secs(3600);

/// How many characters of two words may differ, per three, for one to be suggested for the other.
pub const SUGGEST_DISTANCE_PER_THREE: usize = 1;

/// Bytes copied out of a region at a time, where they are looked at: half a level-1 cache.
pub const COPY_CHUNK: usize = COPY_CHUNK_LEN as usize;
/// The same as blocks count.
pub const COPY_CHUNK_LEN: u32 = 4096;
/// Blocks that wait between two stages.
pub const LINK_DEPTH: usize = 32;
/// Blocks that a source makes in one turn, so that others of its lcore have theirs.
pub const SOURCE_BURST: usize = 8;
/// Connections that a listening node serves at once.
pub const LISTEN_CONNECTIONS: usize = 64;
/// How long a caller that was answered is left alone where others wait for room: a client goes on at once.
pub const HALF_CONNECTED: Duration = Duration::from_millis(300);
/// How long a caller waits for room that others hold who were answered and do not go on, before it is refused.
pub const ROOM_WAIT: Duration = Duration::from_secs(2);
/// Strangers, and callers that were refused, of which each has a line in the log; of those beyond, each power of two.
pub const STRANGERS_LOGGED: u64 = 8;
/// How long a connection that began may take to be made, on the side that accepts it.
pub const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Lcores of peers of which a node's report keeps the counters apart; those beyond are added up.
pub const PLACES_MAX: usize = 64;
/// Pairs of addresses that a node's report names.
pub const GID_PAIRS_MAX: usize = 16;
/// Connections of a node that wait for their peers' last words when they end: the others are to the same peers, mostly.
pub const PARTINGS_MAX: usize = 16;
/// How long a client that said goodbye may take to close its connection.
pub const LEAVE_WAIT: Duration = Duration::from_secs(5);
/// Smallest block of a load generator: it carries a stamp.
pub const LOAD_BLOCK_MIN: Size = Size::bytes(512);
/// Longest run of a load generator.
pub const LOAD_DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Most blocks whose content a load generator keeps track of: a word of memory each.
pub const LOAD_BLOCKS_MAX: u64 = 1 << 26;
/// Largest file of a target; far above any disk, so that "too large" is the disk's answer.
pub const STORE_MAX: Size = Size::tib(1024);
/// Size of a file that has no name and for which the config gives none.
pub const STORE_UNNAMED: Size = Size::mib(256);
/// Buffers between the clients of a target and its file when the config does not say: what an ordinary user may lock.
pub const STORE_BUFFERS: Size = Size::mib(8);
/// Requests at a file at once when the config does not say.
pub const STORE_DEPTH: u64 = 128;
/// Most requests at a file at once.
pub const STORE_DEPTH_MAX: usize = pmd_block::limits::DEPTH_MAX as usize;
/// How long a request may be at a store when the config does not say: longer than a disk's driver takes to give one up.
pub const STORE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Longest such time.
pub const STORE_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long a block request may be without an answer when the config does not say: longer than at the store, so that the
/// target is the first to say what is wrong.
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(90);
/// How long a target may be silent when the config does not say: longer than any other process keeps it from its core.
pub const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(10);
/// Longest silence of a target that a client can be told to bear.
pub const KEEP_ALIVE_MAX: Duration = Duration::from_secs(3600);
/// After so many times the silence that a client has announced, it is dead: it asks for a sign of life twice as often.
pub const KEEP_ALIVE_GRACE: u32 = 2;
/// How long a message of an unreliable transport is waited for before it counts as lost.
pub const LOST_AFTER: Duration = Duration::from_secs(1);
/// Messages lost in a row after which nobody is there.
pub const LOST_IN_A_ROW: u32 = 5;
/// Characters of a peer's reason that are kept.
pub const REASON_MAX: usize = 1000;
/// Turns between two looks at a control channel, while the connection is busy.
pub const CHANNEL_TURNS: u32 = 32;
/// Messages of a control channel that are taken in one look: more than a peer that keeps to the protocol ever has waiting.
pub const CHANNEL_MESSAGES: u32 = 32;
/// How long a node whose peer has left waits to be told to end as well: between two processes of a run on a busy machine lie
/// some turns of the scheduler and of [`WATCH`].
pub const DESERTED_WAIT: Duration = Duration::from_secs(1);
/// How long nodes may take to finish what is in flight when another one has failed.
pub const DRAIN: Duration = Duration::from_secs(5);
/// The same when the run is told to end: longer than a disk that is busy with other things takes for what was in flight and
/// a flush. Who is told twice ends at once.
pub const DRAIN_IN_ORDER: Duration = Duration::from_secs(20);
/// Run directories that are kept in the usual place.
pub const RUNS_KEPT: usize = 32;
/// Largest half of a journal file, in bytes: some ten thousand records.
pub const JOURNAL_HALF_BYTES: u64 = 4 << 20;
/// Largest file of a journal that is read, in bytes: a half, and what is written at once beyond it.
pub const JOURNAL_BYTES_MAX: u64 = 16 * JOURNAL_HALF_BYTES;
/// Longest line of a journal, in bytes; a record has some hundred.
pub const JOURNAL_LINE_BYTES_MAX: u64 = 1 << 16;
/// Largest report or mark that is read, in bytes.
pub const REPORT_BYTES_MAX: u64 = 64 << 20;
/// Records of the journal that a run remembers, for when it fails.
pub const JOURNAL_RECENT: usize = 1 << 12;
/// Queue pairs whose records are shown after a failure.
pub const JOURNAL_QPS_SHOWN: usize = 3;
/// Records of each that are shown.
pub const JOURNAL_RECORDS_SHOWN: usize = 4;
/// How often the control thread looks at lcores, signals and the time.
pub const WATCH: Duration = Duration::from_millis(20);
/// Longest payload of a greeting, in bytes: a memory reference fits.
pub const GREETING_BYTES_MAX: usize = 4096;
/// Buffers at each end of a pingpong, in either direction: one message is under way, one more may be on its heels, and that a
/// buffer is free again is heard a turn after its answer has left, by when the next message can be there. What finds no
/// receive is lost on a transport without acknowledgements.
pub const PINGPONG_BUFFERS: u32 = 4;
/// Buffers of blocks begin at multiples of this: cache lines of their own.
pub const BUFFER_ALIGN: u32 = 64;
/// Buffers that an lcore moves at a time between its cache and a pool.
pub const BUFFER_BULK: u16 = 32;
/// How long a process of a run that was told to end may take before it is killed: longer than it may drain.
pub const PART_GRACE: Duration = Duration::from_secs(30);
/// How long a reader of metrics may take to ask, and to take the answer.
pub const SCRAPE_WAIT: Duration = Duration::from_secs(5);
/// How old metrics may be that are served.
pub const SCRAPE_FRESH: Duration = Duration::from_millis(20);
/// Readers of metrics at once; who comes beyond takes the place of one that asks nothing, or takes nothing of its answer.
pub const SCRAPE_CONNECTIONS: usize = 32;
/// How long a reader may take for its answer where others wait for its place.
pub const SCRAPE_UNDISTURBED: Duration = Duration::from_millis(500);
/// Readers that are let in, or turned away, before those that are in are looked after.
pub const SCRAPE_ACCEPTS: usize = 64;
/// Longest request for metrics, in bytes: browsers send no more.
pub const REQUEST_BYTES_MAX: usize = 8192;
/// Queue pairs that an lcore tells of between two turns of its work.
pub const SURVEY_BUDGET: usize = 16;
/// Queue pairs of an lcore that there is room to tell of, before it is known that there are more.
pub const SURVEY_ROOM: usize = 64;
/// How often the state of a run is written.
pub const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How long the state of a run waits for lcores to tell; what they told before counts beyond that.
pub const STATUS_WAIT: Duration = Duration::from_millis(300);
/// How long the end of a run waits for its last state to be written.
pub const STATUS_LAST: Duration = Duration::from_secs(2);
/// Queue pairs that the state of a run shows one by one.
pub const STATUS_QPS: usize = 4096;
/// Of these that have ended.
pub const STATUS_ENDED: usize = 1024;
