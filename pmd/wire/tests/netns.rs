//! UDP wires between two hosts: network namespaces joined by a veth pair with an MTU of 1500.
//!
//! These tests make namespaces and read raw frames, so they run as root, and say so otherwise.

#![expect(clippy::unwrap_used, reason = "tests: a panic is a failure")]

#[path = "wires/roce.rs"]
mod roce;

use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pmd_wire::udp::{self, BindError, UdpOptions, UdpWire};
use pmd_wire::{Flow, Wire};
use roce::{Got, SEND_ONLY, fill, flow, ip, is_intact, psn_of, receive, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `ip ARGUMENTS`.
fn ip_command(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("iproute2 must be installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "these tests need root: `ip {arguments}` says {error}");
}

fn wait_until_up(namespace: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let arguments = ["-n", namespace, "-oneline", "link", "show", "v"];
        let shown = Command::new("ip").args(arguments).output().unwrap();
        if String::from_utf8_lossy(&shown.stdout).contains("state UP") {
            return;
        }
        assert!(Instant::now() < deadline, "the link in {namespace} does not come up");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Two hosts, 10.9.0.1 and 10.9.0.2, fd09::1 and fd09::2, gone when dropped.
struct Link {
    name: String,
}

impl Link {
    fn new(test: &str) -> Self {
        let link = Self { name: format!("{test}{}", std::process::id()) };
        let [a, b] = ["a", "b"].map(|side| link.namespace(side));
        ip_command(&format!("netns add {a}"));
        ip_command(&format!("netns add {b}"));
        let side = |n: u8, namespace| format!("v netns {namespace} address 02:00:00:00:00:0{n}");
        ip_command(&format!("link add {} type veth peer name {}", side(1, &a), side(2, &b)));
        for (namespace, host) in [(&a, 1), (&b, 2)] {
            ip_command(&format!("-n {namespace} address add 10.9.0.{host}/24 dev v"));
            ip_command(&format!("-n {namespace} address add fd09::{host}/64 dev v nodad"));
            ip_command(&format!("-n {namespace} link set lo up"));
            ip_command(&format!("-n {namespace} link set v up"));
        }
        // The kernel starts a link's queue a little after its carrier; what is sent before is lost.
        for namespace in [&a, &b] {
            wait_until_up(namespace);
        }
        link
    }

    fn namespace(&self, side: &str) -> String {
        format!("{}{side}", self.name)
    }

    /// `ip ARGUMENTS` on one side.
    fn ip(&self, side: &str, arguments: &str) {
        ip_command(&format!("-n {} {arguments}", self.namespace(side)));
    }

    /// Runs `work` on one side; sockets it opens stay there.
    fn on<T: Send>(&self, side: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.namespace(side))).unwrap();
        let inside = move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }

    fn bind(&self, side: &str, address: &str) -> UdpWire {
        self.bind_with(side, address, &UdpOptions::default())
    }

    fn bind_with(&self, side: &str, address: &str, options: &UdpOptions) -> UdpWire {
        self.on(side, || udp::bind(ip(address), options).unwrap().pop().unwrap())
    }

    /// Every IPv4 frame that passes an interface on one side, from now on.
    fn capture(&self, side: &str) -> Capture {
        const ETH_P_IP: u16 = 0x0800;
        Capture(self.on(side, || {
            let protocol = u32::from(ETH_P_IP.to_be()).try_into().unwrap();
            let protocol = Some(rustix::net::Protocol::from_raw(protocol));
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol)
                .unwrap()
        }))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for side in ["a", "b"] {
            let deleted = Command::new("ip").args(["netns", "del", &self.namespace(side)]).status();
            assert!(deleted.is_ok_and(|s| s.success()) || thread::panicking());
        }
    }
}

struct Capture(OwnedFd);

/// What matters of an IPv4 UDP frame.
struct Packet {
    ip_id: u16,
    dont_fragment: bool,
    payload: Vec<u8>,
}

impl Capture {
    fn packets(&self) -> Vec<Packet> {
        let mut buffer = vec![0; 65_536];
        let mut packets = Vec::new();
        while let Ok((_, len)) =
            rustix::net::recv(&self.0, buffer.as_mut_slice(), rustix::net::RecvFlags::DONTWAIT)
        {
            let ip = &buffer[14..len];
            let port = u16::from_be_bytes([ip[22], ip[23]]);
            if ip[0] == 0x45 && ip[9] == 17 && port == 4791 {
                packets.push(Packet {
                    ip_id: u16::from_be_bytes([ip[4], ip[5]]),
                    dont_fragment: ip[6] == 0x40,
                    payload: ip[28..].to_vec(),
                });
            }
        }
        packets
    }
}

