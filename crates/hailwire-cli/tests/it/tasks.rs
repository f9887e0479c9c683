//! `hail task` as processes: submitted, followed, withdrawn, and what the agent's program sees of it.

use std::{fs, process::Stdio, time::Duration};

use crate::{
    companion_programs,
    test_nodes::{TestNodes, first_line},
};

#[test]
fn a_task_is_followed_to_its_result_and_withdrawn_from_the_program_that_works_on_it() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "laptop");
    nodes.serve("laptop", "quick", "tr a-z A-Z");
    let stopped = nodes.path("stopped");
    // It says how far it is, begins its answer, and would go on for an hour; SIGTERM leaves a mark.
    let script = format!(
        "trap 'echo $HAIL_HEADER_HAIL_MESSAGE_ATTEMPT > {}; exit 1' TERM; \
         {} task progress --done 1 --total 4 --text reading; echo begun; sleep 3600 & wait",
        stopped.display(),
        companion_programs::hail().display(),
    );
    nodes.serve("laptop", "slow", &script);

    let answer = nodes.run(
        "desk",
        &["task", "submit", "quick@laptop", "hello", "--wait"],
    );
    assert_eq!(answer.ok().stdout, "HELLO");
    let id = submitted(&nodes, &["slow@laptop", "x", "--idempotency-key", "one"]);
    let again = submitted(&nodes, &["slow@laptop", "x", "--idempotency-key", "one"]);
    assert_eq!(id, again);

    // Its beginning is seen before its end.
    let mut following = nodes.hail("desk", &["task", "wait", &id]);
    let mut following = following
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut following).trim_end(), "begun");
    nodes.keep(following);
    let shown = nodes
        .run("desk", &["task", "status", &id, "--json"])
        .ok()
        .json();
    assert_eq!(shown["task"], "working");
    assert_eq!(shown["progress"]["done"], 1);
    assert_eq!(shown["progress"]["total"], 4);
    assert_eq!(shown["progress"]["text"], "reading");
    assert_eq!(shown["partial"]["text"], "begun\n");
    let rows = nodes
        .run("desk", &["task", "list", "--state", "working", "--json"])
        .ok()
        .json();
    assert_eq!(rows.as_array().map(Vec::len), Some(1));
    assert_eq!(rows[0]["id"], id);

    let cancelled = nodes.run("desk", &["task", "cancel", &id]).ok();
    assert!(cancelled.stdout.contains(&id), "{}", cancelled.stdout);
    let ended = nodes.run("desk", &["task", "wait", &id]);
    assert_eq!(ended.code, Some(64 + 1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("may have done a part"),
        "{}",
        ended.stderr
    );
    nodes.run("desk", &["task", "cancel", &id]).ok();
    let done = nodes
        .run("desk", &["task", "list", "--state", "completed", "--json"])
        .ok()
        .json();
    let done = done[0]["id"].as_str().unwrap().to_owned();
    let late = nodes.run("desk", &["task", "cancel", &done]);
    assert_eq!(late.code, Some(64 + 9), "{}", late.stderr);
    assert!(
        late.stderr.contains("has its end already"),
        "{}",
        late.stderr
    );
    once(|| fs::read_to_string(&stopped).is_ok_and(|attempt| attempt == "1\n"));
}

fn submitted(nodes: &TestNodes, args: &[&str]) -> String {
    let submit = [&["task", "submit"], args].concat();
    nodes.run("desk", &submit).ok().stdout.trim().to_owned()
}

/// Until something holds that a process does by itself.
fn once(holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it never held");
        std::thread::yield_now();
    }
}

#[test]
fn mistakes_with_tasks_say_what_to_do() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "laptop");
    let nobody = nodes.run("desk", &["task", "progress", "--done", "1"]);
    assert_eq!(nobody.code, Some(2), "{}", nobody.stderr);
    assert!(
        nobody.stderr.contains("HAIL_HEADER_HAIL_MESSAGE_ID"),
        "{}",
        nobody.stderr
    );
    let id = submitted(&nodes, &["later@laptop", "x"]);
    let nothing = nodes.run("laptop", &["task", "progress", "--id", &id]);
    assert_eq!(nothing.code, Some(64 + 9), "{}", nothing.stderr);
    let waited = nodes.run("desk", &["--timeout", "300ms", "task", "wait", &id]);
    assert!(
        waited.stderr.contains("goes on all the same"),
        "{}",
        waited.stderr
    );
    nodes.run("desk", &["task", "cancel", &id]).ok();
    let ended = nodes.run("desk", &["task", "wait", &id]);
    assert!(
        ended.stderr.contains("before an agent had it"),
        "{}",
        ended.stderr
    );
    for wrong in [
        &["task", "status", "nonsense"][..],
        &["task", "list", "--state", "gone"],
        &["task", "submit", "later@laptop", "x", "--attempts", "0"],
    ] {
        assert_eq!(nodes.run("desk", wrong).code, Some(2), "{wrong:?}");
    }
    let long = nodes.run(
        "desk",
        &["task", "submit", "later@laptop", "x", "--keep", "31d"],
    );
    assert_eq!(long.code, Some(64 + 3), "{}", long.stderr);
}
