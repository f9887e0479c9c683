//! The suite of the SDKs: calls of 1 KiB from program to program on one machine, beside what people use for them in the same language.
//!
//! The programs are in `peers/sdk`, ours and foreign ones with the same command line. Both of ours attach to one node, which the run
//! starts; the serving program of NATS starts a server of its own. Where `peers/install` has not installed what a language needs, its cells
//! say so.

use std::path::PathBuf;

use super::{Contestant, ForeignProgram, Participant, Suite, SuiteOrder, SuiteStep, installed};
use crate::{
    result::CellId,
    tables::sdk::{
        AIOHTTP, ASYNCIO, GRPC_AIO, GRPC_JS, MANY, NATS_JS, NATS_PY, ONE, PYTHON, PYTHON_TABLE,
        SIGNAL, TIMEOUT, TYPESCRIPT, TYPESCRIPT_TABLE, UNDICI, UVLOOP,
    },
    work::WorkRequest,
};

/// Bytes of each call, and of its answer.
const BODY: usize = 1024;

/// The rows, with the calls that are under way at once.
const ROWS: [(&str, u32); 2] = [(ONE, 1), (MANY, 64)];

/// The programs that run those of `peers/sdk`, where they are installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SdkLaunchers {
    /// For Python: from `HAILWIRE_SDK_PYTHON`, or what `peers/install sdk-python` wrote beside the folder of this program.
    pub python: Option<String>,
    /// For TypeScript: from `HAILWIRE_SDK_NODE`, or what `peers/install sdk-node` wrote there.
    pub typescript: Option<String>,
}

impl SdkLaunchers {
    /// Those that are there.
    #[must_use]
    pub fn installed() -> Self {
        let path = |variable, name| {
            let found: Option<PathBuf> = installed(variable, name);
            found.map(|path| path.display().to_string())
        };
        Self {
            python: path("HAILWIRE_SDK_PYTHON", "sdk-python"),
            typescript: path("HAILWIRE_SDK_NODE", "sdk-node"),
        }
    }
}

/// What is compared in one language.
struct SdkLanguage {
    table: &'static str,
    subjects: &'static [SdkSubject],
    /// Subjects of one form are compared.
    forms: [&'static str; 2],
    /// Why there is nothing where it is not installed.
    missing: &'static str,
}

struct SdkSubject {
    name: &'static str,
    /// The program in `peers/sdk`, without its ending.
    program: &'static str,
    /// Whether both of its ends attach to a node.
    attached: bool,
    /// Whether a signal can end its calls.
    signals: bool,
}

const fn ours(name: &'static str) -> SdkSubject {
    SdkSubject {
        attached: true,
        signals: true,
        ..theirs(name, "hailwire_echo")
    }
}

const fn theirs(name: &'static str, program: &'static str) -> SdkSubject {
    SdkSubject {
        name,
        program,
        attached: false,
        signals: false,
    }
}

const IN_PYTHON: SdkLanguage = SdkLanguage {
    table: PYTHON_TABLE,
    subjects: &[
        ours(PYTHON),
        theirs(GRPC_AIO, "grpc_aio"),
        theirs(NATS_PY, "nats_py"),
        theirs(AIOHTTP, "aiohttp_http"),
    ],
    forms: [ASYNCIO, UVLOOP],
    missing: "the programs in Python are not installed: peers/install sdk-python",
};

const IN_TYPESCRIPT: SdkLanguage = SdkLanguage {
    table: TYPESCRIPT_TABLE,
    subjects: &[
        ours(TYPESCRIPT),
        theirs(GRPC_JS, "grpc_js"),
        theirs(NATS_JS, "nats_js"),
        SdkSubject {
            signals: true,
            ..theirs(UNDICI, "undici_http")
        },
    ],
    forms: [TIMEOUT, SIGNAL],
    missing: "the programs in JavaScript are not installed: peers/install sdk-node",
};

pub(super) fn steps(order: &SuiteOrder) -> Vec<SuiteStep> {
    let SdkLaunchers { python, typescript } = &order.sdk;
    let languages = [(&IN_PYTHON, python), (&IN_TYPESCRIPT, typescript)];
    let mut steps = Vec::new();
    for (language, launcher) in languages {
        for (row, in_flight) in ROWS {
            let work = WorkRequest::Rate {
                in_flight,
                seconds: order.by_size(0.05, 2.0, 10.0),
                bytes: BODY,
                agents: 1,
                connections: 1,
            };
            let mut entries = Vec::new();
            // Form by form, so that subjects of one form take their turns next to each other.
            for form in language.forms {
                for subject in language.subjects {
                    match (launcher, subject.lacks(form)) {
                        (_, Some(reason)) => steps.push(language.skip(row, subject, form, reason)),
                        (None, _) => {
                            steps.push(language.skip(row, subject, form, language.missing));
                        }
                        (Some(launcher), None) => {
                            entries.push(contestant(launcher, subject, form, &work));
                        }
                    }
                }
            }
            if !entries.is_empty() {
                let contest = order.contest(language.table, row, "loopback", entries);
                steps.push(SuiteStep::Contest(contest));
            }
        }
    }
    steps
}

impl SdkSubject {
    /// Why it cannot do a form.
    fn lacks(&self, form: &str) -> Option<&'static str> {
        (form == SIGNAL && !self.signals).then_some("it takes no signal")
    }
}

