//! `hail bench report` and `hail bench compare` on folders of lines.

use std::{fmt::Write as _, fs, path::Path};

use crate::test_nodes::TestNodes;

/// A folder in which `quic` takes `factor` milliseconds and the baseline one, five times each.
fn folder(dir: &Path, factor: f64) {
    fs::create_dir_all(dir).unwrap();
    let mut raw = String::new();
    for repeat in 0..=5 {
        for (subject, factor) in [("quic", factor), ("plain h2", 1.0)] {
            let us = factor * 1000.0 + f64::from(repeat);
            let _ = writeln!(
                raw,
                r#"{{"measured":{{"cell":{{"suite":"coordination","table":"Q1","row":"10 agents, 0 ms","subject":"{subject}"}},"network":"loopback","repeat":{repeat},"figures":{{"p50_us":{us}}}}}}}"#
            );
        }
    }
    fs::write(dir.join("raw.jsonl"), raw).unwrap();
    let environment =
        r#"{"at":1795186013,"cpu":"a machine","command":"hail bench","build":"release"}"#;
    fs::write(dir.join("environment.json"), environment).unwrap();
}

#[test]
fn a_report_prints_its_path_on_stdout_and_what_it_tells_on_stderr() {
    let nodes = TestNodes::new();
    let dir = nodes.path("results");
    folder(&dir, 2.0);
    for _ in 0..2 {
        let ran = nodes
            .run("a", &["bench", "report", dir.to_str().unwrap()])
            .ok();
        let page = dir.join("report.html");
        assert_eq!(ran.stdout, format!("{}\n", page.display()));
        assert!(
            ran.stderr
                .contains("p50 of Hailwire over QUIC is 2.00 ms, of plain HTTP/2 1.00 ms"),
            "{ran:#?}"
        );
        assert!(
            ran.stderr.contains("rows behind a baseline: 1, ahead: 0"),
            "{ran:#?}"
        );
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains("12.3 ms") && page.contains("2.00 ms"));
    }
}

#[test]
fn a_report_says_where_its_files_are_as_json() {
    let nodes = TestNodes::new();
    let dir = nodes.path("results");
    folder(&dir, 2.0);
    let ran = nodes
        .run("a", &["bench", "report", dir.to_str().unwrap(), "--json"])
        .ok();
    for field in ["html", "markdown", "summary"] {
        let path = ran.json()[field].as_str().unwrap().to_owned();
        assert!(Path::new(&path).is_file(), "{path}");
    }
    assert!(ran.stderr.is_empty(), "{ran:#?}");
}

#[test]
fn of_a_folder_of_runs_all_reports_are_drawn_and_a_front_page() {
    let nodes = TestNodes::new();
    let results = nodes.path("results");
    for run in ["2026-01-01-here", "2026-01-02-here"] {
        folder(&results.join(run).join("coordination"), 2.0);
    }
    let ran = nodes
        .run("a", &["bench", "report", results.to_str().unwrap()])
        .ok();
    let index = results.join("index.html");
    assert_eq!(ran.stdout, format!("{}\n", index.display()));
    assert!(ran.stderr.contains("reports drawn: 2"), "{ran:#?}");
    let page = fs::read_to_string(index).unwrap();
    for run in ["2026-01-01-here", "2026-01-02-here"] {
        let report = format!("{run}/coordination/report.html");
        assert!(
            results.join(&report).is_file() && page.contains(&report),
            "{report}"
        );
    }
}

#[test]
fn a_folder_without_results_is_a_failure_with_a_hint() {
    let nodes = TestNodes::new();
    let dir = nodes.path("nothing");
    let ran = nodes.run("a", &["bench", "report", dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(ran.stderr.contains("raw.jsonl") && ran.stderr.contains("hint: `hail bench run"));
}

#[test]
fn a_comparison_is_no_test_and_exits_with_0_when_all_is_worse() {
    let nodes = TestNodes::new();
    let (before, after) = (nodes.path("before"), nodes.path("after"));
    folder(&before, 1.0);
    folder(&after, 3.0);
    let page = nodes.path("compared.html");
    let args = [
        "bench",
        "compare",
        before.to_str().unwrap(),
        after.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ];
    let ran = nodes.run("a", &args).ok();
    let row = "| Q1 · 10 agents, 0 ms · loopback | Hailwire over QUIC | p50 | 1.00 ms (1.00 – 1.00) | 3.00 ms (3.00 – 3.00) |";
    assert!(ran.stdout.contains(row), "{ran:#?}");
    assert!(ran.stdout.contains("| worse |") && ran.stdout.contains("| no difference |"));
    assert!(fs::read_to_string(&page).unwrap().contains("3.00 ms"));
    let ran = nodes.run("a", &[&args[..4], &["--json"]].concat()).ok();
    assert_eq!(ran.json()["rows"][0]["verdict"], "worse");
}
