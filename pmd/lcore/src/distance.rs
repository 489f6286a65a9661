//! How far two cores are apart: the time in which a cache line goes from one to the other.
//!
//! What two cores do together costs a multiple of it, and virtual machines change it while they run. So figures of two
//! cores can be compared only where it is the same, and whoever measures prints it.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin::{PinError, pin_current};

/// Round trips of one sample.
const ROUND_TRIPS: u64 = 4000;
/// Samples, of which the median counts; one more before them warms up.
const SAMPLES: usize = 9;
/// How long the other core may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Says that there is no more.
const END: u64 = u64::MAX;

/// Why there is no distance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DistanceError {
    /// A core has none to itself.
    #[error("core {0} was named twice; name two")]
    SameCore(usize),
    /// A thread cannot be tied to its core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The other thread did not get to run.
    #[error("core {0} did not answer within a second; is something else running there?")]
    Silent(usize),
}

/// A cache line of its own, and the one beside it that a prefetcher takes along.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds of one way between two cores: half the round trip of a cache line, the median of a few samples. Two
/// threads spin on them for a few milliseconds.
///
/// # Errors
/// See [`DistanceError`].
pub fn hop_ns(first: usize, second: usize) -> Result<f64, DistanceError> {
    if first == second {
        return Err(DistanceError::SameCore(first));
    }
    let lines = [Line::default(), Line::default()];
    thread::scope(|scope| {
        let answering = scope.spawn(|| answer(&lines, second));
        let asking = scope.spawn(|| {
            let asked = pin_current(first)
                .map_err(DistanceError::from)
                .and_then(|()| ask(&lines).ok_or(DistanceError::Silent(second)));
            lines[0].0.store(END, Ordering::Release);
            asked
        });
        let asked = asking.join().unwrap_or(Err(DistanceError::Silent(first)));
        answering.join().unwrap_or(Err(DistanceError::Silent(second)))?;
        asked
    })
}

fn answer([there, back]: &[Line; 2], core: usize) -> Result<(), DistanceError> {
    pin_current(core)?;
    let mut last = 0;
    while last != END {
        let seen = there.0.load(Ordering::Acquire);
        if seen == last {
            spin_loop();
        } else {
            last = seen;
            back.0.store(seen, Ordering::Release);
        }
    }
    Ok(())
}

fn ask([there, back]: &[Line; 2]) -> Option<f64> {
    let mut number = 1;
    there.0.store(number, Ordering::Release);
    let begin = Instant::now();
    while back.0.load(Ordering::Acquire) != number {
        if begin.elapsed() > PATIENCE {
            return None;
        }
    }
    let mut samples = [0.0; SAMPLES + 1];
    for sample in &mut samples {
        let begin = Instant::now();
        for _ in 0..ROUND_TRIPS {
            number += 1;
            there.0.store(number, Ordering::Release);
            while back.0.load(Ordering::Acquire) != number {
                spin_loop();
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a few thousand round trips")]
        let ways = (2 * ROUND_TRIPS) as f64;
        *sample = begin.elapsed().as_secs_f64() * 1e9 / ways;
    }
    let samples = &mut samples[1..];
    samples.sort_by(f64::total_cmp);
    Some(samples[SAMPLES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuset::CpuSet;

    #[test]
    fn two_cores_are_some_way_apart() {
        let cores: Vec<_> = CpuSet::allowed().unwrap().iter().take(2).collect();
        let [first, second] = cores[..] else { panic!("two cores are needed") };
        let apart = hop_ns(first, second).unwrap();
        assert!(apart > 1.0 && apart < 1e6, "{apart} ns");
        // The caller may run where it could before.
        assert!(CpuSet::allowed().unwrap().contains(second));
    }

    #[test]
    fn one_core_has_no_distance() {
        assert_eq!(hop_ns(0, 0).unwrap_err().to_string(), "core 0 was named twice; name two");
        for (first, second) in [(0, 5000), (5000, 0)] {
            let error = hop_ns(first, second).unwrap_err();
            assert!(matches!(error, DistanceError::Pin(_)), "{error}");
        }
    }
}
