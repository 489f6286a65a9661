//! The keys of every table that is the same for all kinds: `[memory]`, `[[lcore]]`, `[observe]`, devices, and the two
//! ends of an RDMA edge.

use std::time::Duration;

use super::schema::{Form, Key};
use super::{retry, words};
use crate::limits;
use crate::registry::{DeviceSchema, Role};

pub(super) fn memory() -> Vec<Key> {
    vec![
        Key::size(
            "size",
            limits::MEMORY_MIN..=limits::MEMORY_MAX,
            "memory that the process reserves, over all NUMA nodes",
        )
        .default(limits::MEMORY_DEFAULT),
        Key::word(
            "hugepages",
            &words::all(words::HUGEPAGES),
            "pages to take; auto falls back to small ones",
        )
        .default("auto"),
        Key::word("numa", &words::all(words::NUMA), "whether memory of another NUMA node will do")
            .default("prefer"),
        Key::word(
            "memlock",
            &words::all(words::MEMLOCK),
            "whether RLIMIT_MEMLOCK is enforced as a NIC driver would",
        )
        .default("check"),
    ]
}

pub(super) fn lcore() -> Vec<Key> {
    vec![
        Key::new("name", Form::Name, "what nodes call it").required(),
        Key::count("cpu", 0..=u64::from(u32::MAX), "the CPU it is pinned to").or_auto(),
        Key::word("idle", &words::all(words::IDLE), "what it does when there is no work")
            .default("adaptive"),
    ]
}

/// The keys of a node of any kind.
pub(super) fn node() -> Vec<Key> {
    vec![
        Key::new("name", Form::Name, "what other nodes and --set call it").required(),
        Key::text("kind", "what it does").required(),
        Key::new("lcore", Form::Name, "the lcore it runs on").required(),
    ]
}

pub(super) fn observe() -> Vec<Key> {
    vec![
        Key::new("listen", Form::Socket, "where counters are served as Prometheus text"),
        Key::text("capture", "pcapng file that every frame is written to"),
        Key::text("run_dir", "directory of the run's journal and counters"),
    ]
}

pub(super) fn device_kind() -> Key {
    Key::text("kind", "soft, verbs or doca").required()
}

/// Which source address.
fn gid_index(what: &'static str) -> Key {
    Key::count("gid_index", 0..=u64::from(u16::MAX), what).or_auto()
}

/// The software NIC.
pub(crate) fn soft() -> DeviceSchema {
    let keys = [
        Key::new("address", Form::Address, "the address it answers to").or_auto(),
        gid_index(
            "the address it answers to, by its index in the GID table that `spinwire devices` lists",
        ),
        Key::word("wire", &["auto", "shm", "udp"], "how frames and memory reach the peer")
            .not_in_this_build(&["xdp", "dpdk"])
            .default("auto"),
        Key::flag("one_copy", "whether same-user peers may map each other's regions").default(true),
        Key::text("interface", "network interface").only_when("wire", "xdp"),
        Key::text("port", "DPDK port, by PCI address").only_when("wire", "dpdk"),
        Key::text("vdev", "DPDK virtual device").only_when("wire", "dpdk"),
    ];
    DeviceSchema::new("soft", keys.into_iter().chain(events()))
}

/// A device of rdma-core.
pub(crate) fn verbs() -> DeviceSchema {
    let keys = [
        Key::text("name", "the NIC, as in mlx5_0; not given: the first with an active port"),
        Key::count("port", 1..=u64::from(u8::MAX), "its port; auto is the first that is active")
            .or_auto(),
        Key::count(
            "gid_index",
            0..=u64::from(u8::MAX),
            "index into the port's GID table; auto is RoCE v2 at an IPv4 address where there is one",
        )
        .or_auto(),
    ];
    DeviceSchema::new("verbs", keys.into_iter().chain(events()))
}

/// What asynchronous events of a device do.
fn events() -> [Key; 2] {
    [
        Key::flag("async_events", "whether asynchronous events of the device are looked at")
            .default(true),
        Key::flag(
            "fail_on_async_event",
            "whether a fatal event fails the work in flight, or is only logged",
        )
        .default(true),
    ]
}

/// Kinds that a config can name, and that another crate brings.
pub(crate) fn absent_devices() -> Vec<DeviceSchema> {
    let doca = [
        Key::text("library", "auto, emulator, or the directory of the libraries").default("auto"),
        Key::text("name", "the device, by PCI address"),
    ];
    vec![DeviceSchema::new("doca", doca).not_in_this_build()]
}

