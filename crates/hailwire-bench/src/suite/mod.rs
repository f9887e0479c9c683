//! Suites: the measurements, as data. [`crate::run`] runs them.
//!
//! A suite is a list of [`SuiteStep`]s, made by a pure function of an [`SuiteOrder`]. Each [`Contest`] is one row
//! of a table: the same work for several subjects, interleaved. A cell that a suite knows it cannot
//! measure is a step too, with the reason.

mod callout;
mod coordination;
mod overlay;
mod sdk;
mod smoke;

use std::path::PathBuf;

pub use sdk::SdkLaunchers;

use hailwire::config::TunnelPool;

use crate::{
    result::CellId,
    subject::{SessionCarrier, Subject},
    tables,
    work::WorkRequest,
};

/// The suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// A little of everything, without root, in under a minute.
    Smoke,
    /// Tables Q1 to Q12.
    Coordination,
    /// Tables O1 to O6.
    Overlay,
    /// Tables C1 to C12, CE and CF.
    Callout,
    /// Calls between programs in Python and in TypeScript.
    Sdk,
}

impl Suite {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Smoke,
        Self::Coordination,
        Self::Overlay,
        Self::Callout,
        Self::Sdk,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Coordination => "coordination",
            Self::Overlay => "overlay",
            Self::Callout => "callout",
            Self::Sdk => "sdk",
        }
    }

    /// The suite of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }
}

/// How much work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteSize {
    /// For tests: everything once, with as little work as possible.
    Tiny,
    /// Under ten minutes on two cores.
    Quick,
    /// A minute for each scenario.
    Full,
}

/// The variable that names the program that speaks for the foreign crate of Agent Protocol v2.
pub const ZENTINEL_PEER: &str = "HAILWIRE_ZENTINEL_PEER";

/// The path of that program: from [`ZENTINEL_PEER`], or the file that `peers/zentinel/build` writes beside the folder of this program.
#[must_use]
pub fn peer() -> Option<String> {
    let path = installed(ZENTINEL_PEER, "zentinel-peer")?;
    Some(path.display().to_string())
}

/// A foreign program: the one that a variable names, or the file of this name that a script of `peers` wrote beside the folder of this program.
fn installed(variable: &str, name: &str) -> Option<PathBuf> {
    let built = || {
        let program = std::env::current_exe().ok()?;
        let target = program.parent()?.parent()?;
        Some(target.join("peers/bin").join(name))
    };
    let named = std::env::var_os(variable).map(PathBuf::from);
    named.or_else(built).filter(|path| path.is_file())
}

/// The options of a suite.
#[derive(Clone, Debug)]
pub struct SuiteOrder {
    /// Which suite.
    pub suite: Suite,
    /// How much.
    pub size: SuiteSize,
    /// Only on these networks; empty for all that the suite knows.
    pub networks: Vec<String>,
    /// Only these carriers of the session; empty for all.
    pub carriers: Vec<SessionCarrier>,
    /// Counted repeats, after a warm-up. Default: 5.
    pub repeats: Option<u32>,
    /// Foreign programs.
    pub foreign: Vec<ForeignProgram>,
    /// The program that speaks for the foreign crate of Agent Protocol v2 (`peers/zentinel`), where it is built.
    pub peer: Option<String>,
    /// The programs that run those of `peers/sdk`.
    pub sdk: SdkLaunchers,
}

/// A program that is not ours: a command that serves and one that loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignProgram {
    /// Its name in results.
    pub name: String,
    /// Words of the command; `{listen}` stands for the address to serve at and `{hail}` for this program.
    pub serve: Vec<String>,
    /// Words of the command; `{address}` stands for the address that the serving one reported, `{ready}` for its whole report in JSON;
    /// the address is added at the end where both are missing.
    pub load: Vec<String>,
}

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Participant {
    /// A subject that this program brings, with more options for serving and for loading.
    Ours(Subject, Vec<String>),
    /// A foreign program.
    Foreign(ForeignProgram),
    /// The same whose two commands attach to one node, which is started for them: `HAIL_DATA` names its data folder.
    Attached(ForeignProgram),
}

/// One subject's part in a contest.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// Who.
    pub participant: Participant,
    /// The cell's subject.
    pub subject: String,
    /// The cell's form.
    pub form: String,
    /// What is done.
    pub work: WorkRequest,
    /// A program that runs on the host `hub` meanwhile; its ticket or address stands for `{helper}` in options.
    pub helper: Option<Subject>,
}

/// How the figures of a contest are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureReading {
    /// A line, with the processor's time.
    Plain,
    /// New processes for each repeat; their memory above the idle state is read.
    Memory,
    /// A line for each priority.
    Priorities,
    /// The rate relative to the first entry's of the same repeat, and how often a connection was
    /// reused.
    Pools,
    /// Where the processor's time goes, in shares of the serving process.
    Profile,
}

