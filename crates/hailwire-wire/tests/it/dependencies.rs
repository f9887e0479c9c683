//! `hailwire-wire`, `hailwire-pool` and `hailwire-core` decide and never act: no runtime, no socket, no clock.
//!
//! Two proofs: the tree of their normal dependencies as cargo resolves it, and their sources with
//! tests and comments taken away. A core that is a folder of a crate with I/O has the second, and may name no module that acts.

use std::{fs, path::Path, process::Command};

use crate::modules::imported;

const CRATES: [&str; 3] = ["hailwire-wire", "hailwire-pool", CORE];

/// It is told the time as an `Instant`; its `clippy.toml` forbids to read one from a clock.
const CORE: &str = "hailwire-core";

/// The core of a callout, a folder of a crate that does more than decide.
const CALLOUT_CORE: &str = "crates/hailwire-callout/src/inspect/core";

/// The modules of its crate that this core may use: what events and answers are, and how much of a body may be under way.
const CALLOUT_MODULES: [&str; 7] = [
    "capabilities",
    "control",
    "event",
    "guardrail",
    "inspect",
    "response",
    "stream",
];

/// What else this core may not name, since its crate has it.
const CALLOUT_REFUSED: [&str; 10] = [
    "async",
    "await",
    "elapsed",
    "futures_util",
    "Mutex",
    "now()",
    "RwLock",
    "tokio",
    "tonic",
    "tracing",
];

/// Packages, or families of them (`iroh-…`), that bring a runtime, sockets or a clock.
const REFUSED_PACKAGES: [&str; 24] = [
    "actix",
    "async-executor",
    "async-global-executor",
    "async-io",
    "async-net",
    "async-std",
    "chrono",
    "coarsetime",
    "futures-executor",
    "glommio",
    "hyper",
    "iroh",
    "jiff",
    "mio",
    "monoio",
    "noq",
    "polling",
    "quanta",
    "quinn",
    "rustix",
    "rustls",
    "smol",
    "socket2",
    "tokio",
];

/// Modules of `std` that act on the world.
const REFUSED_MODULES: [&str; 5] = [
    "std::env",
    "std::fs",
    "std::os",
    "std::process",
    "std::thread",
];

/// Types of `std` that act on the world or read a clock.
const REFUSED_TYPES: [&str; 8] = [
    "Instant",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixDatagram",
    "UnixListener",
    "UnixStream",
];

#[test]
fn no_dependency_brings_a_runtime_a_socket_or_a_clock() {
    for name in CRATES {
        let packages = normal_dependencies(name);
        assert!(
            packages.iter().any(|package| package == name),
            "{name}: {packages:?}"
        );
        let refused: Vec<_> = packages
            .iter()
            .filter(|package| is_refused(package))
            .collect();
        assert!(refused.is_empty(), "{name} reaches {refused:?}");
    }
}

#[test]
fn the_pool_depends_on_nothing() {
    assert_eq!(normal_dependencies("hailwire-pool"), ["hailwire-pool"]);
}

#[test]
fn no_source_names_a_socket_a_file_a_thread_or_a_clock() {
    for name in CRATES {
        let mut sources = Vec::new();
        collect(
            &crate::repository(&format!("crates/{name}/src")),
            &mut sources,
        );
        assert!(sources.len() > 2, "{name}: only {} sources", sources.len());
        for (path, text) in sources {
            let mut found = refused_words(&text);
            found.retain(|word| (name, *word) != (CORE, "Instant"));
            assert!(found.is_empty(), "{path} names {found:?}");
        }
    }
}

#[test]
fn the_core_of_a_callout_names_nothing_that_acts_waits_or_locks() {
    let mut sources = Vec::new();
    collect(&crate::repository(CALLOUT_CORE), &mut sources);
    sources.retain(|(path, _)| !path.contains("/core/tests"));
    assert!(sources.len() > 5, "only {} sources", sources.len());
    // Its policy is used by its crate too, and lies beside it.
    let policy = format!("{CALLOUT_CORE}/../policy.rs");
    sources.push((policy.clone(), crate::read(&policy)));
    for (path, text) in sources {
        let mut found = refused_words(&text);
        found.retain(|word| *word != "Instant");
        found.extend(CALLOUT_REFUSED.iter().filter(|word| names(&text, word)));
        assert!(found.is_empty(), "{path} names {found:?}");
        let mut others = imported(&text, false);
        others.retain(|module| !CALLOUT_MODULES.contains(&module.as_str()));
        // What the crate gives out at its root is of these modules.
        others.retain(|name| !name.starts_with(char::is_uppercase));
        assert!(others.is_empty(), "{path} uses {others:?}");
    }
}

