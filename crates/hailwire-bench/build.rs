//! Tells the program which git revision it is built from, so that results say it wherever it runs.
//!
//! `HAILWIRE_REVISION` is what `git describe --always --dirty` says: of this package and of those that it is
//! built with. Outside of a repository it is empty, or what the environment has under that name.

use std::{env, path::Path, process::Command};

/// Folders whose change may make the revision a dirty one, beside this package's own.
const BUILT_WITH: [&str; 5] = [
    "../hailwire",
    "../hailwire-hub",
    "../hailwire-lab",
    "../hailwire-pool",
    "../hailwire-wire",
];

fn main() {
    println!("cargo::rerun-if-env-changed=HAILWIRE_REVISION");
    for folder in BUILT_WITH.into_iter().chain(["."]) {
        println!("cargo::rerun-if-changed={folder}/src");
    }
    // Both change with what is checked out, and the log with each commit as well.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let given = env::var("HAILWIRE_REVISION").ok();
    // Somebody else's repository may be around a copy of this package.
    let ours = || git(&["ls-files", "--error-unmatch", "build.rs"]);
    let revision = given.or_else(|| ours().and(git(&["describe", "--always", "--dirty"])));
    println!(
        "cargo::rustc-env=HAILWIRE_REVISION={}",
        revision.unwrap_or_default()
    );
}

fn git(arguments: &[&str]) -> Option<String> {
    let out = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    out.status.success().then(|| text.trim().to_owned())
}
