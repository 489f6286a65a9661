//! What both ends agree on: the client decides, the server is told.

use std::fmt;
use std::time::Duration;

use pmd_verbs::roce::ids::PathMtu;
use pmd_verbs::roce::limits::{MAX_INLINE, MAX_QP_WR, MAX_QPS, MAX_RD_ATOMIC};
use serde::{Deserialize, Serialize};

use super::args::{Connect, PerfArgs, Wire};
use super::limits::{
    ALL_SIZES_MAX, ATOMIC_SIZE, BANDWIDTH_SIZE, DURATION, DURATION_EACH, LATENCY_SIZE, OUTSTANDING,
    PAUSE_MAX, POST_LIST, POST_LIST_MAX, REPOST, ROTATING, ROUNDS, ROUNDS_EACH, SIZE_MAX,
    SIZES_MAX, TX_BYTES_TOTAL, TX_DEPTH, TX_DEPTH_TOTAL, VERIFY_BYTES,
};
use super::test::{AtomicKind, Buffers, Misconnect, Op, Test, Transport};

/// A measurement, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Params {
    pub(super) test: Test,
    /// How queue pairs find each other.
    pub(super) connect: Connect,
    pub(super) transport: Transport,
    /// Bytes per message, one measurement each; `None`: what one datagram takes, known with the device.
    pub(super) sizes: Option<Vec<u32>>,
    pub(super) all: bool,
    pub(super) length: Length,
    pub(super) qps: u32,
    pub(super) lcores: u32,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    pub(super) mtu: Option<u32>,
    pub(super) inline: u32,
    pub(super) post_list: u32,
    pub(super) cq_mod: u32,
    pub(super) outs: u8,
    pub(super) events: bool,
    pub(super) bidirectional: bool,
    /// Every second SEND is a WRITE.
    pub(super) alternates: bool,
    pub(super) atomic: AtomicKind,
    pub(super) buffers: Buffers,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) pause: Option<Duration>,
    pub(super) no_post_recv: bool,
    pub(super) misconnect: Option<Misconnect>,
    pub(super) flips: Vec<Flip>,
}

/// How long one size is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Length {
    /// So many messages per queue pair.
    Messages(u64),
    /// For so long.
    Time(Duration),
}

/// One byte of one end's buffers changes: of a source after it was filled, of a destination before it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flip {
    /// 0: the client's, 1: the server's.
    pub(super) side: u8,
    /// Place in what the first lcore's buffers hold of one size, slots joined.
    pub(super) offset: u64,
}

/// As the command line has it.
impl fmt::Display for Flip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flip {} {}", if self.side == 0 { "client" } else { "server" }, self.offset)
    }
}

