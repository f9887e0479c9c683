//! The schedule of honest calls.
//!
//! A runtime's timer has a granularity of a millisecond, which is longer than a call takes; busy polling would take
//! processor time from the processes that are measured. So a thread of its own sleeps, which the system wakes within about ten microseconds, and sends the calls that are due over a channel.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::measure::{NextMessage, OpenLoop};

/// A call that is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueCall {
    /// Index of its flow.
    pub(super) flow: usize,
    /// Its number within the flow.
    pub(super) number: u64,
    /// When it was due.
    pub(super) at: Instant,
}

/// Sends the calls of several flows when they are due, `per_second` of each, for a time. Ends early when the receiver is dropped.
pub(super) fn start(per_second: &[f64], time: Duration) -> mpsc::UnboundedReceiver<DueCall> {
    let (tell, told) = mpsc::unbounded_channel();
    let seconds = time.as_secs_f64();
    let mut flows: Vec<(OpenLoop, u64)> = per_second
        .iter()
        .map(|rate| (OpenLoop::new(*rate, seconds), 0))
        .collect();
    thread::spawn(move || {
        let begun = Instant::now();
        while !tell.is_closed() {
            let mut earliest: Option<Duration> = None;
            let now = begun.elapsed();
            for (flow, (open, number)) in flows.iter_mut().enumerate() {
                loop {
                    match open.next(now) {
                        NextMessage::Send { due } => {
                            // The calls in flight are bounded by the deadline of each call.
                            open.ended();
                            let at = begun + due;
                            let number = std::mem::replace(number, *number + 1);
                            let _ = tell.send(DueCall { flow, number, at });
                        }
                        NextMessage::Wait { until } => {
                            earliest = Some(earliest.map_or(until, |at| at.min(until)));
                            break;
                        }
                        NextMessage::Full | NextMessage::Done => break,
                    }
                }
            }
            match earliest {
                Some(until) => thread::sleep(until.saturating_sub(begun.elapsed())),
                None => break,
            }
        }
    });
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_flow_has_as_many_calls_as_its_rate_says_and_then_it_ends() {
        let mut told = start(&[200.0, 50.0], Duration::from_millis(200));
        let mut counts = [0u64; 2];
        while let Some(due) = told.recv().await {
            assert_eq!(due.number, counts[due.flow]);
            assert!(due.at <= Instant::now());
            counts[due.flow] += 1;
        }
        assert_eq!(counts, [40, 10]);
    }
}
