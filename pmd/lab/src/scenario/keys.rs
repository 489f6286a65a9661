//! What the tables of a scenario may hold.

use std::time::Duration;

use pmd_graph::config::schema::{Form, Key};
use pmd_graph::config::units::Size;

use crate::limits;

/// Services, as words.
pub(super) const TRANSPORTS: [&str; 3] = ["rc", "uc", "ud"];

/// Operations, as words.
pub(super) const OPS: [&str; 7] =
    ["send", "send-imm", "write", "write-imm", "read", "compare-swap", "fetch-add"];

/// What a fault can do, as the first word of `do`.
pub(super) const DEEDS: [&str; 18] = [
    "drop",
    "delay",
    "dup",
    "reorder",
    "corrupt",
    "partition",
    "pause",
    "stop-recv",
    "stop-poll",
    "kill-cq",
    "kill-srq",
    "kill-device",
    "port-down",
    "port-up",
    "move-gid",
    "kill-host",
    "drain",
    "flip",
];

const MTUS: &[u64] = &[256, 512, 1024, 2048, 4096];

fn mtu(name: &'static str, doc: &'static str) -> Key {
    Key::new(name, Form::Pick { values: MTUS, auto: false }, doc)
}

fn instant(name: &'static str, doc: &'static str) -> Key {
    Key::time(name, Duration::ZERO..=limits::LIMIT_MAX, doc)
}

fn span(name: &'static str, doc: &'static str) -> Key {
    Key::time(name, Duration::from_nanos(1)..=limits::LIMIT_MAX, doc)
}

fn size(name: &'static str, doc: &'static str) -> Key {
    Key::size(name, Size::bytes(0)..=Size::bytes(limits::SIZE_MAX), doc)
}

/// A table of the contract: its name as it is written, what it is for, and its keys.
pub type Section = (&'static str, &'static str, Vec<Key>);

/// Every table, in the order of the reference.
pub fn sections() -> Vec<Section> {
    vec![
        ("a scenario", "These stand before the first table.", scenario()),
        ("[[host]]", "A host has one RDMA device, its own memory and a poll loop.", host()),
        (
            "[[cq]]",
            "A completion queue that several queue pairs share; each has its own otherwise.",
            cq(),
        ),
        (
            "[[srq]]",
            "A shared receive queue. Where a scenario has no such table, a name under `srq` is one as deep as those who share it.",
            srq(),
        ),
        (
            "[[qp]]",
            "A connection: a queue pair at each of two hosts. Work goes from `from` to `to`.",
            qp(),
        ),
        ("[[work]]", "What an application does with a connection.", work()),
        ("[[fault]]", "What goes wrong, and when.", fault()),
        ("`match` of a fault", "Which frames, or which queue pair.", frames()),
        ("[[expect]]", "What must come of it.", expect()),
    ]
}

pub(super) fn scenario() -> Vec<Key> {
    vec![
        Key::new("seed", Form::Bits, "what everything left to chance comes from").default(1_u64),
        span("limit", "virtual time after which it ends").default(limits::LIMIT_DEFAULT),
    ]
}

pub(super) fn host() -> Vec<Key> {
    vec![
        Key::new("name", Form::Name, "what other tables call it").required(),
        Key::new("address", Form::Address, "its first address").or_auto(),
        Key::new(
            "second_address",
            Form::Address,
            "the address of its second port, not given: it has one port",
        ),
        mtu("mtu", "active MTU of its port").default(4096_u64),
        Key::new(
            "gids",
            Form::List,
            "its whole GID table, as \"10.0.0.1\", \"10.0.0.1 v1\" or \"-\" for a vacant entry",
        ),
    ]
}

pub(super) fn cq() -> Vec<Key> {
    vec![
        Key::new("name", Form::Name, "what queue pairs call it").required(),
        Key::new("host", Form::Name, "where it is").required(),
        Key::count("depth", 1..=limits::CQ_DEPTH_MAX, "its entries").required(),
        Key::flag("overcommit", "take it although more can complete than it holds").default(false),
    ]
}

