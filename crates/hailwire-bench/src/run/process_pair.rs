//! One repeat of one subject: a pair of processes does the work, and its resource usage is read from outside.

use std::{collections::BTreeMap, time::Instant};

use super::subject_process::SubjectProcess;
use crate::{
    BenchError,
    measure::process::{self, ProcessUsage},
    work::{ConnectionStart, MeasuredWork, WorkRequest},
};

/// The two processes of a subject.
pub(super) struct ProcessPair {
    pub(super) server: SubjectProcess,
    pub(super) client: SubjectProcess,
    /// The node to which both are attached.
    pub(super) node: Option<SubjectProcess>,
    pub(super) helper: Option<SubjectProcess>,
}

impl ProcessPair {
    pub(super) fn usage(&self) -> [ProcessUsage; 2] {
        [
            process::usage(self.client.pid()),
            process::usage(self.server.pid()),
        ]
    }

    /// Whose processor time and memory are read: their names in figures, and their process ids.
    fn parties(&self) -> Vec<(&'static str, u32)> {
        let both = [("client", self.client.pid()), ("server", self.server.pid())];
        let node = self.node.iter().map(|node| ("node", node.pid()));
        both.into_iter().chain(node).collect()
    }

    /// Stops them; returns how many had to be killed.
    pub(super) async fn end(self) -> u32 {
        let mut killed = u32::from(!self.client.end().await);
        killed += u32::from(!self.server.end().await);
        for process in self.node.into_iter().chain(self.helper) {
            killed += u32::from(!process.end().await);
        }
        killed
    }
}

/// Has connections held, and reads the memory of both processes above their idle state.
pub(super) async fn added(
    pair: &mut ProcessPair,
    work: &WorkRequest,
) -> Result<MeasuredWork, BenchError> {
    let idle = pair.usage();
    let mut measured = pair.client.ask(work).await?;
    let held = pair.usage();
    let pids = [pair.client.pid(), pair.server.pid()];
    let mut added = 0.0;
    for (i, participant) in ["client", "server"].into_iter().enumerate() {
        let above = held[i].rss_bytes as f64 - idle[i].rss_bytes as f64;
        added += above.max(0.0);
        measured = measured
            .with(
                &format!("{participant}_idle_rss_bytes"),
                idle[i].rss_bytes as f64,
            )
            .with(
                &format!("{participant}_rss_bytes"),
                held[i].rss_bytes as f64,
            )
            .with(
                &format!("{participant}_peak_rss_bytes"),
                held[i].peak_rss_bytes as f64,
            )
            .with(
                &format!("{participant}_pss_bytes"),
                process::pss_bytes(pids[i]) as f64,
            )
            .with(&format!("{participant}_added_rss_bytes"), above.max(0.0));
    }
    Ok(measured.with("added_rss_bytes", added))
}

/// Has work done, and reads what all processes used for it.
pub(super) async fn measure(
    pair: &mut ProcessPair,
    work: &WorkRequest,
    network: &str,
) -> Result<MeasuredWork, BenchError> {
    if matches!(work, WorkRequest::Operation { .. }) {
        return pair.client.ask(work).await;
    }
    let parties = pair.parties();
    for (_, pid) in &parties {
        process::reset_peak(*pid);
    }
    // A host of the lab has counters of its own; on loopback they count the whole machine.
    let segments = || match (network, work) {
        ("loopback", _) => None,
        (_, WorkRequest::Bulk { .. }) => process::segments(pair.server.pid()),
        _ => None,
    };
    let sent_before = segments();
    let used = || -> Vec<ProcessUsage> {
        parties
            .iter()
            .map(|(_, pid)| process::usage(*pid))
            .collect()
    };
    let (before, begun) = (used(), Instant::now());
    let mut measured = pair.client.ask(work).await?;
    let (after, wall) = (used(), begun.elapsed().as_secs_f64());
    if let (Some(before), Some(after)) = (sent_before, segments())
        && !measured.figures.contains_key("lost_percent")
        && let Some(percent) = after.lost_percent_since(&before)
    {
        measured = measured.with("lost_percent", percent);
    }
    let mut all = 0.0;
    for (((participant, _), before), after) in parties.iter().zip(&before).zip(&after) {
        let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
        all += cpu;
        measured = measured.with(&format!("{participant}_cpu_s"), cpu).with(
            &format!("{participant}_peak_rss_bytes"),
            after.peak_rss_bytes as f64,
        );
    }
    measured = measured
        .with("cpu_s", all)
        .with("cpu_percent", all / wall * 100.0);
    let (count, bytes) = (measured.figure("count"), measured.figure("bytes"));
    if count > 0.0 {
        measured = measured.with("cpu_us_per_message", all * 1e6 / count);
    }
    let moved = match work {
        WorkRequest::Rate { bytes, .. } => count * *bytes as f64,
        _ => bytes,
    };
    if moved > 0.0 {
        measured = measured.with("cpu_ns_per_byte", all * 1e9 / moved);
    }
    Ok(measured)
}

