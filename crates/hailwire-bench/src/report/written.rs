//! Lines as the first version of the smoke suite wrote them, for results that are kept.

use serde::Deserialize;

/// One repeat of one piece of work on one subject.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) row: String,
    pub(super) subject: String,
    pub(super) repeat: u32,
    pub(super) measured: Measured,
}

/// What came of it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) max_us: Option<f64>,
}

impl Measured {
    pub(super) fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }
}

/// Memory of one node process.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Memory {
    pub(super) peers: u32,
    pub(super) rss_bytes: u64,
    pub(super) peak_bytes: u64,
}