impl Params {
    /// What the command line asks for.
    ///
    /// # Errors
    /// What cannot be, and what would do instead.
    pub(super) fn of(
        args: &PerfArgs,
        flips: Vec<Flip>,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        refuse_contradictions(args)?;
        operation(args)?;
        let sizes = sizes(args)?;
        let latency = args.test.is_latency();
        let qps = count("-q", args.qps, 1, args.lcores.max(1) * queue_pairs_max(args.transport))?;
        count("--lcores", args.lcores, 1, 8)?;
        if latency && (qps > 1 || args.lcores > 1) {
            return Err(format!(
                "{} measures one message at a time: -q 1 --lcores 1, or use {}",
                args.test,
                bandwidth_of(args.test)
            ));
        }
        if qps < args.lcores {
            return Err(format!(
                "{} lcores need at least as many queue pairs: -q {}",
                args.lcores, args.lcores
            ));
        }
        let largest = sizes.iter().flatten().max().copied().unwrap_or(0);
        let here = qps.div_ceil(args.lcores);
        let bytes = TX_BYTES_TOTAL / u64::from(here) / u64::from(largest.max(1));
        let share = (TX_DEPTH_TOTAL / here).min(u32::try_from(bytes).unwrap_or(u32::MAX)).max(4);
        let tx_depth =
            args.tx_depth.unwrap_or_else(|| if latency { 1 } else { TX_DEPTH.min(share) });
        count("-t", tx_depth, 1, MAX_QP_WR)?;
        let rx_depth = args.rx_depth.unwrap_or_else(|| (2 * tx_depth).clamp(16, MAX_QP_WR));
        count("-r", rx_depth, 1, MAX_QP_WR)?;
        // A buffer that is written before and read after each message has one message at a time.
        let (tx_depth, rx_depth) = match args.buffers {
            Buffers::App => (tx_depth.min(ROTATING), 2 * ROTATING),
            Buffers::Warm | Buffers::Rotating => (tx_depth, rx_depth),
        };
        count(
            "-l",
            args.post_list.unwrap_or(1),
            1,
            u32::try_from(POST_LIST_MAX).unwrap_or(u32::MAX),
        )?;
        count("-Q", args.cq_mod, 1, MAX_QP_WR)?;
        if latency && (args.cq_mod > 1 || args.post_list.is_some_and(|list| list > 1)) {
            return Err(format!("-Q and -l are for bandwidth: use {}", bandwidth_of(args.test)));
        }
        if args.cq_mod > tx_depth {
            return Err(format!(
                "-Q {} leaves a queue of -t {tx_depth} without completions: at most -Q {tx_depth}",
                args.cq_mod
            ));
        }
        let post_list = args.post_list.unwrap_or(POST_LIST).min(tx_depth);
        let outs = args.outs.unwrap_or(OUTSTANDING);
        count("-o", outs.into(), 1, MAX_RD_ATOMIC.into())?;
        if let Some(mtu) = args.mtu {
            PathMtu::from_bytes(mtu as usize)
                .ok_or_else(|| format!("-m {mtu} is no path MTU: 256, 512, 1024, 2048 or 4096"))?;
        }
        let length = match (args.iters, args.duration) {
            (Some(iters), _) => Length::Messages(iters),
            (None, Some(duration)) => Length::Time(duration),
            (None, None) => Length::Time(if args.all { DURATION_EACH } else { DURATION }),
        };
        let retry = |flag: Option<u8>, name: &str, max, default| {
            flag.unwrap_or_else(|| from_environment(environment, name, max).unwrap_or(default))
        };
        let params = Self {
            test: args.test,
            connect: if args.rdma_cm { Connect::Cm } else { args.connect },
            transport: args.transport,
            sizes,
            all: args.all,
            length,
            qps,
            lcores: args.lcores,
            tx_depth,
            rx_depth,
            mtu: args.mtu,
            inline: args.inline,
            post_list,
            cq_mod: args.cq_mod,
            outs,
            events: args.events,
            bidirectional: args.bidirectional,
            alternates: args.alternate_write,
            atomic: args.atomic,
            buffers: args.buffers,
            timeout: retry(args.timeout, "SPINWIRE_QP_TIMEOUT", 31, 14),
            retry_cnt: retry(args.retry_cnt, "SPINWIRE_QP_RETRY_CNT", 7, 7),
            rnr_retry: retry(args.rnr_retry, "SPINWIRE_QP_RNR_RETRY", 7, 7),
            min_rnr_timer: retry(args.min_rnr_timer, "SPINWIRE_QP_MIN_RNR_TIMER", 31, 12),
            pause: args.pause_responder,
            no_post_recv: args.no_post_recv,
            misconnect: args.misconnect,
            flips,
        };
        params.datagram_fits(args.mtu)?;
        Ok(params)
    }

    /// The sizes, once the path MTU is known.
    ///
    /// # Errors
    /// A datagram is one packet.
    pub(super) fn settle(&mut self, mtu: PathMtu) -> Result<(), String> {
        let mtu = self.mtu.unwrap_or(u32::MAX).min(mtu.bytes_u32());
        if self.all && self.transport == Transport::Ud {
            self.sizes.get_or_insert_default().retain(|size| *size <= mtu);
        }
        self.sizes.get_or_insert_with(|| vec![mtu]);
        self.datagram_fits(Some(mtu))
    }

