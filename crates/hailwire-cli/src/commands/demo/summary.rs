//! The result of a run: the rows of its table and the lines below.

use std::time::Duration;

use hailwire_terminal::{output::Output, table::TextTable, text};
use serde::Serialize;

use super::{
    call_counters::{TimePercentiles, micros},
    dispatch::DocumentDispatch,
    documents::SkippedFiles,
    processes::WorkerNode,
    scenes::SceneReport,
};

/// What `hail demo --json` prints; see `docs/reference/json.md`.
#[derive(Debug, Default, Serialize)]
pub(super) struct DemoSummary {
    /// What was shown, in order.
    pub(super) scenes: Vec<SceneReport>,
    /// Documents sent to every kind of agent.
    pub(super) documents: usize,
    pub(super) document_bytes: usize,
    /// Files that were left out.
    pub(super) skipped: SkippedFiles,
    pub(super) workers: usize,
    pub(super) agents: usize,
    /// Different agents that answered at least once.
    pub(super) agents_heard: usize,
    /// Expected answers: one for each document and kind of agent.
    pub(super) wanted: usize,
    pub(super) calls: u64,
    pub(super) verified: u64,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) redispatched: u64,
    /// Name of the killed worker; empty for none.
    pub(super) killed: String,
    /// Share of calls that found their tunnel up, 0 to 1.
    pub(super) connection_reuse: f64,
    /// From call to the end of its answer.
    pub(super) latency: TimePercentiles,
    /// The same over tunnels that were up, less the shortest round trip of each.
    pub(super) above_rtt: TimePercentiles,
    /// The shortest round trip that any tunnel reported, in microseconds; 0 for none.
    pub(super) rtt_us: u64,
    pub(super) processes: Vec<ProcessSummary>,
    pub(super) rows: Vec<AgentSummary>,
    /// Milliseconds until every process was ready.
    pub(super) start_ms: u64,
    /// Milliseconds from the first call to the last answer.
    pub(super) run_ms: u64,
    /// Milliseconds in all.
    pub(super) wall_ms: u64,
    /// The path of the data folders, with `--keep`; else empty.
    pub(super) data_dir: String,
}

/// One process.
#[derive(Debug, Serialize)]
pub(super) struct ProcessSummary {
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) peak_rss_bytes: u64,
}

/// One agent name on one node.
#[derive(Debug, Serialize)]
pub(super) struct AgentSummary {
    pub(super) agent: &'static str,
    pub(super) node: String,
    /// The path of the tunnel, such as `direct 127.0.0.1:4242`.
    pub(super) path: String,
    pub(super) calls: u64,
    /// Calls that failed.
    pub(super) failed: u64,
    /// Bodies, both ways.
    pub(super) bytes: u64,
    #[serde(flatten)]
    pub(super) latency: TimePercentiles,
}

/// The current table; `paths` by worker.
pub(super) fn rows(
    dispatch: &DocumentDispatch,
    workers: &[WorkerNode],
    paths: &[String],
) -> Vec<AgentSummary> {
    let cells = dispatch.counters.cells().iter();
    cells
        .map(|cell| AgentSummary {
            agent: cell.work.name(),
            node: workers[cell.worker].name.clone(),
            path: paths[cell.worker].clone(),
            calls: cell.answers + cell.failures,
            failed: cell.failures,
            bytes: cell.sent + cell.received,
            latency: TimePercentiles::of(&cell.times),
        })
        .collect()
}

/// The rows for people.
pub(super) fn table(rows: &[AgentSummary]) -> TextTable {
    let mut table = TextTable::new([
        "AGENT", "NODE", "PATH", ">CALLS", ">FAILED", ">BYTES", ">P50", ">P99",
    ]);
    for row in rows {
        let time = |us: u64| match us {
            0 => String::new(),
            us => text::time(Duration::from_micros(us)),
        };
        table.row([
            row.agent.to_owned(),
            row.node.clone(),
            row.path.clone(),
            row.calls.to_string(),
            row.failed.to_string(),
            text::bytes(row.bytes),
            time(row.latency.p50_us),
            time(row.latency.p99_us),
        ]);
    }
    table
}

