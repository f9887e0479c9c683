//! What README and documents tell to type is typed, and what they show is compared with what comes.
//!
//! Each page is followed from its beginning to its end in a network namespace of its own, so that ports are as the page says. A
//! prompt names a machine: `laptop$` and `desk$` have each a home and a shell. What a page may hold:
//!
//! - `console` blocks: commands after prompts, and below each what it prints. Without any, only its success counts. `…` is any text,
//!   and on a line of its own any lines. A word that ends in `…`, such as a ticket, stands for the word that came there, from then
//!   on. Keys, ports that the system chose, times, sizes and dates need not be the same ([`compare`]). A command with the
//!   comment `# leave it running` goes on beside the others once it has printed what the page shows.
//! - Snippets, whose second word is the file that they become on the machine: `kdl hail.kdl`, `python desk:agent.py`. Each is
//!   checked by what will read it ([`snippets`]), or named by a command. `yaml from:PATH` is part of a file of the repository, and
//!   `rust from:PATH` an example, which `cargo run` runs.
//! - `text`: a drawing, or output that belongs to no command.
//!
//! A block that cannot be run here follows `<!-- not run: WHY -->`.

mod compare;
mod machines;
mod page;
mod snippets;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use compare::Bindings;
use machines::Machines;
use page::{Block, Step};

/// Pages that are not followed yet, each with the reason.
const NOT_YET: &[(&str, &str)] = &[];

/// Folders whose pages are not for users: letters to other projects.
const ELSEWHERE: &[&str] = &["docs/upstream/"];

macro_rules! pages {
    ($($test:ident: $path:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            follow($path);
        })*

        /// The pages with blocks, each of which is a test.
        const FOLLOWED: &[&str] = &[$($path),*];
    };
}

pages! {
    readme: "README.md",
    architecture: "ARCHITECTURE.md",
    contributing: "CONTRIBUTING.md",
    guide_agents: "docs/guide/agents.md",
    guide_bench: "docs/guide/bench.md",
    guide_durable_messages: "docs/guide/durable-messages.md",
    guide_dispatch: "docs/guide/dispatch.md",
    guide_publish_subscribe: "docs/guide/publish-subscribe.md",
    guide_coordination: "docs/guide/coordination.md",
    guide_kept_topics: "docs/guide/kept-topics.md",
    guide_first_call: "docs/guide/first-call.md",
    guide_groups: "docs/guide/groups.md",
    guide_hub: "docs/guide/hub.md",
    guide_inspection_agents: "docs/guide/inspection-agents.md",
    guide_install: "docs/guide/install.md",
    guide_lab: "docs/guide/lab.md",
    guide_proxies: "docs/guide/proxies.md",
    guide_reports: "docs/guide/reports.md",
    guide_rust_library: "docs/guide/rust-library.md",
    guide_sdks: "docs/guide/sdks.md",
    guide_serving_programs: "docs/guide/serving-programs.md",
    guide_tasks: "docs/guide/tasks.md",
    guide_tcp_only: "docs/guide/tcp-only.md",
    guide_two_machines: "docs/guide/two-machines.md",
    guide_write_an_sdk: "docs/guide/write-an-sdk.md",
    reference_bench_subjects: "docs/reference/bench-subjects.md",
    reference_callout: "docs/reference/callout.md",
    reference_cli: "docs/reference/cli.md",
    reference_config: "docs/reference/config.md",
    reference_exit_codes: "docs/reference/exit-codes.md",
    reference_json: "docs/reference/json.md",
    reference_topology: "docs/reference/topology.md",
}