/// One row: the same work, subject beside subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Contest {
    /// The table.
    pub table: &'static str,
    /// The row.
    pub row: String,
    /// The network's name.
    pub network: &'static str,
    /// Who takes part, and in which form.
    pub entries: Vec<Contestant>,
    /// What is made of the figures.
    pub reading: FigureReading,
    /// Rows of other tables that get the same lines.
    pub also: Vec<(&'static str, String)>,
    /// Counted repeats.
    pub repeats: u32,
    /// Whether a warm-up comes first.
    pub warm_up: bool,
}

/// One step of a suite.
#[derive(Clone, Debug, PartialEq)]
pub enum SuiteStep {
    /// To be measured.
    Contest(Contest),
    /// Not to be measured, and why.
    Skip(CellId, String),
}

impl SuiteStep {
    /// The network that it needs.
    #[must_use]
    pub fn network(&self) -> Option<&'static str> {
        match self {
            Self::Contest(contest) => Some(contest.network),
            Self::Skip(..) => None,
        }
    }
}

impl Contest {
    /// All cells that it fills.
    pub fn cells<'a>(&'a self, suite: &'a str, entry: &'a Contestant) -> Vec<CellId> {
        let cell = |table: &str, row: &str| CellId {
            suite: suite.to_owned(),
            table: table.to_owned(),
            row: row.to_owned(),
            subject: entry.subject.clone(),
            form: entry.form.clone(),
        };
        let own: Vec<CellId> = match self.reading {
            FigureReading::Priorities => PRIORITIES.map(|row| cell(self.table, row)).to_vec(),
            FigureReading::Profile => SHARES.map(|row| cell(self.table, row)).to_vec(),
            _ => vec![cell(self.table, &self.row)],
        };
        let also = self.also.iter().map(|(table, row)| cell(table, row));
        own.into_iter().chain(also).collect()
    }
}

/// Rows of a contest of priorities.
pub const PRIORITIES: [&str; 4] = ["critical", "high", "medium", "low"];

/// Rows of a profile.
pub const SHARES: [&str; 7] = [
    "packets",
    "crypto",
    "streams",
    "connections",
    "congestion control",
    "application",
    "other",
];

/// The steps of a suite.
#[must_use]
pub fn steps(order: &SuiteOrder) -> Vec<SuiteStep> {
    match order.suite {
        Suite::Smoke => smoke::steps(order),
        Suite::Coordination => coordination::steps(order),
        Suite::Overlay => overlay::steps(order),
        Suite::Callout => callout::steps(order),
        Suite::Sdk => sdk::steps(order),
    }
}

impl SuiteOrder {
    fn repeats(&self) -> u32 {
        self.repeats
            .unwrap_or(if self.size == SuiteSize::Tiny { 1 } else { 5 })
    }

    /// One of three values, by size.
    fn by_size<T>(&self, tiny: T, quick: T, full: T) -> T {
        match self.size {
            SuiteSize::Tiny => tiny,
            SuiteSize::Quick => quick,
            SuiteSize::Full => full,
        }
    }

    fn carriers(&self) -> Vec<SessionCarrier> {
        let all = [SessionCarrier::Quic, SessionCarrier::H2, SessionCarrier::Ws];
        let wanted =
            |carrier: &SessionCarrier| self.carriers.is_empty() || self.carriers.contains(carrier);
        all.into_iter().filter(wanted).collect()
    }

    /// Whether a session that chooses its carrier takes part.
    fn may_choose(&self) -> bool {
        self.carriers.is_empty() || self.carriers.contains(&SessionCarrier::Auto)
    }

    /// Sessions over the wanted carriers, and the baselines.
    fn subjects(&self) -> Vec<Subject> {
        let sessions = self.carriers().into_iter().map(Subject::Session);
        let plain = [Subject::RawIroh, Subject::PlainH2, Subject::PlainWs];
        sessions.chain(plain).collect()
    }

    /// The name of the network with a round-trip time.
    fn network(rtt: u32) -> &'static str {
        match rtt {
            0 => "loopback",
            50 => "wan-50ms",
            85 => "transatlantic-85ms",
            _ => "wan-100ms",
        }
    }

    /// A contest of subjects in one form and one work, foreign programs included.
    fn contest(
        &self,
        table: &'static str,
        row: impl Into<String>,
        network: &'static str,
        entries: Vec<Contestant>,
    ) -> Contest {
        Contest {
            table,
            row: row.into(),
            network,
            entries,
            reading: FigureReading::Plain,
            also: Vec::new(),
            repeats: self.repeats(),
            warm_up: true,
        }
    }

    /// The same work for each of some subjects, and for foreign programs.
    fn same(&self, subjects: &[Subject], form: &str, work: &WorkRequest) -> Vec<Contestant> {
        let ours = subjects
            .iter()
            .map(|subject| entry(*subject, form, work.clone()));
        let foreign = self.foreign.iter().map(|foreign| Contestant {
            participant: Participant::Foreign(foreign.clone()),
            subject: foreign.name.clone(),
            form: form.to_owned(),
            work: work.clone(),
            helper: None,
        });
        ours.chain(foreign).collect()
    }
}

fn entry(subject: Subject, form: &str, work: WorkRequest) -> Contestant {
    Contestant {
        participant: Participant::Ours(subject, Vec::new()),
        subject: subject.cell_name().to_owned(),
        form: form.to_owned(),
        work,
        helper: None,
    }
}

