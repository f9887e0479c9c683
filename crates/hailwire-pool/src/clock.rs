//! Time in whole milliseconds, as words of atomics keep it.

use std::time::Duration;

/// Whole milliseconds, of which a word keeps 48 bits: 8,900 years.
#[inline]
pub(crate) const fn millis(time: Duration) -> u64 {
    const MOST: u64 = (1 << 48) - 2;
    let millis = time.as_secs().saturating_mul(1000);
    let millis = millis.saturating_add(time.subsec_millis() as u64);
    match millis < MOST {
        true => millis,
        false => MOST,
    }
}