impl DemoSummary {
    /// The counters for people: name and value.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let us = |us: u64| text::time(Duration::from_micros(us));
        let ms = |ms: u64| text::time(Duration::from_millis(ms));
        let pair = |p: TimePercentiles| format!("p50 {}, p99 {}", us(p.p50_us), us(p.p99_us));
        let size = text::bytes(self.document_bytes as u64);
        let mut documents = format!("{}, {size}", self.documents);
        if self.skipped.total() > 0 {
            documents.push_str(&format!(
                "; skipped: {} not text, {} unreadable, {} beyond the limits",
                self.skipped.not_text, self.skipped.unreadable, self.skipped.too_many
            ));
        }
        let mut answers = format!("{} of {} verified", self.verified, self.wanted);
        if self.wrong + self.lost > 0 {
            answers.push_str(&format!(", {} wrong, {} lost", self.wrong, self.lost));
        }
        let peaks: Vec<String> = self
            .processes
            .iter()
            .map(|process| format!("{} {}", process.name, text::bytes(process.peak_rss_bytes)))
            .collect();
        vec![
            ("documents", documents),
            (
                "agents",
                format!(
                    "{} on {} workers, {} answered",
                    self.agents, self.workers, self.agents_heard
                ),
            ),
            ("calls made", self.calls.to_string()),
            ("answers", answers),
            (
                "re-dispatched",
                match self.killed.as_str() {
                    "" => self.redispatched.to_string(),
                    killed => format!("{}, after {killed} was killed", self.redispatched),
                },
            ),
            (
                "connection reuse",
                format!(
                    "{:.1} % of calls found their tunnel up",
                    self.connection_reuse * 100.0
                ),
            ),
            ("time per call", pair(self.latency)),
            (
                "above RTT",
                format!("{} (RTT {})", pair(self.above_rtt), us(self.rtt_us)),
            ),
            ("peak RSS", peaks.join(", ")),
            (
                "wall time",
                format!(
                    "{} ({} to start, {} to answer)",
                    ms(self.wall_ms),
                    ms(self.start_ms),
                    ms(self.run_ms)
                ),
            ),
        ]
    }

    /// The table of agents and the counters, for people.
    pub(super) fn details(&self, output: Output) -> String {
        let mut out = table(&self.rows).render(output.table_style());
        out.push('\n');
        for (what, value) in self.lines() {
            out.push_str(&format!("{what:<16}  {value}\n"));
        }
        out
    }

    /// What the 50 agents showed, in a sentence.
    pub(super) fn sentence(&self) -> String {
        let answers = format!(
            "{} agents on {} workers give {} right answers",
            self.agents, self.workers, self.verified
        );
        match self.killed.as_str() {
            "" => format!(
                "{answers} in {}",
                text::time(Duration::from_millis(self.run_ms))
            ),
            killed => format!(
                "{answers} in {}; {killed} is killed half-way: {} calls are made again, {} are lost",
                text::time(Duration::from_millis(self.run_ms)),
                self.redispatched,
                self.lost
            ),
        }
    }

    /// Takes the counters from a run that has ended.
    pub(super) fn count(&mut self, dispatch: &DocumentDispatch) {
        let counts = &dispatch.counts;
        self.wanted = dispatch.total();
        self.agents_heard = dispatch.agents_heard();
        self.calls = counts.calls;
        self.verified = counts.verified;
        self.wrong = counts.wrong;
        self.lost = counts.lost;
        self.redispatched = counts.redispatched;
        self.connection_reuse = match counts.calls {
            0 => 0.0,
            calls => counts.reused as f64 / calls as f64,
        };
        self.latency = TimePercentiles::of(&dispatch.counters.all_times());
        self.above_rtt = TimePercentiles::of(&dispatch.counters.times_above_rtt());
        self.rtt_us = dispatch.counters.shortest_rtt().map_or(0, micros);
    }
}
