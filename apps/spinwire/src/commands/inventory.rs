//! What `spinwire devices` tells beside addresses: limits, what the machine has counted so far, what it lacks, and which
//! wires it could carry.

use std::fs;
use std::path::Path;

use pmd_verbs::roce::limits::{
    MAX_INLINE, MAX_MESSAGE, MAX_QP_WR, MAX_QPS, MAX_RD_ATOMIC, MAX_SRQ_WR,
};
use serde_json::{Map, Value, json};

/// Counters of the kernel's UDP that packets of this NIC move, as `/proc/net/snmp` calls them.
const COUNTERS: [&str; 5] =
    ["InDatagrams", "OutDatagrams", "InErrors", "RcvbufErrors", "SndbufErrors"];

/// This machine beside its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    /// Before anything was run.
    pub(super) counters: Vec<(&'static str, u64)>,
    /// RDMA devices of the kernel.
    pub(super) kernel_devices: Vec<String>,
    /// Free hugepages of the default size.
    pub(super) hugepages: u64,
    /// Whether the kernel has AF_XDP.
    pub(super) has_xdp: bool,
    /// Whether the kernel lends devices to processes.
    pub(super) has_vfio: bool,
    /// What this process may do, as `CapEff` of proc_pid_status(5).
    pub(super) capabilities: u64,
}

/// A wire beside shared memory and UDP, and what stands in its way on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WireOutlook {
    pub(super) wire: &'static str,
    pub(super) lacks: Vec<&'static str>,
}

/// Bits of capabilities(7).
const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_BPF: u64 = 1 << 39;

impl Inventory {
    /// Looks at this machine. What cannot be read is not there.
    pub(super) fn take() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        let mut kernel_devices: Vec<String> =
            devices.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        kernel_devices.sort();
        Self {
            counters: udp(&read("/proc/net/snmp")),
            kernel_devices,
            hugepages: free_hugepages(&read("/proc/meminfo")),
            has_xdp: has_protocol(&read("/proc/net/protocols"), "XDP"),
            has_vfio: Path::new("/dev/vfio/vfio").exists(),
            capabilities: capabilities(&read("/proc/self/status")),
        }
    }

    /// The wires that this build does not have, and what the machine lacks for each.
    pub(super) fn outlook(&self) -> [WireOutlook; 2] {
        let may = |bit: u64| self.capabilities & bit != 0;
        let lacking = |all: &[(bool, &'static str)]| {
            all.iter().filter_map(|(has, what)| (!has).then_some(*what)).collect()
        };
        let xdp = [
            (self.has_xdp, "AF_XDP in the kernel"),
            (may(CAP_NET_RAW), "CAP_NET_RAW"),
            (may(CAP_NET_ADMIN), "CAP_NET_ADMIN"),
            (may(CAP_BPF) || may(CAP_SYS_ADMIN), "CAP_BPF"),
        ];
        let dpdk = [(self.hugepages > 0, "free hugepages"), (self.has_vfio, "/dev/vfio/vfio")];
        [
            WireOutlook { wire: "xdp", lacks: lacking(&xdp) },
            WireOutlook { wire: "dpdk", lacks: lacking(&dpdk) },
        ]
    }

    /// What is not there, and how to get it.
    pub(super) fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let hugepages = ("free hugepages", "sysctl vm.nr_hugepages=512, as root");
        let kernel = (
            "an RDMA device of the kernel",
            "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE, as root; not needed for soft",
        );
        let all = [(self.hugepages == 0, hugepages), (self.kernel_devices.is_empty(), kernel)];
        all.into_iter().filter_map(|(lacks, what)| lacks.then_some(what)).collect()
    }

    /// As an object.
    pub(super) fn to_json(&self) -> Value {
        let counters: Map<String, Value> =
            self.counters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let missing = self.missing().into_iter();
        let wires = self.outlook().into_iter();
        let wires = wires.map(|WireOutlook { wire, lacks }| {
            json!({ "wire": wire, "in_this_build": false, "machine_lacks": lacks })
        });
        json!({
            "other_wires": wires.collect::<Vec<_>>(),
            "udp_counters": counters,
            "kernel_devices": self.kernel_devices,
            "hugepages_free": self.hugepages,
            "missing": missing.map(|(what, fix)| json!({ "what": what, "fix": fix })).collect::<Vec<_>>(),
        })
    }
}

