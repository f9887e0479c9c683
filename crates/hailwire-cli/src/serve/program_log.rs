//! The last lines that the programs of agents wrote on stderr, in bounded memory.
//!
//! Of each agent the last [`MAX_AGENT`] bytes are kept, of all together [`MAX_ALL`]; beyond that the oldest lines of whoever has
//! most make way. A line that is longer than [`MAX_LINE`] is cut into several. Lines are numbered, so that a reader can go on
//! where it stopped, and learns how many it has missed. It is told the time and does no I/O.

use std::collections::{BTreeMap, VecDeque};

use hailwire_wire::AgentName;
use serde::{Deserialize, Serialize};

/// Most bytes that are kept of one agent.
pub(crate) const MAX_AGENT: usize = 64 * 1024;

/// Most bytes that are kept altogether.
pub(crate) const MAX_ALL: usize = 4 * 1024 * 1024;

/// Longest line in bytes.
pub(crate) const MAX_LINE: usize = 4 * 1024;

/// What a line takes beside its text, for the bounds.
const LINE_OVERHEAD: usize = 64;

/// One line, as `hail serve logs --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogLine {
    /// Milliseconds of unix time when it was read.
    pub(crate) at_ms: u64,
    pub(crate) agent: String,
    pub(crate) text: String,
}

/// Lines in the order in which they were written, and where to go on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPage {
    pub(crate) lines: Vec<LogLine>,
    /// The number of the next line.
    pub(crate) next: u64,
}

/// The last lines of all agents.
#[derive(Debug, Default)]
pub(crate) struct ProgramLog {
    agents: BTreeMap<AgentName, AgentLines>,
    bytes: usize,
    next: u64,
}

#[derive(Debug, Default)]
struct AgentLines {
    lines: VecDeque<StoredLine>,
    bytes: usize,
}

#[derive(Debug)]
struct StoredLine {
    number: u64,
    at_ms: u64,
    text: Box<str>,
}

impl StoredLine {
    fn size(&self) -> usize {
        self.text.len() + LINE_OVERHEAD
    }
}

impl AgentLines {
    /// Forgets the oldest lines until at most `most` bytes are left. Returns how many bytes were given up.
    fn shrink(&mut self, most: usize) -> usize {
        let before = self.bytes;
        while self.bytes > most
            && let Some(line) = self.lines.pop_front()
        {
            self.bytes -= line.size();
        }
        before - self.bytes
    }
}

impl ProgramLog {
    /// Adds a line.
    pub(crate) fn push(&mut self, agent: &AgentName, text: &str, at_ms: u64) {
        let line = StoredLine {
            number: self.next,
            at_ms,
            text: text.into(),
        };
        self.next += 1;
        if !self.agents.contains_key(agent) {
            self.agents.insert(agent.clone(), AgentLines::default());
        }
        let Some(lines) = self.agents.get_mut(agent) else {
            return;
        };
        lines.bytes += line.size();
        self.bytes += line.size();
        lines.lines.push_back(line);
        self.bytes -= lines.shrink(MAX_AGENT);
        if self.bytes > MAX_ALL {
            self.make_room();
        }
    }

    /// Forgets an agent.
    pub(crate) fn forget(&mut self, agent: &AgentName) {
        if let Some(lines) = self.agents.remove(agent) {
            self.bytes -= lines.bytes;
        }
    }

    /// The number of the line that will be written next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Lines from the number `from` on, of one agent or of all, with at most `most` bytes of text.
    pub(crate) fn page(&self, from: u64, agent: Option<&AgentName>, most: usize) -> LogPage {
        let wanted = |name: &AgentName| agent.is_none_or(|agent| agent == name);
        let mut found: Vec<(&AgentName, &StoredLine)> = Vec::new();
        for (name, lines) in self.agents.iter().filter(|(name, _)| wanted(name)) {
            let first = lines.lines.partition_point(|line| line.number < from);
            found.extend(lines.lines.range(first..).map(|line| (name, line)));
        }
        found.sort_unstable_by_key(|(_, line)| line.number);
        let mut page = LogPage {
            next: self.next,
            ..LogPage::default()
        };
        let mut bytes = 0;
        for (name, line) in found {
            bytes += line.size();
            if bytes > most && !page.lines.is_empty() {
                page.next = line.number;
                break;
            }
            page.lines.push(LogLine {
                at_ms: line.at_ms,
                agent: name.to_string(),
                text: line.text.to_string(),
            });
        }
        page
    }

