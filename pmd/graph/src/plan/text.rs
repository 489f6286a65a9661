//! A plan as people read it.

use std::fmt::Write;

use pmd_observe::report::{Align, Bytes, Nanos, Table};

use super::fit::Fit;
use super::path::GidPlan;
use super::{NodePlan, Plan};
use crate::config::Peer;
use crate::config::retry::{Retry, milliseconds};

impl Plan {
    /// The resolved pipeline and whether it fits, in tables.
    pub fn to_text(&self, fit: &Fit) -> String {
        let mut text = self.lcore_table();
        for table in [
            self.node_table(),
            self.path_table(),
            self.queue_table(),
            self.retry_table(),
            self.region_table(),
            numa_table(fit),
        ] {
            if !table.is_empty() {
                text.push('\n');
                text.push_str(&table.to_string());
            }
        }
        text.push('\n');
        verdict(&mut text, fit);
        text
    }

    fn lcore_table(&self) -> String {
        let mut table = Table::new(&[
            ("lcore", Align::Left),
            ("cpu", Align::Right),
            ("numa", Align::Right),
            ("idle", Align::Left),
            ("qps", Align::Right),
            ("", Align::Left),
        ]);
        for (index, lcore) in self.lcores.iter().enumerate() {
            let here = self.nodes.iter().filter(|node| node.lcore == index);
            let qps: u64 = here.filter_map(|node| node.queues).map(|queues| queues.qps).sum();
            let shared = if lcore.shared { "shared" } else { "" };
            let cells =
                [&lcore.name, &lcore.cpu.to_string(), &lcore.numa.to_string(), lcore.idle.as_str()];
            table.row(cells.into_iter().chain([qps.to_string().as_str(), shared]));
        }
        table.to_string()
    }

    fn node_table(&self) -> Table {
        let mut table = Table::new(&[
            ("node", Align::Left),
            ("kind", Align::Left),
            ("lcore", Align::Left),
            ("device", Align::Left),
            ("edge", Align::Left),
        ]);
        for node in &self.nodes {
            let device =
                node.device.map(|device| self.devices[device].name.as_str()).unwrap_or_default();
            let lcore = self.lcores[node.lcore].name.as_str();
            table.row([node.name.as_str(), node.kind, lcore, device, &self.edge(node)]);
        }
        table
    }

    fn edge(&self, node: &NodePlan) -> String {
        if let Some(next) = node.to {
            return format!("to {}", self.nodes[next].name);
        }
        match (node.peer, node.listen) {
            (Some(Peer::Node(far)), _) => format!("peer {}", self.nodes[far].name),
            (Some(Peer::Remote(address)), _) => format!("peer {address}"),
            (None, Some(address)) => format!("listens on {address}"),
            (None, None) => String::new(),
        }
    }

    /// Packets of nodes on a device are as large as its interface takes, at most, and as the peer takes.
    fn path_table(&self) -> Table {
        let mut table = Table::new(&[
            ("device", Align::Left),
            ("packets by", Align::Left),
            ("ip mtu", Align::Right),
            ("path mtu", Align::Right),
            ("gid", Align::Right),
            ("address", Align::Left),
            ("type", Align::Left),
            ("chosen", Align::Left),
        ]);
        for (device, path) in self.devices.iter().zip(&self.paths) {
            let Some(path) = path else { continue };
            let gid = &path.gid;
            table.row([
                device.name.clone(),
                path.interface.clone(),
                path.interface_mtu.to_string(),
                format!("up to {}", path.path_mtu),
                gid.index.map_or_else(|| "-".to_owned(), |index| index.to_string()),
                gid.address.map_or_else(|| "auto".to_owned(), |address| address.to_string()),
                GidPlan::TYPE.to_string(),
                gid.reason.clone(),
            ]);
        }
        table
    }

    fn queue_table(&self) -> Table {
        let mut table = Table::new(&[
            ("qp of", Align::Left),
            ("count", Align::Right),
            ("transport", Align::Left),
            ("send", Align::Right),
            ("receive", Align::Right),
            ("cq", Align::Right),
            ("path mtu", Align::Right),
        ]);
        for node in &self.nodes {
            let Some(queues) = node.queues else { continue };
            let more = if queues.more_per_client { " + clients'" } else { "" };
            table.row([
                node.name.clone(),
                format!("{}{more}", queues.qps),
                queues.transport.map_or_else(
                    || "as clients ask".to_owned(),
                    |transport| transport.name().to_owned(),
                ),
                queues.depths.send.to_string(),
                queues.depths.receive.to_string(),
                queues.cq_depth.to_string(),
                match (queues.mtu, node.peer) {
                    (Some(mtu), _) => mtu.to_string(),
                    (None, Some(_)) => "auto".to_owned(),
                    (None, None) => "as clients ask".to_owned(),
                },
            ]);
        }
        table
    }

    fn retry_table(&self) -> Table {
        let mut table = Table::new(&[
            ("retry of", Align::Left),
            ("timeout", Align::Left),
            ("retry_cnt", Align::Left),
            ("rnr_retry", Align::Left),
            ("min_rnr_timer", Align::Left),
            ("gives up after", Align::Right),
        ]);
        for node in &self.nodes {
            let Some(retry) = &node.retry else { continue };
            let knobs = retry.knobs().map(|(name, knob)| {
                let infinite =
                    if name == "rnr_retry" && knob.value == 7 { ", infinite" } else { "" };
                let pause = match name {
                    "min_rnr_timer" => format!(", {}", Nanos::from(retry.rnr_pause())),
                    _ => String::new(),
                };
                format!("{} ({}{infinite}{pause})", knob.value, knob.origin)
            });
            table.row(std::iter::once(node.name.clone()).chain(knobs).chain([budget(retry)]));
        }
        table
    }

    fn region_table(&self) -> Table {
        let mut table = Table::new(&[
            ("mr of", Align::Left),
            ("for", Align::Left),
            ("bytes", Align::Right),
            ("rights", Align::Left),
            ("numa", Align::Right),
        ]);
        for node in &self.nodes {
            for region in &node.regions {
                table.row([
                    node.name.as_str(),
                    region.purpose,
                    &Bytes(region.bytes).to_string(),
                    region.rights.name(),
                    &self.lcores[node.lcore].numa.to_string(),
                ]);
            }
        }
        table
    }
}

fn budget(retry: &Retry) -> String {
    retry.budget().map_or_else(|| "never".to_owned(), milliseconds)
}

fn numa_table(fit: &Fit) -> Table {
    let mut table = Table::new(&[
        ("numa", Align::Right),
        ("need", Align::Right),
        ("free", Align::Right),
        ("pages", Align::Left),
    ]);
    for row in &fit.rows {
        table.row([
            row.numa.to_string(),
            Bytes(row.need).to_string(),
            Bytes(row.free).to_string(),
            row.rung.to_string(),
        ]);
    }
    table
}

fn verdict(text: &mut String, fit: &Fit) {
    for warning in &fit.warnings {
        writeln!(text, "warning: {warning}").expect("a string takes all");
    }
    if fit.fits() {
        text.push_str("fits this machine\n");
        return;
    }
    text.push_str("does not fit this machine\n");
    for problem in &fit.problems {
        writeln!(text, "  {}", problem.what).expect("a string takes all");
        for (index, fix) in problem.fixes.iter().enumerate() {
            writeln!(text, "    {} {fix}", if index == 0 { "fix:" } else { " or:" })
                .expect("a string takes all");
        }
    }
}