/// Limits of the software NIC, each per queue pair but the first.
pub(super) fn limits() -> [(&'static str, u64); 6] {
    [
        ("max_qp", MAX_QPS as u64 - 1),
        ("max_qp_wr", MAX_QP_WR.into()),
        ("max_srq_wr", MAX_SRQ_WR.into()),
        ("max_inline_data", MAX_INLINE.into()),
        ("max_qp_rd_atom", MAX_RD_ATOMIC.into()),
        ("max_msg_sz", MAX_MESSAGE.into()),
    ]
}

fn udp(snmp: &str) -> Vec<(&'static str, u64)> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return Vec::new() };
    let both: Vec<(&str, &str)> = names.split_whitespace().zip(values.split_whitespace()).collect();
    let value = |wanted: &str| {
        let (_, value) = both.iter().find(|(name, _)| *name == wanted)?;
        value.parse().ok()
    };
    COUNTERS.into_iter().filter_map(|name| Some((name, value(name)?))).collect()
}

/// Whether the kernel's table of protocols, as in `/proc/net/protocols`, has one.
fn has_protocol(table: &str, name: &str) -> bool {
    table.lines().any(|line| line.split_whitespace().next() == Some(name))
}

/// What the process of this `/proc/PID/status` may do.
fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn free_hugepages(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|free| free.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0-48: the baseline is the kernel's, and what is missing comes with the way to get it.
    #[test]
    fn s0_48_the_baseline_and_what_is_missing() {
        let snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 7 1 2 9 3 0\n";
        let counters = udp(snmp);
        let expected = [
            ("InDatagrams", 7),
            ("OutDatagrams", 9),
            ("InErrors", 2),
            ("RcvbufErrors", 3),
            ("SndbufErrors", 0),
        ];
        assert_eq!(counters, expected);
        assert_eq!(udp("nothing"), []);
        assert_eq!(free_hugepages("MemFree: 1 kB\nHugePages_Free:     12\n"), 12);
        let bare = Inventory { counters, ..Inventory::default() };
        let json = bare.to_json();
        assert_eq!(json["udp_counters"]["RcvbufErrors"], 3);
        assert_eq!(json["missing"][0]["what"], "free hugepages");
        assert!(
            json["missing"][1]["fix"].as_str().is_some_and(|fix| fix.contains("rdma link add"))
        );
        let full = Inventory { hugepages: 1, kernel_devices: vec!["rxe0".into()], ..bare };
        assert!(full.missing().is_empty());
        assert!(limits().iter().all(|(_, limit)| *limit > 0));
    }

    /// S0-48: of the wires that are not in this build it is told what the machine lacks for them, and nothing promised.
    #[test]
    fn s0_48_other_wires_and_what_the_machine_lacks() {
        let none = Inventory::default();
        let [xdp, dpdk] = none.outlook();
        let all = ["AF_XDP in the kernel", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"];
        assert_eq!((xdp.wire, &xdp.lacks[..]), ("xdp", &all[..]));
        assert_eq!(dpdk.lacks, ["free hugepages", "/dev/vfio/vfio"]);
        let protocols = "protocol  size sockets\nXDP 960 0 -1 NI\nUDP 1344 9 0 NI\n";
        assert!(has_protocol(protocols, "XDP") && !has_protocol("XDPX 1\n", "XDP"));
        let capabilities = capabilities("Name: x\nCapEff:\t0000008000003000\n");
        assert_eq!(capabilities, CAP_BPF | CAP_NET_RAW | CAP_NET_ADMIN);
        let full = Inventory { hugepages: 1, has_xdp: true, has_vfio: true, capabilities, ..none };
        assert!(full.outlook().iter().all(|wire| wire.lacks.is_empty()));
        assert_eq!(full.to_json()["other_wires"][0]["in_this_build"], false);
    }
}
