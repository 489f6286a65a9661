//! How far two CPUs are apart: the time in which a cache line goes from one to the other.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pmd_lcore::pin;

/// Round trips that are timed, each time, and how often.
const ROUND_TRIPS: u64 = 4000;
const TIMES: usize = 9;
/// How long the other CPU may take to begin.
const PATIENCE: Duration = Duration::from_secs(1);
/// Says that there is no more.
const END: u64 = u64::MAX;

/// A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// One way between two CPUs in nanoseconds, the median of some rounds. `None` where there are not two, or a thread
/// cannot be tied to one.
pub(super) fn one_way(first: usize, second: usize) -> Option<u64> {
    if first == second {
        return None;
    }
    let lines: Arc<[Line; 2]> = Arc::default();
    let theirs = Arc::clone(&lines);
    let answering = thread::spawn(move || {
        let pinned = pin::pin_current(second).is_ok();
        theirs[1].0.store(u64::from(pinned), Ordering::Release);
        let mut last = 0;
        while pinned && last != END {
            let seen = theirs[0].0.load(Ordering::Acquire);
            if seen != last {
                last = seen;
                theirs[1].0.store(seen, Ordering::Release);
            }
            hint::spin_loop();
        }
    });
    let asking = thread::spawn(move || {
        let measured = pin::pin_current(first).ok().and_then(|()| ask(&lines));
        lines[0].0.store(END, Ordering::Release);
        measured
    });
    let measured = asking.join().ok().flatten();
    answering.join().ok()?;
    measured
}

fn ask(lines: &[Line; 2]) -> Option<u64> {
    let begin = Instant::now();
    while lines[1].0.load(Ordering::Acquire) != 1 {
        if begin.elapsed() > PATIENCE {
            return None;
        }
    }
    let mut number = 1;
    let mut times = [0; TIMES];
    for time in &mut times {
        let begin = Instant::now();
        for _ in 0..ROUND_TRIPS {
            number += 1;
            lines[0].0.store(number, Ordering::Release);
            while lines[1].0.load(Ordering::Acquire) != number {
                hint::spin_loop();
            }
        }
        *time = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX) / (2 * ROUND_TRIPS);
    }
    times.sort_unstable();
    Some(times[TIMES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_has_no_distance() {
        assert_eq!(one_way(0, 0), None);
        assert_eq!(one_way(0, 5000), None);
    }
}
