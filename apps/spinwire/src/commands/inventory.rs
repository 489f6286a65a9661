//! What `spinwire devices` tells beside addresses: limits, wires, what the machine has counted so far, and what it lacks.

use std::fs;

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
}

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
        }
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
        json!({
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
}