impl SdkLanguage {
    fn skip(&self, row: &str, subject: &SdkSubject, form: &str, reason: &str) -> SuiteStep {
        let cell = CellId {
            suite: Suite::Sdk.name().to_owned(),
            table: self.table.to_owned(),
            row: row.to_owned(),
            subject: subject.name.to_owned(),
            form: form.to_owned(),
        };
        SuiteStep::Skip(cell, reason.to_owned())
    }
}

/// The options of both programs of a form.
fn options(form: &str) -> &'static [&'static str] {
    match form {
        UVLOOP => &["--loop", "uvloop"],
        SIGNAL => &["--signal"],
        _ => &[],
    }
}

fn contestant(launcher: &str, subject: &SdkSubject, form: &str, work: &WorkRequest) -> Contestant {
    let words = |part: &[&str]| -> Vec<String> {
        let front = [launcher, subject.program];
        let all = front.iter().chain(part).chain(options(form));
        all.map(ToString::to_string).collect()
    };
    let foreign = ForeignProgram {
        name: subject.name.to_owned(),
        serve: words(&["serve", "--listen", "{listen}"]),
        // The address follows.
        load: words(&["load"]),
    };
    Contestant {
        participant: match subject.attached {
            true => Participant::Attached(foreign),
            false => Participant::Foreign(foreign),
        },
        subject: subject.name.to_owned(),
        form: form.to_owned(),
        work: work.clone(),
        helper: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{SuiteSize, covered, tests::order};

    fn with(python: Option<&str>, typescript: Option<&str>) -> SuiteOrder {
        SuiteOrder {
            sdk: SdkLaunchers {
                python: python.map(str::to_owned),
                typescript: typescript.map(str::to_owned),
            },
            ..order(Suite::Sdk, SuiteSize::Quick)
        }
    }

    #[test]
    fn cells_are_the_same_whether_or_not_the_programs_are_installed() {
        let sorted = |order: &SuiteOrder| {
            let mut cells = covered(&steps(order));
            cells.iter_mut().for_each(|cell| cell.suite.clear());
            cells.sort();
            cells
        };
        let all = sorted(&with(Some("py"), Some("js")));
        // Four subjects of two languages, in two forms and two rows.
        assert_eq!(all.len(), 32);
        assert_eq!(sorted(&with(None, Some("js"))), all);
        assert_eq!(sorted(&with(None, None)), all);
        let says = |step: &&SuiteStep| matches!(step, SuiteStep::Skip(_, why) if why.ends_with("peers/install sdk-python"));
        let without = steps(&with(None, Some("js")));
        assert_eq!(without.iter().filter(says).count(), 16);
    }

    #[test]
    fn all_of_a_row_do_the_same_work_and_only_ours_attach_to_a_node() {
        for step in steps(&with(Some("py"), Some("js"))) {
            let contest = match step {
                SuiteStep::Contest(contest) => contest,
                SuiteStep::Skip(cell, _) => {
                    assert!([GRPC_JS, NATS_JS].contains(&cell.subject.as_str()));
                    assert_eq!(cell.form, SIGNAL);
                    continue;
                }
            };
            for entry in &contest.entries {
                assert_eq!(entry.work, contest.entries[0].work);
                let attached = matches!(entry.participant, Participant::Attached(_));
                assert_eq!(
                    attached,
                    [PYTHON, TYPESCRIPT].contains(&entry.subject.as_str())
                );
            }
        }
    }

    #[test]
    fn a_form_is_an_option_of_both_programs() {
        let command = |subject, form| {
            let work = WorkRequest::Open { count: 1 };
            match contestant("run", subject, form, &work).participant {
                Participant::Foreign(of) | Participant::Attached(of) => {
                    [of.serve.join(" "), of.load.join(" ")]
                }
                Participant::Ours(..) => panic!("none is built in"),
            }
        };
        let [hailwire, grpc, ..] = IN_PYTHON.subjects else {
            panic!("two at least")
        };
        let serve = "run grpc_aio serve --listen {listen}";
        assert_eq!(command(grpc, ASYNCIO), [serve, "run grpc_aio load"]);
        let serve = "run hailwire_echo serve --listen {listen}";
        for (form, option) in [(UVLOOP, "--loop uvloop"), (SIGNAL, "--signal")] {
            let load = format!("run hailwire_echo load {option}");
            assert_eq!(command(hailwire, form), [format!("{serve} {option}"), load]);
        }
    }
}