    /// Half of what whoever has most has: so this is seldom done.
    fn make_room(&mut self) {
        while self.bytes > MAX_ALL
            && let Some(lines) = self.agents.values_mut().max_by_key(|lines| lines.bytes)
        {
            let half = lines.bytes / 2;
            self.bytes -= lines.shrink(half);
        }
    }
}

/// Cuts what a program writes into lines.
#[derive(Debug, Default)]
pub(crate) struct LineCutter {
    rest: Vec<u8>,
}

impl LineCutter {
    /// Takes a chunk, and calls `line` for each line that is complete, or as long as one may be.
    pub(crate) fn push(&mut self, chunk: &[u8], mut line: impl FnMut(&str)) {
        for mut part in chunk.split_inclusive(|byte| *byte == b'\n') {
            while !part.is_empty() {
                let room = (MAX_LINE + 1).saturating_sub(self.rest.len());
                let (now, later) = part.split_at(room.min(part.len()));
                self.rest.extend_from_slice(now);
                part = later;
                if self.rest.ends_with(b"\n") || self.rest.len() > MAX_LINE {
                    self.end(&mut line);
                }
            }
        }
    }

    /// The program writes no more.
    pub(crate) fn finish(mut self, mut line: impl FnMut(&str)) {
        self.end(&mut line);
    }

    fn end(&mut self, line: &mut impl FnMut(&str)) {
        if self.rest.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&self.rest);
        line(text.trim_end_matches(['\n', '\r']));
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> AgentName {
        text.parse().unwrap()
    }

    fn texts(page: &LogPage) -> Vec<&str> {
        page.lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn lines_of_several_agents_come_in_their_order() {
        let mut log = ProgramLog::default();
        for (at, (agent, text)) in [("b", "1"), ("a", "2"), ("b", "3")].into_iter().enumerate() {
            log.push(&name(agent), text, at as u64);
        }
        let page = log.page(0, None, MAX_ALL);
        assert_eq!((texts(&page), page.next), (vec!["1", "2", "3"], 3));
        assert_eq!(texts(&log.page(0, Some(&name("b")), MAX_ALL)), ["1", "3"]);
        assert_eq!(texts(&log.page(2, None, MAX_ALL)), ["3"]);
        assert_eq!(texts(&log.page(3, None, MAX_ALL)), Vec::<&str>::new());
        // Page by page nothing is left out.
        let first = log.page(0, None, LINE_OVERHEAD + 1);
        assert_eq!((texts(&first), first.next), (vec!["1"], 1));
        log.forget(&name("b"));
        assert_eq!(texts(&log.page(0, None, MAX_ALL)), ["2"]);
    }

    #[test]
    fn memory_stays_bounded_for_one_agent_and_for_all() {
        let mut log = ProgramLog::default();
        let line = "x".repeat(MAX_LINE);
        for _ in 0..100 {
            log.push(&name("a"), &line, 0);
            assert!(log.bytes <= MAX_AGENT);
        }
        for agent in 0..200 {
            for _ in 0..20 {
                log.push(&name(&format!("b{agent}")), &line, 0);
                assert!(log.bytes <= MAX_ALL);
            }
        }
        let bytes: usize = log.agents.values().map(|lines| lines.bytes).sum();
        assert_eq!(bytes, log.bytes);
        // The last one still has its last line.
        let page = log.page(log.next - 1, None, MAX_ALL);
        assert_eq!(page.lines[0].agent, "b199");
    }

    #[test]
    fn whatever_is_written_is_cut_into_lines_of_bounded_length() {
        let mut lines = Vec::new();
        let mut cutter = LineCutter::default();
        let mut push = |chunk: &[u8]| cutter.push(chunk, |line| lines.push(line.to_owned()));
        push(b"one\ntw");
        push(b"o\r\n\nthree");
        push(&vec![b'x'; 3 * MAX_LINE]);
        push(b"\nend");
        cutter.finish(|line| lines.push(line.to_owned()));
        assert_eq!(lines[..3], ["one", "two", ""]);
        assert!(lines[3].starts_with("threexx"));
        assert!(lines.iter().all(|line| line.len() <= MAX_LINE + 1));
        assert_eq!(lines.last().unwrap(), "end");
        let all: usize = lines.iter().map(String::len).sum();
        assert_eq!(all, "onetwothreeend".len() + 3 * MAX_LINE);
    }
}
