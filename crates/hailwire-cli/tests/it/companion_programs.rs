//! `hail` and the programs beside it, in the folder where cargo leaves them.

use std::{path::Path, process::Command, sync::LazyLock};

use hailwire_terminal::programs::{self, CompanionProgram};

/// The path of `hail`. The programs that it becomes are beside it.
///
/// `cargo test --workspace` builds all of them. Where only this package is tested, one that is missing is built here.
pub(crate) fn hail() -> &'static Path {
    static HAIL: LazyLock<&Path> = LazyLock::new(|| {
        let hail = Path::new(env!("CARGO_BIN_EXE_hail"));
        for program in programs::ALL {
            if !hail.with_file_name(program.name).exists() {
                build(&program, hail);
            }
        }
        hail
    });
    *HAIL
}

fn build(program: &CompanionProgram, hail: &Path) {
    let folder = hail.parent().unwrap();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--profile", profile, "--bin", program.name])
        .args(["--package", program.package, "--target-dir"])
        .arg(folder.parent().unwrap())
        .status()
        .unwrap();
    assert!(built.success(), "{} cannot be built", program.name);
}

/// What bash is offered for the last of these words, on a data folder.
pub(crate) fn completed(data: &Path, typed: &[&str]) -> Vec<String> {
    let mut command = Command::new(hail());
    command
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", typed.len().to_string())
        .env("_CLAP_IFS", "\n")
        .env("HAIL_DATA", data)
        .args(["--", "hail"])
        .args(typed);
    let offered = command.output().unwrap().stdout;
    let offered = String::from_utf8_lossy(&offered).into_owned();
    offered.lines().map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn ran(hail: &Path, path: &Path, args: &[&str]) -> (Option<i32>, String, String) {
        let ran = Command::new(hail).args(args).env("PATH", path).output();
        let ran = ran.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    }

    /// Copies `hail` without holding the copy open for writing here, where another test may start a program meanwhile.
    fn copy_to(path: &Path) {
        let copied = Command::new("cp").arg(hail()).arg(path).status();
        assert!(copied.unwrap().success());
    }

    #[test]
    fn a_command_of_another_program_keeps_its_options_its_help_and_its_name() {
        let nowhere = Path::new("/nonexistent");
        let (code, _, help) = ran(hail(), nowhere, &["bench"]);
        assert_eq!(code, Some(2), "{help}");
        assert!(
            help.contains("Usage: hail bench [OPTIONS] <COMMAND>"),
            "{help}"
        );
        for line in [
            &["lab", "list", "--json"][..],
            &["lab", "--json", "list"],
            &["--json", "lab", "list"],
        ] {
            let (code, out, _) = ran(hail(), nowhere, line);
            assert!(code == Some(0) && out.starts_with('['), "{line:?}: {out}");
        }
        let (code, out, _) = ran(hail(), nowhere, &["callout", "waf", "-h"]);
        assert_eq!(code, Some(0));
        assert!(
            out.contains("Usage: hail callout waf [OPTIONS] --listen"),
            "{out}"
        );
        let (code, _, mistake) = ran(hail(), nowhere, &["bench", "run", "smoek"]);
        assert_eq!(code, Some(2));
        assert!(
            mistake.contains("a similar value exists: 'smoke'"),
            "{mistake}"
        );
    }

    #[test]
    fn the_program_is_found_beside_the_file_that_a_link_leads_to_else_in_path() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("hail");
        symlink(hail(), &link).unwrap();
        let (code, ..) = ran(&link, Path::new("/nonexistent"), &["lab", "list"]);
        assert_eq!(code, Some(0));

        fs::remove_file(&link).unwrap();
        copy_to(&link);
        let (code, ..) = ran(&link, hail().parent().unwrap(), &["lab", "list"]);
        assert_eq!(code, Some(0));
    }

    #[test]
    fn a_program_that_is_missing_is_named_with_how_to_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("hail");
        copy_to(&alone);
        let (code, out, told) = ran(
            &alone,
            folder.path(),
            &["callout", "waf", "--listen", "unix:/x"],
        );
        assert_eq!((code, out.as_str()), (Some(69), ""), "{told}");
        for part in [
            "the program hail-inspection was not found",
            &*alone.display().to_string(),
            "PATH",
            "cargo install hailwire-agents",
            "./x build",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        // What `hail` does itself needs none of the others.
        assert_eq!(
            ran(&alone, folder.path(), &["completions", "fish"]).0,
            Some(0)
        );
        let pages = folder.path().join("man");
        let (code, _, told) = ran(&alone, folder.path(), &["man", pages.to_str().unwrap()]);
        assert_eq!(code, Some(0));
        assert!(
            told.contains("hail-bench") && told.contains("hail-inspection"),
            "{told}"
        );
        assert!(!pages.join("hail-bench-run.1").exists());
    }

    #[test]
    fn completions_and_pages_hold_what_other_programs_do() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = Path::new("/nonexistent");
        for (typed, word) in [
            (&["bench", "run", "coo"][..], "coordination"),
            (&["bench", "run", "--network", "wan-50"], "wan-50ms"),
            (&["bench", "siege", "--on"], "--one-by-one"),
            (&["callout", "waf", "--par"], "--paranoia"),
            (&["hub", "inv"], "invite"),
        ] {
            let offered = completed(nowhere, typed);
            assert!(
                offered.iter().any(|line| line == word),
                "{typed:?}: {offered:?}"
            );
        }
        ran(hail(), nowhere, &["man", folder.path().to_str().unwrap()]);
        let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        assert!(page("hail-bench-run.1").contains("wan\\-50ms"));
        assert!(page("hail-callout-rate-limit.1").contains("burst 20"));
        assert!(!page("hail-lab-check.1").is_empty());
        assert!(!folder.path().join("hail-outline.1").exists());
    }
}
