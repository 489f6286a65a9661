//! The distance between the two cores: half the round trip of a cache line, in nanoseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Turns of one measurement.
const TURNS: u64 = 20_000;
/// Measurements, of which the median counts.
const SAMPLES: usize = 5;

#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) {
    // Where it is refused, the figures are as good as the scheduler's mood; the probe shows it.
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
}

/// The median of a few measurements.
pub(crate) fn hop_ns(cpus: [usize; 2]) -> f64 {
    let mut samples: Vec<f64> = (0..SAMPLES).map(|_| sample(cpus)).collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

fn sample([a, b]: [usize; 2]) -> f64 {
    let (there, back) = (Line::default(), Line::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(a);
            for turn in 1..=TURNS {
                wait(&there, turn);
                back.0.store(turn, Ordering::Release);
            }
        });
        let measured = scope.spawn(|| {
            pin(b);
            let mut begin = Instant::now();
            for turn in 1..=TURNS {
                if turn == TURNS / 10 {
                    begin = Instant::now();
                }
                there.0.store(turn, Ordering::Release);
                wait(&back, turn);
            }
            #[expect(clippy::cast_precision_loss, reason = "a few thousand turns")]
            let hops = 2.0 * (TURNS - TURNS / 10) as f64;
            begin.elapsed().as_secs_f64() * 1e9 / hops
        });
        measured.join().unwrap_or(f64::NAN)
    })
}

fn wait(line: &Line, for_turn: u64) {
    while line.0.load(Ordering::Acquire) != for_turn {
        std::hint::spin_loop();
    }
}