    /// Whether a client can have asked for this, whoever it is: a program that speaks this protocol checks its command line,
    /// and others may say anything.
    ///
    /// # Errors
    /// What cannot be.
    pub(super) fn sound(&self) -> Result<(), String> {
        let most = |name: &str, value: u64, min: u64, max: u64| {
            let fits = (min..=max).contains(&value);
            fits.then_some(()).ok_or_else(|| format!("{name} {value} is outside of {min} to {max}"))
        };
        let lists = POST_LIST_MAX as u64;
        let sizes = self.sizes.as_deref().unwrap_or_default();
        most("lcores", self.lcores.into(), 1, 8)?;
        let (lcores, depth) = (u64::from(self.lcores), u64::from(MAX_QP_WR));
        most("-q", self.qps.into(), lcores, lcores * u64::from(queue_pairs_max(self.transport)))?;
        most("sizes", sizes.len() as u64, 1, SIZES_MAX as u64)?;
        sizes.iter().try_for_each(|size| most("-s", (*size).into(), 1, SIZE_MAX.into()))?;
        most("-t", self.tx_depth.into(), 1, depth)?;
        most("-r", self.rx_depth.into(), 1, depth)?;
        most("-l", self.post_list.into(), 1, lists.min(self.tx_depth.into()))?;
        most("-Q", self.cq_mod.into(), 1, self.tx_depth.into())?;
        most("-I", self.inline.into(), 0, MAX_INLINE.into())?;
        most("-o", self.outs.into(), 1, MAX_RD_ATOMIC.into())?;
        most("--qp-timeout", self.timeout.into(), 0, 31)?;
        most("--retry-cnt", self.retry_cnt.into(), 0, 7)?;
        most("--rnr-retry", self.rnr_retry.into(), 0, 7)?;
        most("--min-rnr-timer", self.min_rnr_timer.into(), 0, 31)?;
        most("flipped bytes", self.flips.len() as u64, 0, SIZES_MAX as u64)?;
        if let Some(mtu) = self.mtu.filter(|mtu| PathMtu::from_bytes(*mtu as usize).is_none()) {
            return Err(format!("-m {mtu} is no path MTU"));
        }
        if self.pause.is_some_and(|pause| pause > PAUSE_MAX) {
            return Err(format!("--pause-responder is more than {PAUSE_MAX:?}"));
        }
        Ok(())
    }

    fn datagram_fits(&self, mtu: Option<u32>) -> Result<(), String> {
        let largest = self.sizes.iter().flatten().max().copied().unwrap_or(0);
        match mtu {
            Some(mtu) if self.transport == Transport::Ud && !self.all && largest > mtu => {
                Err(format!(
                    "a datagram is one packet: -s {largest} is more than the path MTU of {mtu}; use -s {mtu}, or -c rc"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The sizes of [`Params::settle`].
    pub(super) fn sizes(&self) -> &[u32] {
        self.sizes.as_deref().unwrap_or_default()
    }

    pub(super) fn largest(&self) -> u32 {
        self.sizes().iter().copied().max().unwrap_or(0)
    }

    /// Buffers of one queue pair and side.
    pub(super) const fn slots(&self) -> u32 {
        match self.buffers {
            Buffers::Warm => 1,
            Buffers::Rotating | Buffers::App => ROTATING,
        }
    }

    /// Whether the server posts operations too.
    pub(super) const fn both_send(&self) -> bool {
        self.bidirectional || self.test.is_ping_pong()
    }

    /// Whether an end posts receives.
    pub(super) fn receives(&self, server: bool) -> bool {
        match self.test.op() {
            // The receiver of unreliable messages tells how far it is, since no acknowledgement does.
            _ if !self.transport.is_reliable() => true,
            Op::Send => server || self.both_send(),
            Op::Write | Op::Read | Op::Atomic => false,
        }
    }

    /// How often the untimed pass moves every buffer: one message for each request that can be in flight, as long as
    /// that is no work to speak of.
    pub(super) fn rounds(&self, size: u32) -> u32 {
        if self.test.is_latency() || self.test.op() == Op::Atomic {
            return 1;
        }
        let most = if self.all { ROUNDS_EACH } else { ROUNDS };
        let bytes = u64::from(self.qps) * u64::from(self.slots()) * u64::from(size);
        let affordable = u32::try_from(VERIFY_BYTES / bytes.max(1)).unwrap_or(u32::MAX);
        (self.tx_depth / self.slots()).min(most).min(affordable).max(1)
    }

    /// Queue pairs of one lcore.
    pub(super) const fn qps_of(&self, lcore: u32) -> u32 {
        let even = self.qps / self.lcores;
        if lcore < self.qps % self.lcores { even + 1 } else { even }
    }

    /// Receives posted again at a time.
    pub(super) fn repost(&self) -> u32 {
        REPOST.min(self.rx_depth.div_ceil(2))
    }

    /// Silence after which a request fails with status 12; `None`: never.
    pub(super) fn budget(&self) -> Option<Duration> {
        (self.timeout != 0)
            .then(|| Duration::from_nanos(4096 << self.timeout) * (u32::from(self.retry_cnt) + 1))
    }
}

/// A retry field from a variable, which may have been set for something else: a bad one is ignored.
fn from_environment(
    environment: &dyn Fn(&str) -> Option<String>,
    name: &str,
    max: u8,
) -> Option<u8> {
    let text = environment(name)?;
    let value = text.trim().parse().ok().filter(|value| *value <= max);
    if value.is_none() {
        tracing::warn!("{name}={text} is ignored: it is not 0 to {max}");
    }
    value
}

const fn queue_pairs_max(transport: Transport) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "a table of a few thousand")]
    let slots = MAX_QPS as u32 - 1;
    // An XRC connection has a queue pair for each direction.
    if matches!(transport, Transport::Xrc) { slots / 2 } else { slots }
}

fn count(flag: &str, value: u32, min: u32, max: u32) -> Result<u32, String> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{flag} {value} is outside of {min} to {max}"))
    }
}