fn psns(got: &[Got]) -> Vec<u32> {
    got.iter().map(Got::psn).collect()
}

/// What the whole udp wire rests on: the identifications that Linux gives to segments.
#[test]
fn segments_cut_by_the_kernel_carry_the_identifications_that_were_promised() {
    let link = Link::new("cut");
    // So that the kernel cuts the super-packet before the device, as for a plain network card.
    link.ip("a", "link set v gso_max_segs 1");
    let (mut a, mut b) = (link.bind("a", "10.9.0.1"), link.bind("b", "10.9.0.2"));
    let capture = link.capture("b");
    let to_b = flow(ip("10.9.0.1"), ip("10.9.0.2"));
    for psn in 0..50 {
        let len = if psn < 49 { 1040 } else { 16 };
        assert!(send(&mut a, &to_b, 1, psn, len));
    }
    a.flush(0);
    assert_eq!(a.counters().tx_datagrams, 1);
    let got = receive(&mut b, 50);
    assert_eq!(psns(&got), (0..50).collect::<Vec<_>>());
    assert_eq!(b.counters().rx_datagrams, 50, "they were cut");

    let packets = capture.packets();
    assert_eq!(packets.len(), 50);
    for (n, packet) in (0_u16..).zip(&packets) {
        assert_eq!((packet.ip_id, packet.dont_fragment), (n, true));
        assert_eq!(psn_of(&packet.payload), u32::from(n));
        assert!(is_intact(&to_b, packet.ip_id, &packet.payload));
    }
}

#[test]
fn frames_sent_one_by_one_carry_identification_zero() {
    let link = Link::new("one");
    let options = UdpOptions { gso: false, ..UdpOptions::default() };
    let mut a = link.bind_with("a", "10.9.0.1", &options);
    let b = link.bind("b", "10.9.0.2");
    let capture = link.capture("b");
    let to_b = flow(ip("10.9.0.1"), ip("10.9.0.2"));
    for psn in 0..5 {
        assert!(send(&mut a, &to_b, 1, psn, 80));
    }
    a.flush(0);
    drop(b);
    let packets = capture.packets();
    assert_eq!(packets.len(), 5);
    assert!(packets.iter().all(|p| p.ip_id == 0 && is_intact(&to_b, 0, &p.payload)));
}

#[test]
fn a_super_packet_crosses_whole_where_the_devices_can() {
    let link = Link::new("whole");
    for (from, to, max_payload) in
        [("10.9.0.1", "10.9.0.2", 1500 - 28), ("fd09::1", "fd09::2", 1500 - 48)]
    {
        let (mut a, mut b) = (link.bind("a", from), link.bind("b", to));
        assert_eq!((a.max_payload(), a.interface().name.as_str()), (max_payload, "v"));
        let to_b = Flow { traffic_class: 0x22, ..flow(ip(from), ip(to)) };
        for psn in 0..40 {
            assert!(send(&mut a, &to_b, 1, psn, 1040));
        }
        a.flush(0);
        let got = receive(&mut b, 40);
        assert_eq!(psns(&got), (0..40).collect::<Vec<_>>());
        assert!(got.iter().all(|g| g.flow == to_b && g.is_intact()));
        assert_eq!((a.counters().tx_datagrams, b.counters().rx_datagrams), (1, 1));
    }
}

#[test]
fn link_local_addresses_find_their_interface() {
    let link = Link::new("fe80");
    link.ip("a", "address add fe80::a/64 dev v nodad");
    link.ip("b", "address add fe80::b/64 dev v nodad");
    let (mut a, mut b) = (link.bind("a", "fe80::a"), link.bind("b", "fe80::b"));
    let to_b = flow(ip("fe80::a"), ip("fe80::b"));
    assert!(send(&mut a, &to_b, 1, 7, 80));
    a.flush(0);
    let got = receive(&mut b, 1);
    assert_eq!((psns(&got), got[0].flow), (vec![7], to_b));
}

/// The kernel holds frames for a neighbour it is still looking for against the send buffer.
#[test]
fn what_the_kernel_does_not_take_waits_and_keeps_its_order() {
    let link = Link::new("wait");
    let options = UdpOptions { gso: false, send_buffer: 1, ..UdpOptions::default() };
    let mut a = link.bind_with("a", "10.9.0.1", &options);
    let to_c = flow(ip("10.9.0.1"), ip("10.9.0.3"));
    let mut accepted = 0;
    while send(&mut a, &to_c, 1, accepted, 1024) {
        accepted += 1;
        assert!(accepted < 1000, "the queue never fills");
    }
    a.flush(0);
    let counters = a.counters();
    assert_eq!((counters.tx_full, counters.tx_lost()), (1, 0));
    assert!(a.pending() > 0);
    assert_eq!(counters.tx_frames + a.pending() as u64, u64::from(accepted));

    link.ip("b", "address add 10.9.0.3/24 dev v");
    let mut c = link.bind("b", "10.9.0.3");
    link.ip("a", "neighbour replace 10.9.0.3 dev v lladdr 02:00:00:00:00:02 nud permanent");
    let mut got = Vec::new();
    while got.len() < accepted as usize {
        a.flush(0);
        let burst = receive(&mut c, 1);
        assert!(!burst.is_empty(), "lost after {} of {accepted}: {:?}", got.len(), a.counters());
        got.extend(burst);
    }
    assert_eq!(a.pending(), 0);
    assert_eq!(psns(&got), (0..accepted).collect::<Vec<_>>());
    assert!(got.iter().all(Got::is_intact));
}

