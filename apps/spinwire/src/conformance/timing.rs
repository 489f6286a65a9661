//! How long retries take: never less than the timers say, and not many times as much.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Qp, Rc, WorkRequest};

use super::finding::{Findings, Question, question};
use super::rig::{Ground, RECEIVES, Rig, Way, ends, go, step};

const ONCE: Question = question("no-retry", "IBTA 1.4, 9.7.6 (1 to 4 times 4.096 us x 2^timeout)");
const TWICE: Question = question("two-retries", "IBTA 1.4, 9.7.6 (each of 3 transmissions)");
const SEVEN: Question =
    question("retry-count-7", "IBTA 1.4, 9.7.6 (retry_cnt 7 is seven, not for ever)");
const FOREVER: Question = question("timeout-0", "man ibv_modify_qp (0: infinite)");
const RNR_ONCE: Question = question("rnr-no-retry", "IBTA 1.4, 9.7.5.2.8");
const RNR_TWICE: Question =
    question("rnr-two-retries", "IBTA 1.4, 9.7.5.2.8, table 45 (at least the timer)");
const RNR_FOREVER: Question = question("rnr-retry-7", "IBTA 1.4, 9.7.5.2.8 (7: infinite)");

/// What a machine that is busy may add to any of it.
const NOISE: Duration = Duration::from_secs(1);
/// Of several measurements, noise spoils some.
const ATTEMPTS: u32 = 3;
/// A real timer takes up to so many times its value.
const SLACK: u32 = 4;
/// `min_rnr_timer` 24 and 0 (IBTA 1.4, table 45).
const RNR_24: Duration = Duration::from_micros(40_960);
const RNR_0: Duration = Duration::from_micros(655_360);

const SILENT: &str = "1 transport retry counter exceeded (12)";
const UNREADY: &str = "1 RNR retry counter exceeded (13)";

fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

fn bounds(least: Duration) -> RangeInclusive<Duration> {
    least..=least * SLACK + NOISE
}

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    let silence = |timeout: u8, retries: u8| {
        move |rig: &Rig<'_>| -> anyhow::Result<(Duration, String)> {
            let (a, _b) =
                toward_silence(rig, |attr| (attr.timeout, attr.retry_cnt) = (timeout, retries))?;
            first(rig, &a, ack_timeout(timeout) * (u32::from(retries) + 1) * SLACK + 2 * NOISE)
        }
    };
    let once = bounds(ack_timeout(14));
    measure(ground, way, (ONCE, SILENT, &once), &silence(14, 0), found)?;
    let twice = bounds(ack_timeout(14) * 3);
    measure(ground, way, (TWICE, SILENT, &twice), &silence(14, 2), found)?;
    // Devices raise timeouts as short as this one: only that it ends is asked for.
    let seven = ack_timeout(8) * 8..=3 * NOISE;
    measure(ground, way, (SEVEN, SILENT, &seven), &silence(8, 7), found)?;
    forever(&ground.rig(way)?, found)?;
    let unready = |timer: u8, retries: u8, limit: Duration| {
        move |rig: &Rig<'_>| -> anyhow::Result<(Duration, String)> {
            let [a, _b] = rig.pair::<Rc>(|_, attr| {
                (attr.min_rnr_timer, attr.rnr_retry) = (timer, retries);
            })?;
            first(rig, &a, limit)
        }
    };
    // Before anybody would have waited.
    let at_once = Duration::ZERO..=RNR_0;
    measure(ground, way, (RNR_ONCE, UNREADY, &at_once), &unready(0, 0, 3 * NOISE), found)?;
    let waits = bounds(RNR_24 * 2);
    measure(ground, way, (RNR_TWICE, UNREADY, &waits), &unready(24, 2, 3 * NOISE), found)?;
    rnr_forever(&ground.rig(way)?, found)
}

/// Sends one message and waits for its end: how long that took, and how it ended.
fn first(rig: &Rig<'_>, qp: &Qp<Rc>, limit: Duration) -> anyhow::Result<(Duration, String)> {
    let start = Instant::now();
    qp.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(1))?;
    let (took, got) = rig.first_completion(0, limit, start);
    Ok((took.unwrap_or(limit), ends(&got)))
}

/// Measures until a measurement is within its bounds, or is too short, for which no noise is to blame.
fn measure(
    ground: &Ground<'_>,
    way: Way,
    (question, end, bounds): (Question, &str, &RangeInclusive<Duration>),
    once: &dyn Fn(&Rig<'_>) -> anyhow::Result<(Duration, String)>,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let mut attempt = 1;
    loop {
        let (took, ended) = once(&ground.rig(way)?)?;
        if ended != end {
            found.same(question, end, ended);
            return Ok(());
        }
        if took <= *bounds.end() || attempt == ATTEMPTS {
            found.within(question, end, bounds, took);
            return Ok(());
        }
        attempt += 1;
    }
}

/// A queue pair in RTS whose peer is in INIT, where what arrives is dropped.
fn toward_silence(rig: &Rig<'_>, change: impl Fn(&mut QpAttr)) -> anyhow::Result<(Qp<Rc>, Qp<Rc>)> {
    let (a, b) = (rig.qp(0, |_| {})?, rig.qp(1, |_| {})?);
    step(&b, &rig.attr(1, a.number())?, QpState::Init)?;
    let mut attr = rig.attr(0, b.number())?;
    change(&mut attr);
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        step(&a, &attr, to)?;
    }
    Ok((a, b))
}

/// Without a timeout nothing ends by itself.
fn forever(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let (a, _b) = toward_silence(rig, |attr| (attr.timeout, attr.retry_cnt) = (0, 0))?;
    let (_, early) = first(rig, &a, Duration::from_millis(200))?;
    go(&a, QpState::Error)?;
    let [got, _] = rig.complete([1, 0]);
    found.same(
        FOREVER,
        "nothing completes; after ERR 1 Work Request Flushed Error (5)",
        format_args!("{early}; after ERR {}", ends(&got)),
    );
    Ok(())
}

/// Who waits for ever waits longer than seven retries take, and is served when there is a receive.
fn rnr_forever(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    // Code 14 is 1.28 ms.
    let [a, b] = rig.pair::<Rc>(|_, attr| (attr.min_rnr_timer, attr.rnr_retry) = (14, 7))?;
    let (_, early) = first(rig, &a, Duration::from_millis(80))?;
    rig.sides[1].receives(&b, RECEIVES, 1, 64)?;
    let [sent, received] = rig.complete([1, 1]);
    found.same(
        RNR_FOREVER,
        "nothing completes in 80 ms; with a receive 1 success (0); peer: 100 success (0)",
        format_args!("{early} in 80 ms; with a receive {}; peer: {}", ends(&sent), ends(&received)),
    );
    Ok(())
}
