//! What time it is, cheaply.
//!
//! Times to live, back-off and "last seen" need seconds or milliseconds, so they read the clock that the kernel keeps
//! at its tick: a few loads, where the exact one takes the processor's counter. It is up to two ticks late, since at each
//! the kernel counts whole ones only (8 ms at 250 a second), and never runs backwards. How long a call took is measured
//! with the exact clock.

use std::time::Duration;

/// The time since an origin that is the same for the whole process.
#[cfg(target_os = "linux")]
#[inline]
#[must_use]
pub fn coarse() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(secs, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The time since an origin that is the same for the whole process.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn coarse() -> Duration {
    use std::{sync::OnceLock, time::Instant};
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact clock with the same origin.
    #[cfg(target_os = "linux")]
    fn exact() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// The kernel's tick.
    #[cfg(target_os = "linux")]
    fn tick() -> Duration {
        let time = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// The kernel may be kept from its tick while this runs, on a machine that gives processors to others too. So it is not
    /// each reading that has to be recent, but all those of some 50 ms; that none is early or earlier than one before
    /// holds always.
    #[cfg(target_os = "linux")]
    #[test]
    fn it_follows_the_exact_clock_by_two_ticks_and_never_runs_backwards() {
        let late = 2 * tick() + Duration::from_millis(1);
        let started = exact();
        let (mut last, mut since, mut latest) = (coarse(), started, Duration::ZERO);
        while since + Duration::from_millis(50) > exact() {
            let before = exact();
            let now = coarse();
            assert!(now >= last, "{now:?} after {last:?}");
            assert!(now <= exact(), "ahead of the exact clock");
            last = now;
            let behind = before.saturating_sub(now);
            latest = latest.max(behind);
            if behind > late {
                since = exact();
            }
            let within = since - started < Duration::from_secs(20);
            assert!(within, "up to {latest:?} behind, {late:?} were expected");
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[test]
    fn it_never_runs_backwards() {
        let (from, started) = (coarse(), std::time::Instant::now());
        let mut last = from;
        while started.elapsed() < Duration::from_millis(50) {
            let now = coarse();
            assert!(now >= last);
            last = now;
        }
        assert!(last > from);
    }
}