#[test]
fn the_search_finds_what_it_looks_for() {
    for (source, expected) in [
        ("use std::time::Instant;", vec!["Instant"]),
        ("let x = std::thread::spawn(f);", vec!["std::thread"]),
        (
            "use std::{fmt, net::{SocketAddr, TcpStream}, fs};",
            vec!["std::fs", "TcpStream"],
        ),
        ("use std::{fmt, net::SocketAddr};", vec![]),
        (
            "/// Like `std::thread`.\n// Instant\nstruct Instantaneous; // SystemTime",
            vec![],
        ),
        (
            "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }",
            vec![],
        ),
    ] {
        assert_eq!(refused_words(source), expected, "{source}");
    }
    assert!(names("let a = Instant::now();", "now()") && names("x.await?;", "await"));
    assert!(!names("let awaited = now; // .await", "await"));
    assert!(is_refused("tokio") && is_refused("tokio-util") && is_refused("iroh-base"));
    assert!(!is_refused("tokiox") && !is_refused("serde"));
}

fn is_refused(package: &str) -> bool {
    REFUSED_PACKAGES.iter().any(|refused| {
        package
            .strip_prefix(refused)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

/// The names of a crate and of all that it needs outside tests and build scripts, sorted. Proc
/// macros are listed too; what they need at build time is held to the same rule.
fn normal_dependencies(name: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree", "--frozen", "--edges", "normal", "--prefix", "none", "--format", "{lib}",
        ])
        .args(["--package", name])
        .current_dir(crate::repository(""))
        .output()
        .expect("cargo runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {stderr}");
    let mut packages: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|library| library.replace('_', "-"))
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

fn collect(folder: &Path, sources: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            sources.push((path.display().to_string(), text));
        }
    }
}

/// Whether a source names a word, with `()` where it is to be a call; its tests and comments apart.
fn names(source: &str, word: &str) -> bool {
    let (name, call) = match word.strip_suffix("()") {
        Some(name) => (name, "("),
        None => (word, ""),
    };
    let code = code(source);
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let rest = &code[at + name.len()..];
        !code[..at].ends_with(part) && !rest.starts_with(part) && rest.starts_with(call)
    })
}

/// What a source names that it may not.
fn refused_words(source: &str) -> Vec<&'static str> {
    let code = code(source);
    let words: Vec<&str> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let modules = std_modules(&code);
    REFUSED_MODULES
        .into_iter()
        .filter(|module| modules.iter().any(|named| named == module))
        .chain(
            REFUSED_TYPES
                .into_iter()
                .filter(|refused| words.contains(refused)),
        )
        .collect()
}

/// A source without its tests and comments. Tests stand last in each file, so all from the first `#[cfg(test)]` on is test code.
fn code(source: &str) -> String {
    source
        .lines()
        .take_while(|line| !line.trim_start().starts_with("#[cfg(test)]"))
        .map(|line| line.split("//").next().unwrap_or_default())
        .fold(String::new(), |all, line| all + line + "\n")
}

/// Every `std::module` that some code names, also inside `use std::{…}`.
fn std_modules(code: &str) -> Vec<String> {
    let dense: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    let mut modules = Vec::new();
    for (at, _) in dense.match_indices("std::") {
        let rest = &dense[at + "std::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            modules.extend(first_segments(group));
        } else {
            modules.push(first_word(rest));
        }
    }
    modules
        .into_iter()
        .map(|module| format!("std::{module}"))
        .collect()
}

/// The first segment of each item of a `{…}` group, given what follows its brace.
fn first_segments(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut segments) = (0_usize, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                segments.push(first_word(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    segments
}

fn first_word(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    &text[..end]
}