fn skip(
    suite: Suite,
    table: &str,
    row: &str,
    subject: Subject,
    form: &str,
    reason: &str,
) -> SuiteStep {
    let cell = CellId {
        suite: suite.name().to_owned(),
        table: table.to_owned(),
        row: row.to_owned(),
        subject: subject.cell_name().to_owned(),
        form: form.to_owned(),
    };
    SuiteStep::Skip(cell, reason.to_owned())
}

/// Connections that the published rule gives so many agents ([`TunnelPool::Rule`]).
#[must_use]
pub fn pool_of(agents: u32) -> u32 {
    TunnelPool::Rule.size(agents as usize) as u32
}

/// The rows that a list of steps covers.
#[must_use]
pub fn covered(steps: &[SuiteStep]) -> Vec<CellId> {
    let mut cells = Vec::new();
    for step in steps {
        match step {
            SuiteStep::Contest(contest) => {
                for entry in &contest.entries {
                    cells.extend(contest.cells("", entry));
                }
            }
            SuiteStep::Skip(cell, _) => cells.push(cell.clone()),
        }
    }
    cells
}

/// Rows of a suite's published tables that a report computes from other lines.
pub const COMPUTED: &[&str] = &["Q12"];

/// Published rows of the suites that `steps` leave out; none if it is complete.
#[must_use]
pub fn missing(suite: Suite, steps: &[SuiteStep]) -> Vec<(&'static str, &'static str)> {
    let letter = match suite {
        Suite::Smoke | Suite::Sdk => return Vec::new(),
        Suite::Coordination => 'Q',
        Suite::Overlay => 'O',
        Suite::Callout => 'C',
    };
    let cells = covered(steps);
    let published = tables::PUBLISHED.iter().copied();
    published
        .filter(|(table, _)| table.starts_with(letter) && !COMPUTED.contains(table))
        .filter(|(table, row)| {
            !cells
                .iter()
                .any(|cell| cell.table == *table && cell.row == *row)
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All steps of a suite with default options.
    pub(crate) fn order(suite: Suite, size: SuiteSize) -> SuiteOrder {
        SuiteOrder {
            suite,
            size,
            networks: Vec::new(),
            carriers: Vec::new(),
            repeats: None,
            foreign: Vec::new(),
            peer: None,
            sdk: SdkLaunchers::default(),
        }
    }

    #[test]
    fn every_published_row_has_a_measurement_or_a_reason_in_every_size() {
        for suite in Suite::ALL {
            for size in [SuiteSize::Tiny, SuiteSize::Quick, SuiteSize::Full] {
                let steps = steps(&order(suite, size));
                assert_eq!(missing(suite, &steps), [], "{suite:?} {size:?}");
            }
        }
    }

    #[test]
    fn every_operation_of_callouts_stands_beside_the_foreign_one_alone_and_contended_or_says_why_not()
     {
        const FORMS: [&str; 2] = [tables::callout::ALONE, tables::callout::CONTENDED];
        let with = |peer: Option<&str>| SuiteOrder {
            peer: peer.map(str::to_owned),
            ..order(Suite::Callout, SuiteSize::Quick)
        };
        for order in [with(None), with(Some("/peer"))] {
            let cells = covered(&steps(&order));
            for (table, row) in tables::callout::OPERATIONS {
                // Bytes are as many on two threads.
                let forms = if *table == "C6" { &FORMS[..1] } else { &FORMS };
                for subject in [tables::callout::OURS, tables::callout::THEIRS] {
                    for form in forms {
                        let stands = |cell: &CellId| {
                            (cell.table.as_str(), cell.row.as_str()) == (*table, *row)
                                && (cell.subject.as_str(), cell.form.as_str()) == (subject, form)
                        };
                        assert!(cells.iter().any(stands), "{subject}: {row}, {form}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_cell_is_filled_twice() {
        for suite in Suite::ALL {
            let mut cells = covered(&steps(&order(suite, SuiteSize::Full)));
            // The suite's name is given when the cell is written.
            cells.iter_mut().for_each(|cell| cell.suite.clear());
            cells.sort();
            for pair in cells.windows(2) {
                assert_ne!(pair[0], pair[1]);
            }
        }
    }

    #[test]
    fn every_carrier_stands_in_every_published_row_of_throughput() {
        let cells = covered(&steps(&order(Suite::Coordination, SuiteSize::Quick)));
        for (agents, bytes) in tables::SCENARIOS {
            let row = tables::scenario(agents, bytes, 0);
            for subject in ["quic", "h2", "ws", "raw iroh", "plain h2", "plain ws"] {
                let stands = |cell: &&CellId| cell.row == row && cell.subject == subject;
                assert!(cells.iter().any(|cell| stands(&cell)), "{subject}: {row}");
            }
        }
    }

    #[test]
    fn pools_are_those_of_the_published_rule() {
        let pools = [1, 10, 11, 100, 101, 1_000].map(pool_of);
        assert_eq!(pools, [2, 2, 2, 10, 6, 50]);
    }
}
