//! Processor time and memory of a process and its children, read from `/proc`.

use std::{collections::VecDeque, fs, time::Duration};

/// Processor time and memory, summed over a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// User and system time so far.
    pub cpu: Duration,
    /// Resident bytes now.
    pub rss_bytes: u64,
    /// Most resident bytes since the start, or since [`reset_peak`].
    pub peak_rss_bytes: u64,
}

/// Of a process and its descendants; zero where it is gone.
#[must_use]
pub fn usage(pid: u32) -> ProcessUsage {
    let mut all = ProcessUsage::default();
    for pid in process_tree(pid) {
        all.cpu += cpu(pid);
        let status = read(pid, "status");
        all.rss_bytes += kib(&status, "VmRSS:") * 1024;
        all.peak_rss_bytes += kib(&status, "VmHWM:") * 1024;
    }
    all
}

/// Proportional resident bytes now: shared pages counted by share. Costs a walk of the page tables.
#[must_use]
pub fn pss_bytes(pid: u32) -> u64 {
    let of = |pid| kib(&read(pid, "smaps_rollup"), "Pss:") * 1024;
    process_tree(pid).into_iter().map(of).sum()
}

/// Resets [`ProcessUsage::peak_rss_bytes`] to what is resident now.
pub fn reset_peak(pid: u32) {
    for pid in process_tree(pid) {
        // Where it is not allowed the peak stays that of the whole life, which is still a peak.
        let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
    }
}

/// TCP segments that a network namespace has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSegments {
    /// All segments, with retransmissions.
    pub sent: u64,
    /// Retransmissions.
    pub again: u64,
}

/// The fewest segments of which a share is computed.
const MIN_SEGMENTS: u64 = 100;

impl TcpSegments {
    /// Share of the segments since an earlier reading that were retransmissions, in percent; `None` where too few were
    /// sent.
    #[must_use]
    pub fn lost_percent_since(&self, before: &Self) -> Option<f64> {
        let sent = self.sent.saturating_sub(before.sent);
        let again = self.again.saturating_sub(before.again);
        (sent >= MIN_SEGMENTS).then(|| again as f64 / sent as f64 * 100.0)
    }
}

/// What the network namespace of a process has sent over TCP so far; `None` where that cannot be read.
#[must_use]
pub fn segments(pid: u32) -> Option<TcpSegments> {
    counted(&read(pid, "net/snmp"))
}

/// A line `Tcp:` with names, and one with numbers.
fn counted(text: &str) -> Option<TcpSegments> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let of = |wanted| {
        let mut both = names.split_whitespace().zip(numbers.split_whitespace());
        both.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    Some(TcpSegments {
        sent: of("OutSegs")?,
        again: of("RetransSegs")?,
    })
}

/// A process and all that descend from it.
#[must_use]
pub fn process_tree(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut waiting = VecDeque::from([pid]);
    while let Some(pid) = waiting.pop_front() {
        found.push(pid);
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(
                children
                    .split_whitespace()
                    .filter_map(|c| c.parse::<u32>().ok()),
            );
        }
    }
    found
}

/// To the nanosecond where the kernel counts so, else in ticks of 10 ms.
fn cpu(pid: u32) -> Duration {
    let mut nanos = 0;
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let run = text.split_whitespace().next();
        nanos += run.and_then(|run| run.parse::<u64>().ok()).unwrap_or(0);
    }
    Duration::from_nanos(nanos).max(ticks(pid))
}

/// Fields 14 and 15 of `stat`, counted after the command in parentheses.
fn ticks(pid: u32) -> Duration {
    let stat = read(pid, "stat");
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

fn kib(text: &str, field: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_sent_again_are_a_share_of_all() {
        let text = |sent, again| {
            format!("Ip: A B\nIp: 1 2\nTcp: InSegs OutSegs RetransSegs\nTcp: 7 {sent} {again}\n")
        };
        let (before, after) = (counted(&text(1_000, 5)), counted(&text(2_000, 25)));
        let (before, after) = (before.unwrap(), after.unwrap());
        assert_eq!(after.lost_percent_since(&before), Some(2.0));
        assert_eq!(before.lost_percent_since(&before), None);
        assert_eq!(counted("Tcp: OutSegs\nTcp: 1\n"), None);
        assert!(segments(std::process::id()).is_some());
    }

    #[test]
    fn work_and_memory_of_this_process_are_seen() {
        let me = std::process::id();
        let before = usage(me);
        let mut held = vec![1u8; 64 << 20];
        let mut sum = 0u64;
        loop {
            for byte in held.iter_mut().step_by(64) {
                *byte = byte.wrapping_add(1);
                sum += u64::from(*byte);
            }
            if usage(me).cpu >= before.cpu + Duration::from_millis(20) {
                break;
            }
        }
        assert!(sum > 0);
        // Other tests of this process come and go: only what is held here is sure.
        assert!(usage(me).rss_bytes > 64 << 20);
        assert!(usage(me).peak_rss_bytes > 64 << 20);
        assert!(pss_bytes(me) > 64 << 20);
        drop(held);
        assert_eq!(usage(u32::MAX), ProcessUsage::default());
    }
}