/// Waits after a stream that was cut off for an echo on the same connection: what a kernel still has of the stream to send,
/// up to megabytes, is sent before it, and would otherwise delay the next subject.
pub(super) async fn emptied(pair: &mut ProcessPair, work: &WorkRequest) {
    if matches!(work, WorkRequest::Bulk { seconds, .. } if *seconds > 0.0) {
        let echo = WorkRequest::Dispatch {
            agents: 1,
            connections: 1,
            start: ConnectionStart::Warm,
            at_once: false,
            bytes: 100,
        };
        // A subject that does not support this work answers with an error, and one that has ended reports it at its next repeat.
        let _ = pair.client.ask(&echo).await;
    }
}

/// The rate relative to the first entry's, and the share of messages that found a connection up.
pub(super) fn pooled(
    measured: MeasuredWork,
    work: &WorkRequest,
    first: &mut Option<f64>,
) -> MeasuredWork {
    let rate = measured.figure("messages_per_s");
    let base = *first.get_or_insert(rate);
    let connections = match work {
        WorkRequest::Rate {
            agents,
            connections: 0,
            ..
        } => f64::from(*agents),
        WorkRequest::Rate { connections, .. } => f64::from(*connections),
        _ => 0.0,
    };
    let count = measured.figure("count");
    let reused = (count - connections).max(0.0) / count.max(1.0) * 100.0;
    measured
        .with("gain_percent", (rate / base - 1.0) * 100.0)
        .with("reuse_percent", reused)
}

/// The figures whose names begin with `word_`, without it.
pub(super) fn prefixed(figures: &BTreeMap<String, f64>, word: &str) -> BTreeMap<String, f64> {
    let rest = |name: &str| Some(name.strip_prefix(word)?.strip_prefix('_')?.to_owned());
    figures
        .iter()
        .filter_map(|(name, value)| Some((rest(name)?, *value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_compared_with_a_connection_for_each_agent() {
        let work = |connections| WorkRequest::Rate {
            in_flight: 1,
            seconds: 1.0,
            bytes: 1,
            agents: 10,
            connections,
        };
        let rate = |rate: f64| {
            MeasuredWork::default()
                .with("messages_per_s", rate)
                .with("count", 100.0)
        };
        let mut first = None;
        let alone = pooled(rate(100.0), &work(0), &mut first);
        assert_eq!(alone.figure("gain_percent"), 0.0);
        assert_eq!(alone.figure("reuse_percent"), 90.0);
        let shared = pooled(rate(125.0), &work(2), &mut first);
        assert_eq!(shared.figure("gain_percent"), 25.0);
        assert_eq!(shared.figure("reuse_percent"), 98.0);
    }

    #[test]
    fn figures_of_a_priority_are_found_by_its_word() {
        let figures = BTreeMap::from([
            ("high_p50_us".to_owned(), 1.0),
            ("highest_p50_us".to_owned(), 2.0),
            ("low_p50_us".to_owned(), 3.0),
        ]);
        let high = prefixed(&figures, "high");
        assert_eq!(high, BTreeMap::from([("p50_us".to_owned(), 1.0)]));
    }
}
