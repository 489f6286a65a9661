//! The time that an lcore reads once per loop.

use rustix::time::{ClockId, clock_gettime};

/// A clock in nanoseconds. Make one per process and copy it to every lcore, so that all count from the same start.
///
/// Follows CLOCK_MONOTONIC: on x86-64 with a time-stamp counter that the kernel itself trusts, by that counter, which
/// takes half the time; elsewhere through clock_gettime(2). The counter is calibrated once, so the two drift apart by
/// a few parts per million.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    System,
    #[cfg(target_arch = "x86_64")]
    Tsc(tsc::Tsc),
}

impl Clock {
    /// Finds the best source of this machine. Takes [`CALIBRATION`](crate::limits::CALIBRATION) where there is a
    /// counter to calibrate.
    pub fn start() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(tsc) = tsc::Tsc::calibrate() {
            return Self(Source::Tsc(tsc));
        }
        Self::system()
    }

    /// CLOCK_MONOTONIC as it is.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Nanoseconds since an arbitrary start, the same for all copies of one clock.
    ///
    /// Never goes back on one thread. Between threads, the order of two readings is right where one happens before
    /// the other by more than the few nanoseconds in which cores' counters differ.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.0 {
            Source::System => system_ns(),
            #[cfg(target_arch = "x86_64")]
            Source::Tsc(tsc) => tsc.now(),
        }
    }

    /// What is read, for a report: `tsc` or `clock_gettime`.
    pub const fn source(&self) -> &'static str {
        match self.0 {
            Source::System => "clock_gettime",
            #[cfg(target_arch = "x86_64")]
            Source::Tsc(_) => "tsc",
        }
    }
}

fn system_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // CLOCK_MONOTONIC counts from boot: neither part is negative.
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
mod tsc {
    use std::fs;
    use std::thread;

    use super::system_ns;
    use crate::limits::CALIBRATION;

    /// A reading of the time-stamp counter and the time it meant, with the rate between.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Tsc {
        base_ticks: u64,
        base_ns: u64,
        /// Nanoseconds per tick, times 2^32.
        scale: u64,
    }

    impl Tsc {
        /// None where the counter is not to be trusted, or did not move sensibly.
        pub(super) fn calibrate() -> Option<Self> {
            if !is_trusted_here() {
                return None;
            }
            let first = sample();
            thread::sleep(CALIBRATION);
            Self::between(first, sample())
        }

        /// From two pairs of ticks and nanoseconds.
        fn between(first: (u64, u64), last: (u64, u64)) -> Option<Self> {
            let ticks = last.0.checked_sub(first.0)?;
            let ns = last.1.checked_sub(first.1)?;
            let scale = (u128::from(ns) << 32).checked_div(u128::from(ticks))?;
            let scale = u64::try_from(scale).ok().filter(|&scale| scale > 0)?;
            Some(Self { base_ticks: last.0, base_ns: last.1, scale })
        }

        #[inline]
        pub(super) fn now(self) -> u64 {
            self.ns(ticks())
        }

        #[inline]
        fn ns(self, ticks: u64) -> u64 {
            // Another core's counter may lag behind the base by a few ticks.
            let ticks = ticks.saturating_sub(self.base_ticks);
            let ns = (u128::from(ticks) * u128::from(self.scale)) >> 32;
            #[expect(clippy::cast_possible_truncation, reason = "2^64 ns are 584 years")]
            let ns = ns as u64;
            self.base_ns + ns
        }
    }

    /// Ticks and nanoseconds at the same instant: the attempt that was interrupted least.
    fn sample() -> (u64, u64) {
        let attempt = || {
            let before = system_ns();
            let ticks = ticks();
            let width = system_ns() - before;
            (width, (ticks, before + width / 2))
        };
        let mut best = attempt();
        for _ in 0..15 {
            best = best.min(attempt());
        }
        best.1
    }

    #[inline]
    #[expect(unsafe_code, reason = "the counter has no safe accessor")]
    fn ticks() -> u64 {
        // SAFETY: every x86-64 has RDTSC, it touches no memory, and Linux lets user space execute it: where prctl(2)
        // PR_SET_TSC forbids it, the process is killed before it can break an invariant.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// Whether the counter runs at a constant rate, does not stop, and agrees between cores: the kernel offers it as a
    /// clock source only while its watchdog finds no fault with it.
    fn is_trusted_here() -> bool {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let sources = read("/sys/devices/system/clocksource/clocksource0/available_clocksource");
        is_trusted(&read("/proc/cpuinfo"), &sources)
    }

    fn is_trusted(cpuinfo: &str, sources: &str) -> bool {
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let has = |text: &str, word| text.split_whitespace().any(|other| other == word);
        has(flags, "constant_tsc") && has(flags, "nonstop_tsc") && has(sources, "tsc")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn ticks_become_nanoseconds() {
            // 2.5 GHz: 1 tick is 0.4 ns.
            let tsc = Tsc::between((1_000, 50), (26_000, 10_050)).unwrap();
            assert_eq!(tsc.ns(26_000), 10_050);
            assert_eq!(tsc.ns(26_000 + 2_500_000_000), 10_050 + 999_999_999);
            // A day later there is no overflow, and the fixed point is off by less than 100 us.
            let day = 86_400_000_000_000;
            assert!(tsc.ns(26_000 + day / 2 * 5).abs_diff(10_050 + day) < 100_000);
            assert_eq!(tsc.ns(25_990), 10_050, "a core that lags does not turn time back");
        }

        #[test]
        fn a_counter_that_stands_still_is_not_used() {
            assert!(Tsc::between((5, 0), (5, 1_000)).is_none());
            assert!(Tsc::between((5, 0), (4, 1_000)).is_none());
            assert!(Tsc::between((5, 7), (9, 7)).is_none());
        }

        #[test]
        fn trust_needs_flags_and_the_kernel() {
            let cpuinfo = "processor : 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n";
            assert!(is_trusted(cpuinfo, "kvm-clock tsc acpi_pm\n"));
            assert!(!is_trusted(cpuinfo, "hpet acpi_pm\n"));
            assert!(!is_trusted("flags : fpu tsc constant_tsc\n", "tsc\n"));
            assert!(!is_trusted("", ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never_goes_back(clock: Clock) {
        let first = clock.now();
        let mut last = first;
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        assert!(last > first);
    }

    #[test]
    fn time_never_goes_back() {
        never_goes_back(Clock::start());
        never_goes_back(Clock::system());
    }

    /// The reading lies between two of CLOCK_MONOTONIC, give or take what the calibration may be off: a wrong base or
    /// scale would be off by far more.
    #[test]
    fn follows_the_system_clock() {
        let clock = Clock::start();
        let tolerance = 10_000_000;
        let before = system_ns();
        let now = clock.now();
        let after = system_ns();
        assert!(now + tolerance >= before && now <= after + tolerance, "{before} {now} {after}");
    }
}