pub(super) fn srq() -> Vec<Key> {
    vec![
        Key::new("name", Form::Name, "what queue pairs call it").required(),
        Key::new("host", Form::Name, "where it is").required(),
        Key::count("depth", 1..=limits::DEPTH_MAX, "receives in it").required(),
        Key::count("limit", 1..=limits::DEPTH_MAX, "fewer raise SRQ_LIMIT_REACHED, once"),
        size("size", "bytes of each receive").default(Size::kib(4)),
        instant("hold", "how long the consumer keeps a buffer before it posts it again")
            .default(Duration::ZERO),
    ]
}

pub(super) fn qp() -> Vec<Key> {
    let rights =
        "one-sided operations that `to` allows: \"write\", \"read\", \"atomic\"; not given: all";
    vec![
        Key::new("name", Form::Name, "what other tables call it").required(),
        Key::new("from", Form::Name, "the host that works").required(),
        Key::new("to", Form::Name, "the host that it works on").required(),
        Key::word("transport", &TRANSPORTS, "service").default("rc"),
        Key::word("path", &["packets", "shared"], "through the network, or through shared memory")
            .default("packets"),
        Key::count("timeout", 0..=31, "ACK timeout, 4.096 us x 2^timeout; 0 waits for ever")
            .default(14_u64),
        Key::count("retry_cnt", 0..=7, "how often silence is answered by sending again")
            .default(7_u64),
        Key::count("rnr_retry", 0..=7, "how often RNR is answered by sending again; 7 is for ever")
            .default(7_u64),
        Key::count("min_rnr_timer", 0..=31, "code of the pause that RNR NAKs ask for")
            .default(12_u64),
        Key::count("depth", 1..=limits::DEPTH_MAX, "requests outstanding at once")
            .default(limits::DEPTH_DEFAULT),
        Key::count(
            "receives",
            0..=limits::DEPTH_MAX,
            "receives posted at `to` before it can be reached; not given: `depth`",
        ),
        size("receive_size", "bytes of each receive; not given: the largest message that comes"),
        Key::word("receive_lkey", &["good", "bad"], "key of the buffers of receives")
            .default("good"),
        Key::flag("repost", "post a receive again when it was used").default(true),
        Key::new("srq", Form::Name, "shared receive queue at `to`"),
        Key::new("cq", Form::Name, "completion queue at one of its hosts"),
        Key::new("access", Form::List, rights),
        Key::count("rd_atomic", 0..=128, "READs and atomics that `from` has outstanding")
            .default(16_u64),
        Key::count(
            "to_rd_atomic",
            0..=128,
            "those that `to` has resources for; not given: `rd_atomic`",
        ),
        Key::count(
            "rq_psn",
            0..=0xff_ffff,
            "PSN that `to` expects first; not given: the one that `from` starts with",
        ),
        Key::count("qkey", 0..=0xffff_ffff, "Q_Key that datagrams carry").default(0x1111_u64),
        Key::count("to_qkey", 0..=0xffff_ffff, "Q_Key of the receiver; not given: `qkey`"),
        Key::count("sgid_index", 0..=31, "index of the address at `from`").default(0_u64),
        Key::count("to_sgid_index", 0..=31, "index of the address at `to`").default(0_u64),
        mtu("mtu", "path MTU; not given: the smaller one of the two ports"),
        mtu("to_mtu", "path MTU that `to` is given; not given: the same"),
        Key::word(
            "acks",
            &["window", "message"],
            "acknowledgements: some within long messages, or one for each message",
        )
        .default("window"),
        Key::word("hold", &["init"], "leave the queue pair at `to` in INIT"),
        Key::flag("alternate", "load the path between the second ports as the alternate one")
            .default(false),
        Key::word("policy", &["none", "reconnect"], "what follows a failure").default("none"),
    ]
}

