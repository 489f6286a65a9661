//! The distance between two cores: half the round trip of a cache line.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::pin;

/// Turns of one measurement, the first tenth of which warms up.
const TURNS: u32 = 20_000;
/// Measurements, of which the median counts.
const SAMPLES: usize = 5;

#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

/// Nanoseconds that a cache line takes from one core to the other, the median of a few
/// measurements. Figures of two cores are only comparable where it is the same.
///
/// # Errors
/// When one of the cores cannot be used.
pub fn hop_ns(cores: [usize; 2]) -> Result<f64> {
    let samples: Result<Vec<f64>> = (0..SAMPLES).map(|_| sample(cores)).collect();
    let mut samples = samples?;
    samples.sort_by(f64::total_cmp);
    Ok(samples[SAMPLES / 2])
}

fn sample([a, b]: [usize; 2]) -> Result<f64> {
    let (there, back) = (Line::default(), Line::default());
    // Both cores are known to work before one waits for the other.
    let ready = std::sync::Barrier::new(2);
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(a);
            ready.wait();
            for turn in 1..=u64::from(TURNS) {
                wait(&there, turn);
                back.0.store(turn, Ordering::Release);
            }
            pinned
        });
        let measured = scope.spawn(|| {
            let pinned = pin(b);
            ready.wait();
            let mut begin = Instant::now();
            for turn in 1..=u64::from(TURNS) {
                if turn == u64::from(TURNS / 10) {
                    begin = Instant::now();
                }
                there.0.store(turn, Ordering::Release);
                wait(&back, turn);
            }
            let hops = 2 * (TURNS - TURNS / 10);
            pinned.map(|()| begin.elapsed().as_secs_f64() * 1e9 / f64::from(hops))
        });
        echo.join().map_err(|_| anyhow!("the echoing thread panicked"))??;
        measured.join().map_err(|_| anyhow!("the measuring thread panicked"))?
    })
}

fn wait(line: &Line, for_turn: u64) {
    while line.0.load(Ordering::Acquire) != for_turn {
        spin_loop();
    }
}