/// The keys of a client whose connections come back.
pub(crate) fn reconnect() -> [Key; 2] {
    [
        Key::word(
            "reconnect",
            &["none", "always"],
            "whether a connection that breaks is brought back: on its queue pairs, or by dialling again where the peer's process is gone",
        )
        .default("none"),
        Key::time(
            "reconnect_timeout",
            Duration::from_millis(1)..=limits::RECONNECT_TIMEOUT_MAX,
            "how long a broken connection may take until something is done over it again",
        )
        .default(limits::RECONNECT_TIMEOUT_DEFAULT)
        .only_when("reconnect", "always"),
    ]
}

/// The key of a client that waits for replies.
pub(crate) fn keep_alive() -> Key {
    Key::time(
        "keep_alive",
        Duration::ZERO..=limits::KEEP_ALIVE_MAX,
        "how long the peer may be silent before it is given up; it is asked for a sign of life in time, and answers that whatever else it does; 0s: for ever",
    )
    .default(limits::KEEP_ALIVE_DEFAULT)
}

/// The key of a client whose peer asks a store.
pub(crate) fn request_timeout() -> Key {
    Key::time(
        "request_timeout",
        Duration::ZERO..=limits::STORE_TIMEOUT_MAX,
        "how long a block may be without its answer, though the target answers that it is there, before the target's store is given up; 0s: for ever",
    )
    .default(limits::REQUEST_TIMEOUT_DEFAULT)
}

/// The next stage.
pub(crate) fn to() -> Key {
    Key::new("to", Form::Name, "the next stage, on the same lcore").required()
}

/// The device of a node.
pub(crate) fn device() -> Key {
    Key::new("device", Form::Name, "the device its queue pairs belong to").required()
}

/// The keys that come with an RDMA edge.
pub(crate) fn rdma(role: Role) -> Vec<Key> {
    let mut keys = vec![device()];
    if role != Role::Responder {
        let peer = Key::new(
            "peer",
            Form::Peer,
            "the far end: a node of this file, or ADDRESS:PORT of a listener",
        );
        keys.push(if role == Role::Initiator { peer.required() } else { peer });
        keys.push(
            Key::word("transport", &["rc", "uc", "ud"], "service type of its queue pairs")
                .not_in_this_build(&["xrc"])
                .default("rc"),
        );
        keys.push(
            Key::new(
                "mtu",
                Form::Pick { values: &[256, 512, 1024, 2048, 4096], auto: false },
                "path MTU, in bytes of payload; auto is the largest that fits the interfaces of both ends",
            )
            .or_auto(),
        );
        keys.push(
            Key::count("cq_depth", 1..=limits::CQ_DEPTH_MAX, "entries of its completion queue")
                .or_auto(),
        );
        keys.push(
            Key::flag(
                "cq_overcommit",
                "take a cq_depth that is smaller than what can complete at once: its queue pairs fail when it overruns",
            )
            .default(false),
        );
        keys.push(
            Key::time(
                "connect_timeout",
                Duration::from_millis(1)..=limits::CONNECT_TIMEOUT_MAX,
                "how long it waits for its peer to listen",
            )
            .default(limits::CONNECT_TIMEOUT_DEFAULT),
        );
    }
    if role != Role::Initiator {
        keys.push(Key::new("listen", Form::Socket, "where clients of other processes connect"));
        keys.push(Key::count(
            "serve",
            1..=limits::SERVE_MAX,
            "clients after which it ends; not given: for ever",
        ));
    }
    keys.push(
        Key::word(
            "connect",
            &["oob", "cm"],
            "how queue pairs of two processes find each other: by what crosses the control channel, or by the connection manager's protocol, on packets",
        )
            .not_in_this_build(&["bridge"])
            .default("oob"),
    );
    keys.push(Key::text(
        "psk_file",
        "file with the key that seals what the two ends tell each other while they connect and after: both need the same one, made by `(umask 077; head -c 32 /dev/urandom | base64 > FILE)`",
    ));
    keys.push(
        Key::flag(
            "plaintext",
            "without a key, whether that may cross a network all the same, where whoever reads it can reach registered memory; over loopback it always may",
        )
        .default(false),
    );
    keys.extend(retry::keys());
    keys.push(Key::time(
        retry::STALL,
        Duration::ZERO..=limits::STALL_MAX,
        "how long requests may be under way to a peer without one that ends, before the connection is given up with a verdict; not given: 30s, or twice the retry budget where that is longer, or for ever where timeout = 0; 0s: for ever",
    ));
    keys
}
