//! The conformance driver, `hail-conformance`: plays a node to find out whether a program's library speaks to it as `spec/` says.
//!
//! For each case it makes a data folder with a socket, starts the program under test (`spec/conformance/README.md` says what that is
//! to do), goes through the case's script, and says in one line what was expected and what came. It writes every byte itself and
//! reads every byte with decoders that refuse what the specification refuses, so a case fails where the peer breaks a rule that the
//! case is not about.
//!
//! | module | holds |
//! |---|---|
//! | `options` | what was typed |
//! | `runner`, `report` | runs cases; what is said of them |
//! | `case`, `cases` | what a case is; all of them, by subject |
//! | `stage`, `peer_process` | what a case has at hand; the program under test |
//! | `node`, `answer` | the session's side of the node; answers of the peer |
//! | `link` | the multiplexer's side of it, and the rules |
//! | `pattern`, `failure` | bodies; why a case failed |

#![forbid(unsafe_code)]

mod answer;
mod case;
mod cases;
mod failure;
mod link;
mod node;
mod options;
mod pattern;
mod peer_process;
mod report;
mod runner;
mod stage;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;

use self::{
    case::{Case, CaseGroup},
    options::Options,
    runner::CaseResult,
};

fn main() -> ExitCode {
    let options = Options::parse();
    let groups = cases::all();
    if options.list {
        let text = match options.markdown {
            true => report::page(&groups),
            false => report::list(&groups),
        };
        return told(&text, ExitCode::SUCCESS);
    }
    match chosen(&groups, &options.case) {
        Ok(cases) => run(&cases, &options),
        Err(unknown) => {
            eprintln!("error: there is no case `{unknown}`");
            eprintln!("hint: --list names all");
            ExitCode::from(2)
        }
    }
}

/// The cases that were asked for: by name, or by a part of it that ends in `*`.
fn chosen(groups: &[CaseGroup], names: &[String]) -> Result<Vec<Case>, String> {
    let all: Vec<Case> = groups
        .iter()
        .flat_map(|group| group.cases.clone())
        .collect();
    if names.is_empty() {
        return Ok(all);
    }
    let fits = |case: &Case, name: &str| match name.strip_suffix('*') {
        Some(begin) => case.name.starts_with(begin),
        None => case.name == name,
    };
    for name in names {
        if !all.iter().any(|case| fits(case, name)) {
            return Err(name.clone());
        }
    }
    let wanted = |case: &Case| names.iter().any(|name| fits(case, name));
    Ok(all.into_iter().filter(wanted).collect())
}

fn run(cases: &[Case], options: &Options) -> ExitCode {
    let (mut passed, mut failed) = (0, Vec::new());
    let mut gone = false;
    runner::run(
        cases,
        &options.command,
        options.jobs,
        |result: &CaseResult| {
            match result.outcome.is_ok() {
                true => passed += 1,
                false => failed.push(result.case.name),
            }
            let line = match options.json {
                true => report::json_line(result),
                false => report::line(result),
            };
            gone |= io::stdout().write_all(line.as_bytes()).is_err();
        },
    );
    if !options.json {
        eprint!("{}", report::summary(passed, &failed));
    }
    match failed.is_empty() && !gone {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    }
}

fn told(text: &str, code: ExitCode) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::from(1),
    }
}