fn bandwidth_of(test: Test) -> Test {
    match test.op() {
        Op::Send => Test::SendBw,
        Op::Write => Test::WriteBw,
        Op::Read => Test::ReadBw,
        Op::Atomic => Test::AtomicBw,
    }
}

/// What excludes each other, or changes nothing.
fn refuse_contradictions(args: &PerfArgs) -> Result<(), String> {
    if args.rdma_cm || args.connect == Connect::Cm {
        if args.transport == Transport::Xrc {
            return Err(
                "the connection manager connects RC, UC and UD here: use -c rc, or --connect oob"
                    .into(),
            );
        }
        if args.lcores > 1 {
            return Err(
                "a device's connections are managed on one lcore: use --lcores 1, or --connect oob"
                    .into(),
            );
        }
        if args.processes == Some(1) {
            return Err("the connection manager connects two devices: use --processes 2".into());
        }
        if args.wire == Wire::Shm {
            return Err("the connection manager needs packets: use --wire auto or udp".into());
        }
    }
    match args.misconnect {
        Some(Misconnect::Qkey) if args.transport != Transport::Ud => {
            return Err("--misconnect qkey changes nothing: only -c ud has Q_Keys".into());
        }
        Some(wrong @ (Misconnect::AccessQp | Misconnect::AccessMr))
            if args.test.op() == Op::Send && !args.alternate_write =>
        {
            return Err(format!(
                "--misconnect {wrong} changes nothing: SENDs need no right; measure write, read or atomic"
            ));
        }
        _ => {}
    }
    if args.part.is_none() && args.listen.is_none() && args.peer.is_none() && args.port != 18515 {
        return Err("-p goes with --listen or --peer".into());
    }
    if args.processes == Some(1) && args.lcores > 4 {
        return Err(format!(
            "one process has at most 8 lcores, 4 for each side: --lcores {} needs --processes 2",
            args.lcores
        ));
    }
    if args.wire == Wire::Shm
        && args.faults.iter().any(|fault| !fault.trim_start().starts_with("flip"))
    {
        return Err("faults disturb packets, and --wire shm has none: use --wire udp".into());
    }
    Ok(())
}

/// Whether the transport has the operation, and the flags fit it.
fn operation(args: &PerfArgs) -> Result<(), String> {
    let (test, transport) = (args.test, args.transport);
    match (test.op(), transport) {
        (Op::Read, Transport::Uc | Transport::Ud) => {
            return Err(format!("{transport} has no READ: use -c rc or -c xrc"));
        }
        (Op::Atomic, Transport::Uc | Transport::Ud) => {
            return Err(format!("{transport} has no atomics: use -c rc or -c xrc"));
        }
        (Op::Write, Transport::Ud) => {
            return Err("ud has no WRITE: use -c rc, uc or xrc, or send-bw".into());
        }
        _ => {}
    }
    if args.bidirectional && test.is_latency() {
        return Err(format!("{test} has one message under way: -b is for {}", bandwidth_of(test)));
    }
    if args.inline > MAX_INLINE {
        return Err(format!(
            "-I {} is more than the device's {MAX_INLINE} inline bytes: use -I {MAX_INLINE} or less",
            args.inline
        ));
    }
    if args.inline > 0 && matches!(test.op(), Op::Read | Op::Atomic) {
        return Err(format!("{test} brings data, which cannot be inline: leave out -I"));
    }
    if args.inline > 0 && args.buffers == Buffers::App {
        return Err("inline data leaves its buffer when it is posted: -I and --buffers app exclude each other".into());
    }
    if args.alternate_write && (test != Test::SendBw || !transport.is_reliable()) {
        return Err("--alternate-write is for send-bw with -c rc or -c xrc".into());
    }
    if args.alternate_write && args.buffers == Buffers::App {
        return Err("--alternate-write and --buffers app exclude each other: use rotating".into());
    }
    if args.events && test == Test::WriteLat {
        return Err(
            "write-lat watches memory, which has no events: leave out -e, or use send-lat".into()
        );
    }
    if args.no_post_recv && test.op() != Op::Send {
        return Err(format!(
            "{test} needs no receives: --no-post-recv is for send-bw and send-lat"
        ));
    }
    Ok(())
}

