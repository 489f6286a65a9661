//! `discovery`: nodes that find each other in a multicast group.

use std::time::Duration;

use crate::config::Device;
use crate::config::schema::{Form, Key, Settings, Value};
use crate::diagnostic::{Diagnostic, Span};
use crate::failure::Failure;
use crate::limits::{DISCOVERY_NEIGHBOURS_MAX, DISCOVERY_TIME_MAX, NAME_BYTES_MAX};
use crate::node::discovery::{self, RECEIVE_BYTES};
use crate::node::{Node, NodeContext};
use crate::plan::demand::{Amount, Flow, Region, Rights};
use crate::registry::{NodeFactory, Schema};

/// `discovery`.
#[derive(Debug)]
pub(crate) struct Discovery(Schema);

impl Discovery {
    pub(crate) fn new() -> Self {
        let time = |name, doc| Key::time(name, Duration::from_millis(1)..=DISCOVERY_TIME_MAX, doc);
        Self(
            Schema::new("discovery", "finds others in a multicast group, and is found")
                .device()
                .key(
                    Key::new(
                        "group",
                        Form::Address,
                        "the multicast group; auto is 239.192.83.68, or ff05::5350:4441 for a device with an IPv6 address",
                    )
                    .or_auto(),
                )
                .key(Key::flag("announce", "whether it announces itself, or only listens").default(true))
                .key(Key::text("announce_as", "what it calls itself; not given: the name of the node"))
                .key(
                    time("interval", "time between two announcements")
                        .default(Duration::from_millis(100)),
                )
                .key(
                    time("ttl", "how long others keep it without hearing it again")
                        .default(Duration::from_secs(1)),
                )
                .key(Key::count(
                    "expect",
                    1..=DISCOVERY_NEIGHBOURS_MAX,
                    "others that it must find, and then ends; without this and `names` it goes on for ever",
                ))
                .key(Key::text("names", "names that it must find, and then ends, separated by commas"))
                .key(
                    time("timeout", "how long it looks for those that it must find")
                        .default(Duration::from_secs(10)),
                )
                .key(
                    Key::count(
                        "neighbours",
                        1..=DISCOVERY_NEIGHBOURS_MAX,
                        "others that it has room for at once",
                    )
                    .default(256_u64),
                ),
        )
    }
}

impl NodeFactory for Discovery {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn check(
        &self,
        name: &str,
        span: Span,
        settings: &Settings,
        device: Option<&Device>,
    ) -> Vec<Diagnostic> {
        let mut complaints = Vec::new();
        let at = |key: &str| settings.span(key).unwrap_or(span);
        let group = settings.address_opt("group");
        if let Some(group) = group.filter(|group| !group.is_multicast()) {
            complaints.push(
                Diagnostic::error(format!("`{group}` is no multicast group"))
                    .at(at("group"), "expected an address of 224.0.0.0/4 or ff00::/8")
                    .help("write \"auto\", or a group such as \"239.192.83.68\""),
            );
        } else if let (Some(group), Some(device)) = (group, device) {
            // The first free loopback address is one of IPv4.
            let ipv4 = device.address().is_none_or(|address| address.is_ipv4());
            if group.is_ipv4() != ipv4 {
                let family = if ipv4 { "IPv4" } else { "IPv6" };
                complaints.push(
                    Diagnostic::error(format!("`{name}` cannot reach the group {group}"))
                        .at(at("group"), format!("its device has an {family} address"))
                        .with(device.span, "declared here")
                        .help("give device and group addresses of one family"),
                );
            }
        }
        if let Some(device) = device.filter(|device| {
            matches!(device.settings.value("wire"), Some(Value::Text(wire)) if wire == "shm")
        }) {
            let (wire, device) = (device.settings.span("wire").unwrap_or(device.span), &device.name);
            complaints.push(
                Diagnostic::error(format!("`{name}` needs multicast, which `{device}` does not have"))
                    .at(wire, "shared memory reaches one peer at a time: it has no groups")
                    .with(span, "a discovery node announces itself to a group")
                    .fix(wire, "\"udp\"", "use packets"),
            );
        }
        let own = settings.text_opt("announce_as").unwrap_or(name);
        let names: Vec<&str> =
            discovery::names(settings.text_opt("names").unwrap_or_default()).collect();
        if own.len() > NAME_BYTES_MAX || own.contains(char::is_control) || own.contains(',') {
            complaints.push(
                Diagnostic::error(format!("`{name}` cannot announce itself as this")).at(
                    at("announce_as"),
                    format!("expected a name of up to {NAME_BYTES_MAX} bytes, without commas"),
                ),
            );
        }
        if names.contains(&own) {
            complaints.push(
                Diagnostic::error(format!("`{name}` looks for itself"))
                    .at(at("names"), format!("it announces itself as `{own}`"))
                    .help("name the others"),
            );
        }
        let (room, most) =
            (settings.count("neighbours"), settings.count_opt("expect").unwrap_or(0));
        if most.max(names.len() as u64) > room {
            let key = if most > room { "expect" } else { "names" };
            complaints.push(
                Diagnostic::error(format!("`{name}` has no room for those that it must find"))
                    .at(at(key), format!("more than neighbours = {room}"))
                    .help("raise neighbours"),
            );
        }
        let (interval, ttl) = (settings.time("interval"), settings.time("ttl"));
        if settings.flag("announce") && ttl < interval {
            complaints.push(
                Diagnostic::error(format!("`{name}` is forgotten between two announcements"))
                    .at(at("ttl"), format!("shorter than interval = {interval:?}"))
                    .help("make ttl a few intervals: a datagram may be lost"),
            );
        }
        complaints
    }

    fn regions(&self, _settings: &Settings, _flow: &Flow) -> Vec<Region> {
        let amount = Amount::Bytes(RECEIVE_BYTES);
        vec![Region { purpose: "messages", amount, rights: Rights::Local }]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        discovery::Discovery::build(cx)
    }
}