/// The root of the repository.
fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// Follows one page.
fn follow(path: &str) {
    let blocks = page::blocks(&fs::read_to_string(root().join(path)).unwrap());
    for block in &blocks {
        if let Some(reason) = &block.not_run {
            println!("not run: {path}:{}: {reason}", block.line);
        } else if let Err(wrong) = snippets::check(block, &root()) {
            panic!("{path}:{}: {wrong}", block.line);
        }
    }
    let run: Vec<&Block> = blocks.iter().filter(|block| block.is_run()).collect();
    if !run.iter().any(|block| block.language == "console") {
        return;
    }
    for block in &run {
        assert!(
            is_used(block, &run),
            "{path}:{}: no command uses it",
            block.line
        );
    }
    let programs = match machines::programs(&run) {
        Ok(programs) => programs,
        Err(reason) => return hailwire_skip::skipped(reason),
    };
    let mut machines = match machines::available() {
        Ok(()) => Machines::new(&programs, &root()),
        Err(reason) => return hailwire_skip::skipped(reason),
    };
    let mut bindings = Bindings::default();
    for block in &run {
        if let Some(file) = block.becomes() {
            machines.write(file, &block.text);
        }
        if let Some(program) = block.example() {
            machines.cargo_runs(&program);
        }
        if block.language != "console" {
            continue;
        }
        for step in page::steps(block).unwrap_or_else(|wrong| panic!("{path}:{wrong}")) {
            if let Err(wrong) = take(&step, &mut machines, &mut bindings) {
                panic!("{path}:{}: $ {}\n{wrong}", step.line, step.command);
            }
        }
    }
}

/// Whether a command of the page names the file that a snippet becomes, where nothing else checks it.
fn is_used(block: &Block, all: &[&Block]) -> bool {
    let Some(file) = block.becomes() else {
        return true;
    };
    let checked = matches!(&*block.language, "kdl" | "toml" | "json");
    let name = file.rsplit(['/', ':']).next().unwrap_or_default();
    let mut console = all.iter().filter(|block| block.language == "console");
    checked || console.any(|block| block.text.contains(name))
}

/// Runs one command and compares what it prints.
fn take(step: &Step, machines: &mut Machines, bindings: &mut Bindings) -> Result<(), String> {
    let command = bindings.filled(&step.command)?;
    if step.stays {
        if step.expected.iter().all(|line| line == "…") {
            return Err("the page does not say what it prints when it is ready".to_owned());
        }
        let out = machines.start(&step.machine, &command, |out| {
            bindings.compare_beginning(&step.expected, out)
        })?;
        println!("{}$ {command}\n{out}", step.machine);
        return Ok(());
    }
    let ran = machines.run(&step.machine, &command)?;
    // Shown where the page fails.
    println!("{}$ {command}\n{}", step.machine, ran.out);
    let told = || format!("it ended with {} and printed:\n{}", ran.code, ran.out);
    // A failure is shown, or asked for by the next command.
    let shown = |line: &String| line.starts_with("error: ") || line.starts_with("curl: ");
    let fails = step.may_fail || step.expected.iter().any(shown);
    if ran.code != 0 && !fails {
        return Err(told());
    }
    if step.expected.is_empty() {
        return Ok(());
    }
    let compared = bindings.compare(&step.expected, &ran.out);
    compared.map_err(|wrong| format!("{wrong}\n{}", told()))
}

/// Every page of the repository that is for users.
fn pages() -> Vec<String> {
    let top = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ];
    let mut pages: Vec<String> = top.map(str::to_owned).to_vec();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root()).unwrap();
                pages.push(name.to_str().unwrap().to_owned());
            }
        }
    }
    pages.retain(|page| !ELSEWHERE.iter().any(|folder| page.starts_with(folder)));
    pages
}

#[test]
fn every_page_with_blocks_is_followed_and_what_is_not_run_says_why() {
    let not_yet: BTreeSet<&str> = NOT_YET.iter().map(|(page, _)| *page).collect();
    let mut expected = BTreeSet::new();
    for page in pages() {
        let blocks = page::blocks(&fs::read_to_string(root().join(&page)).unwrap());
        if blocks.is_empty() {
            continue;
        }
        for block in blocks.iter().filter(|_| !not_yet.contains(&*page)) {
            if let Some(reason) = &block.not_run {
                println!("not run: {page}:{}: {reason}", block.line);
                assert!(reason.len() > 3, "{page}:{}: no reason", block.line);
            }
        }
        expected.insert(page);
    }
    let followed = FOLLOWED
        .iter()
        .chain(&not_yet)
        .map(|page| (*page).to_owned());
    assert_eq!(followed.collect::<BTreeSet<_>>(), expected);
    for page in not_yet {
        assert!(!FOLLOWED.contains(&page), "{page} is followed");
    }
}