fn sizes(args: &PerfArgs) -> Result<Option<Vec<u32>>, String> {
    if args.test.op() == Op::Atomic {
        return match (args.all, args.size) {
            (false, None | Some(ATOMIC_SIZE)) => Ok(Some(vec![ATOMIC_SIZE])),
            _ => Err(format!("an atomic has {ATOMIC_SIZE} bytes: leave out -s and -a")),
        };
    }
    if args.all {
        let exponents = 1..=ALL_SIZES_MAX.trailing_zeros();
        return Ok(Some(exponents.map(|exponent| 1 << exponent).collect()));
    }
    match (args.size, args.test.is_latency(), args.transport) {
        (Some(size), ..) if size == 0 || size > SIZE_MAX => {
            Err(format!("-s {size} is outside of 1 to {SIZE_MAX}"))
        }
        (Some(size), ..) => Ok(Some(vec![size])),
        (None, true, _) => Ok(Some(vec![LATENCY_SIZE])),
        (None, false, Transport::Ud) => Ok(None),
        (None, false, _) => Ok(Some(vec![BANDWIDTH_SIZE])),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        perf: PerfArgs,
    }

    pub(in crate::perf) fn params(line: &str) -> Result<Params, String> {
        let cli = Cli::try_parse_from(std::iter::once("perf").chain(line.split_whitespace()));
        let cli = cli.unwrap_or_else(|error| panic!("{line}: {error}"));
        Params::of(&cli.perf, Vec::new(), &|name| match name {
            "SPINWIRE_QP_RETRY_CNT" => Some("5".to_owned()),
            "SPINWIRE_QP_RNR_RETRY" => Some("9".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn defaults_are_perftests_where_it_has_them() {
        let send = params("send-bw").unwrap();
        assert_eq!(
            (send.sizes(), send.tx_depth, send.qps, send.slots()),
            (&[65536][..], 128, 1, 1)
        );
        assert_eq!(
            (send.timeout, send.retry_cnt, send.rnr_retry, send.min_rnr_timer),
            (14, 5, 7, 12),
            "a variable counts, a bad one does not"
        );
        assert_eq!(send.budget(), Some(Duration::from_nanos(4096 << 14) * 6));
        let flags = params("send-bw -u 9 --retry-cnt 1 --rnr-retry 2 --min-rnr-timer 3").unwrap();
        assert_eq!(
            (flags.timeout, flags.retry_cnt, flags.rnr_retry, flags.min_rnr_timer),
            (9, 1, 2, 3)
        );
        let latency = params("write-lat").unwrap();
        assert_eq!((latency.sizes(), latency.tx_depth, latency.both_send()), (&[2][..], 1, true));
        assert_eq!(params("atomic-bw -c XRC").unwrap().sizes(), [8]);
        let all = params("read-bw -a").unwrap();
        assert_eq!((all.sizes()[0], all.largest(), all.sizes().len()), (2, 8 << 20, 23));
        let many = params("send-bw -q 1024").unwrap();
        assert_eq!((many.tx_depth, many.rx_depth, many.post_list), (4, 16, 4));
        assert_eq!(params("send-bw -n 7").unwrap().length, Length::Messages(7));
        assert_eq!(params("send-bw -D 7").unwrap().length, Length::Time(Duration::from_secs(7)));
    }

    #[test]
    fn datagrams_take_the_path_mtu() {
        let mut one = params("send-bw -c ud").unwrap();
        one.settle(PathMtu::B4096).unwrap();
        assert_eq!(one.sizes(), [4096]);
        let mut all = params("send-bw -c ud -a").unwrap();
        all.settle(PathMtu::B1024).unwrap();
        assert_eq!(all.largest(), 1024);
        let mut large = params("send-bw -c ud -s 5000").unwrap();
        let error = large.settle(PathMtu::B4096).unwrap_err();
        assert!(error.contains("use -s 4096"), "{error}");
    }

    #[test]
    fn what_cannot_be_names_what_can() {
        for (line, fix) in [
            ("read-bw -c uc", "-c rc"),
            ("atomic-lat -c ud", "no atomics"),
            ("write-bw -c ud", "send-bw"),
            ("send-bw -c ud -m 1024 -s 2048", "-s 1024"),
            ("send-bw -I 513", "-I 512"),
            ("read-bw -I 8", "leave out -I"),
            ("send-bw -q 0", "1 to 2047"),
            ("send-bw -q 2048", "1 to 2047"),
            ("send-lat -q 2", "use send-bw"),
            ("send-bw --lcores 2", "-q 2"),
            ("send-bw -m 1000", "4096"),
            ("send-bw -Q 200", "-Q 128"),
            ("write-lat -Q 2", "write-bw"),
            ("write-lat -b", "write-bw"),
            ("atomic-bw -s 16", "8 bytes"),
            ("send-bw -s 0", "outside of 1"),
            ("send-bw -R -c xrc", "-c rc"),
            ("send-bw --connect cm -q 2 --lcores 2", "--lcores 1"),
            ("send-bw -R --processes 1", "--processes 2"),
            ("send-bw -R --wire shm", "--wire auto or udp"),
            ("send-bw --misconnect access-qp", "measure write, read or atomic"),
            ("write-bw --misconnect qkey", "only -c ud"),
            ("send-bw -p 9", "--listen"),
            ("write-bw --no-post-recv", "send-bw"),
            ("send-bw -I 8 --buffers app", "exclude"),
            ("send-bw -c uc --alternate-write", "-c rc"),
            ("write-lat -e", "send-lat"),
        ] {
            let error = params(line).unwrap_err();
            assert!(error.contains(fix), "{line}: {error}");
        }
    }

    #[test]
    fn the_untimed_pass_has_a_message_for_each_request_in_flight() {
        let rounds = |line: &str, size| params(line).unwrap().rounds(size);
        assert_eq!((rounds("send-bw", 64), rounds("send-bw -t 9", 64)), (128, 9));
        assert_eq!((rounds("send-bw --buffers rotating", 64), rounds("send-lat", 64)), (8, 1));
        assert_eq!((rounds("send-bw", 8 << 20), rounds("send-bw", 1 << 30)), (8, 1));
        assert_eq!((rounds("atomic-bw", 8), rounds("send-bw -a", 64)), (1, 8));
    }

    /// Whatever a client can ask for on its command line is sound; what only another program can ask for is not.
    #[test]
    fn what_no_command_line_asks_for_is_refused() {
        for line in ["send-bw", "write-bw -a -q 9 --lcores 3", "read-lat -s 1", "atomic-bw -t 1"] {
            params(line).unwrap().sound().unwrap();
        }
        let wrong = |change: &dyn Fn(&mut Params)| {
            let mut asked = params("send-bw").unwrap();
            change(&mut asked);
            asked.sound().unwrap_err()
        };
        assert_eq!(wrong(&|it| it.qps = u32::MAX), "-q 4294967295 is outside of 1 to 2047");
        for change in [
            &|it: &mut Params| it.qps = 0,
            &|it: &mut Params| it.lcores = 0,
            &|it: &mut Params| it.tx_depth = u32::MAX,
            &|it: &mut Params| it.rx_depth = 0,
            &|it: &mut Params| it.post_list = 129,
            &|it: &mut Params| it.sizes = None,
            &|it: &mut Params| it.sizes = Some(vec![u32::MAX]),
            &|it: &mut Params| it.sizes = Some(vec![1; SIZES_MAX + 1]),
            &|it: &mut Params| it.timeout = 64,
            &|it: &mut Params| it.mtu = Some(1500),
            &|it: &mut Params| it.pause = Some(Duration::MAX),
        ] as [&dyn Fn(&mut Params); 11]
        {
            wrong(change);
        }
    }

    #[test]
    fn queue_pairs_are_spread_evenly() {
        let params = params("send-bw -q 7 --lcores 3").unwrap();
        assert_eq!([0, 1, 2].map(|lcore| params.qps_of(lcore)), [3, 2, 2]);
    }
}
