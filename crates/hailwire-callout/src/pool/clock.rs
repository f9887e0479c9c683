//! What time it is, cheaply.
//!
//! Times to live, back-off and "last seen" need seconds or milliseconds, so they read the clock that the kernel keeps
//! at its tick: a few loads, where the exact one takes the processor's counter. It is up to 4 ms late, and never
//! runs backwards. How long a call took is measured with the exact clock.

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

    #[test]
    fn it_follows_the_exact_clock_and_never_runs_backwards() {
        let (started, from) = (std::time::Instant::now(), coarse());
        let mut last = from;
        while started.elapsed() < Duration::from_millis(50) {
            let now = coarse();
            assert!(now >= last);
            last = now;
        }
        assert!((30..=60).contains(&(last - from).as_millis()));
    }
}