pub(super) fn work() -> Vec<Key> {
    vec![
        instant("at", "when it begins").default(Duration::ZERO),
        Key::new("qp", Form::Name, "on which connection").required(),
        Key::word("op", &OPS, "operation; not given: only receives are posted"),
        size("size", "bytes of each message; atomics have 8").default(Size::bytes(64)),
        Key::count("count", 1..=limits::COUNT_MAX, "requests").default(1_u64),
        span("every", "one request in so long; not given: as many as the queue takes"),
        Key::count(
            "offset",
            0..=limits::MEMORY_MAX,
            "place of the first in the peer's region; not given: one of its own",
        ),
        Key::word("rkey", &["good", "bad"], "key of the peer's region").default("good"),
        Key::word("lkey", &["good", "bad"], "key of one's own region").default("good"),
        Key::count(
            "post_recv",
            1..=limits::DEPTH_MAX,
            "receives posted at `to`, besides those that it has",
        ),
    ]
}

pub(super) fn fault() -> Vec<Key> {
    vec![
        instant("at", "when it begins").default(Duration::ZERO),
        instant("until", "when it is over; not given: never"),
        Key::new("from", Form::Name, "only frames of this host"),
        Key::new("to", Form::Name, "only frames to this host; or the host that it happens to"),
        Key::new("match", Form::Group(frames()), "which frames, or which queue pair"),
        Key::text("do", DO).required(),
    ]
}

/// What the words behind `do` mean.
const DO: &str = "what happens. To frames: `drop`, `delay 5ms`, `dup`, `reorder`, `corrupt`, `partition` (between `from` and `to`, \
both ways, or around one of them). To the host `to`: `pause` (no turn), `stop-recv` (posts no receives), `stop-poll` (takes no completions), \
`kill-cq` (queues of `match.qp`, or all), `kill-srq`, `kill-device`, `port-down` (up again at `until`), `port-up`, `move-gid` \
(its last address goes to the next index), `kill-host`, `drain` \
(the queue pairs it has of `match.qp`, or all, are in SQD and say when they are drained; in RTS again at `until`), `flip 17` (one bit of that byte of what `match.qp` has there)";

pub(super) fn frames() -> Vec<Key> {
    vec![
        Key::text(
            "opcode",
            "\"all\", \"acks\", or an opcode as \"RC_SEND_ONLY\" or \"WRITE_LAST\"",
        ),
        Key::count(
            "psn",
            0..=0xff_ffff,
            "their PSN, counted from the one that the sender began with",
        ),
        Key::new("qp", Form::Name, "the connection they belong to"),
        Key::count("after", 0..=u64::MAX, "so many matching frames pass first").default(0_u64),
        Key::count("count", 1..=u64::MAX, "at most so many are hit"),
        Key::count("every", 1..=u64::MAX, "of those, one in so many").default(1_u64),
        size("longer_than", "only frames with a longer UDP payload"),
        Key::count("per_million", 1..=1_000_000, "of those, so many in a million, by chance")
            .default(1_000_000_u64),
    ]
}

pub(super) fn expect() -> Vec<Key> {
    vec![
        Key::new("qp", Form::Name, "of which connection").required(),
        Key::new(
            "statuses",
            Form::Tally,
            "completions of requests by status; one that is not named must not occur, success aside. \"event\": ended by an event, \"refused\": never posted; \"open\": not ended",
        ),
        Key::new("receives", Form::Tally, "completions of receives by status, in the same way"),
        Key::new(
            "events",
            Form::Tally,
            "asynchronous events of its two queue pairs, their queues, ports and devices, by name",
        ),
        span("within", "the last of them came so soon after the last sign of life"),
        span("at_least", "and no sooner than this"),
        Key::text("verdict", "code of the diagnosis"),
        Key::flag("recovers", "it comes back, does what may be repeated, and all bytes are right"),
        span("recovers_within", "from the failure until it works again, at most"),
        span(
            "rate_within",
            "so long after the last fault is over, requests succeed at 9 tenths of the rate before the first one",
        ),
        Key::word("siblings", &["unaffected"], "every connection of which nothing bad is expected"),
        Key::new(
            "counters",
            Form::Tally,
            "counters of `from` that must have at least this value, by name",
        ),
        Key::new("to_counters", Form::Tally, "the same of `to`"),
        Key::new("still", Form::List, "counters of `from` that must not have moved"),
    ]
}