#[test]
fn losses_are_counted_by_reason_and_traffic_goes_on() {
    let link = Link::new("loss");
    link.ip("a", "route add prohibit 10.8.0.0/24");
    let (mut a, mut b) = (link.bind("a", "10.9.0.1"), link.bind("b", "10.9.0.2"));
    let from = ip("10.9.0.1");
    let to_b = flow(from, ip("10.9.0.2"));
    // Frames that fitted when the wire was made.
    link.ip("a", "link set v mtu 1000");
    for (psn, to) in (0..).zip(["10.9.0.2", "203.0.113.1", "10.8.0.1", "10.9.0.2"]) {
        assert!(send(&mut a, &flow(from, ip(to)), 1, psn, 1200), "{to}");
    }
    a.flush(0);
    for psn in 10..12 {
        assert!(send(&mut a, &to_b, 1, psn, 80));
    }
    a.flush(0);
    let counters = a.counters();
    let losses = (counters.tx_too_big, counters.tx_unreachable, counters.tx_denied);
    assert_eq!((losses, counters.tx_lost()), ((2, 1, 1), 4));
    assert_eq!((counters.tx_frames, a.pending()), (2, 0));
    assert_eq!(psns(&receive(&mut b, 2)), [10, 11]);
    assert!(a.segments_max() > 1, "segmentation is not to blame");
}

#[test]
fn a_frame_beyond_the_interface_is_lost_as_too_big() {
    let link = Link::new("big");
    let (mut a, _b) = (link.bind("a", "10.9.0.1"), link.bind("b", "10.9.0.2"));
    let to_b = flow(ip("10.9.0.1"), ip("10.9.0.2"));
    for psn in 0..3 {
        assert!(a.send(&to_b, 1, 4112, &mut |id, frame| fill(&to_b, id, SEND_ONLY, 1, psn, frame)));
    }
    a.flush(0);
    assert_eq!((a.counters().tx_too_big, a.counters().tx_frames), (3, 0));
    assert!(a.segments_max() > 1, "segmentation is not to blame");
}

#[test]
fn namespaces_do_not_share_addresses() {
    let link = Link::new("same");
    let a = link.bind("a", "127.0.0.1");
    let b = link.bind("b", "127.0.0.1");
    assert_eq!(a.address(), b.address());
}

/// As the kernel's own RoCE driver does, which has no process to name.
#[test]
fn a_wildcard_socket_takes_every_address() {
    let link = Link::new("any");
    link.on("a", || {
        let holder = UdpSocket::bind("0.0.0.0:4791").unwrap();
        let error = udp::bind(ip("10.9.0.1"), &UdpOptions::default()).unwrap_err();
        let BindError::InUse { owner, free: None, .. } = error else { panic!("{error:?}") };
        assert_eq!(owner.unwrap().pid, std::process::id());
        let error = udp::bind_auto(&UdpOptions::default()).unwrap_err();
        let BindError::Wildcard { owner } = error else { panic!("{error:?}") };
        assert_eq!(owner.unwrap().pid, std::process::id());
        drop(holder);
        udp::bind_auto(&UdpOptions::default()).unwrap();
    });
}

#[test]
fn groups_reach_other_hosts() {
    let link = Link::new("group");
    for (a, b, group) in
        [("10.9.0.1", "10.9.0.2", "239.9.9.9"), ("fd09::1", "fd09::2", "ff15::9:9")]
    {
        let group: IpAddr = ip(group);
        let (mut from, mut to) = (link.bind("a", a), link.bind("b", b));
        link.on("b", || to.join(group).unwrap());
        for psn in 0..3 {
            assert!(send(&mut from, &flow(ip(a), group), 0xff_ffff, psn, 80));
        }
        from.flush(0);
        let got = receive(&mut to, 3);
        assert_eq!(psns(&got), [0, 1, 2], "{group}");
        assert!(got.iter().all(|g| g.flow == flow(ip(a), group) && g.is_intact()));
    }
}
