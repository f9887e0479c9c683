//! `hail dispatch`: its inputs, its order, its journal, and what becomes of it when it is killed.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::test_nodes::{Ran, TestNodes, mkfifo};

/// The results that were printed.
#[track_caller]
fn results(ran: &Ran) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    ran.stdout.lines().map(parse).collect()
}

/// A member of each result, by index.
#[track_caller]
fn by_index(ran: &Ran, member: &str) -> Vec<Value> {
    let mut results = results(ran);
    results.sort_by_key(|result| result["index"].as_u64());
    let check = |(at, result): (usize, &Value)| {
        assert_eq!(result["index"], at, "each index once: {ran:#?}");
        result[member].clone()
    };
    results.iter().enumerate().map(check).collect()
}

fn numbers(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

#[test]
fn lines_files_and_values_are_one_call_each() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    nodes.serve("desk", "upper", "tr a-z A-Z; echo $HAIL_TYPE");
    let ran = nodes.feed("desk", &["dispatch", "upper"], "a\n\nb").ok();
    assert_eq!(by_index(&ran, "text"), ["A\n", "\n", "B\n"]);
    assert_eq!(by_index(&ran, "input"), ["a", "", "b"]);
    assert!(ran.stderr.starts_with("3 answered; "), "{ran:#?}");

    let path = |name: &str| nodes.path(name).display().to_string();
    let (one, two) = (path("one"), path("two"));
    fs::write(&one, "x\ny\n").unwrap();
    fs::write(&two, b"\xff").unwrap();
    let ran = nodes.run("desk", &["dispatch", "upper", &one, &two]).ok();
    let results = results(&ran);
    assert_eq!(by_index(&ran, "input"), [json!(one), json!(two)]);
    assert!(results.iter().any(|result| result["text"] == "X\nY\n\n"));
    assert!(results.iter().any(|result| result["base64"] == "/wo="));

    let ran = nodes
        .run("desk", &["dispatch", "upper", "--lines", &one])
        .ok();
    assert_eq!(by_index(&ran, "text"), ["X\n", "Y\n"]);

    let expected = [
        "{\"A\": [1]}APPLICATION",
        "\"B\"APPLICATION",
        "3APPLICATION",
    ];
    let expected = expected.map(|text| text.replace("APPLICATION", "application/json\n"));
    for values in ["{\"a\": [1]} \"b\"\n3", "[{\"a\": [1]}, \"b\", 3]\n"] {
        let args = ["dispatch", "upper", "--values", "-"];
        let ran = nodes.feed("desk", &args, values).ok();
        assert_eq!(by_index(&ran, "text"), expected);
    }

    // What stands before a mistake is answered.
    let ran = nodes.feed("desk", &["dispatch", "upper", "--values", "-"], "1 2 }");
    assert_eq!(ran.code, Some(67), "{ran:#?}");
    assert_eq!(by_index(&ran, "input"), ["1", "2"]);
    assert!(
        ran.stderr.contains("`}` cannot stand at byte 4"),
        "{ran:#?}"
    );

    for (args, code, said) in [
        (
            &["dispatch", "uper", one.as_str()][..],
            69,
            "did you mean `upper`?",
        ),
        (&["dispatch", "upper", "none.txt"], 69, "printf"),
        (&["dispatch", "upper"], 2, "the inputs are missing"),
        (
            &["dispatch", "upper", &one, "--retry", "1"],
            2,
            "--idempotency-key",
        ),
        (&["dispatch", "upper", &one, "-j", "0"], 2, "1..=1024"),
    ] {
        let ran = nodes.run("desk", args);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(code), ""),
            "{ran:#?}"
        );
        assert!(ran.stderr.contains(said), "{said}: {ran:#?}");
    }
}

#[test]
fn results_come_as_they_are_done_or_in_the_order_of_the_inputs() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    let later = nodes.path("later");
    mkfifo(&later);
    // The first input is answered when the last one was called.
    let script = format!(
        "read l; case $l in 0) read x <'{0}';; 5) echo >'{0}';; esac; echo $l",
        later.display()
    );
    nodes.serve("lap", "slow", &script);
    let indices = |args: &[&str]| {
        let args = [&["dispatch", "slow@lap"], args].concat();
        let ran = nodes.feed("desk", &args, &numbers(0..6)).ok();
        assert!(by_index(&ran, "node").iter().all(|node| node == "lap"));
        let index = |result: &Value| result["index"].as_u64().unwrap();
        results(&ran).iter().map(index).collect::<Vec<_>>()
    };
    let as_they_come = indices(&[]);
    assert_ne!(as_they_come[0], 0, "{as_they_come:?}");
    assert_eq!(indices(&["--ordered"]), [0, 1, 2, 3, 4, 5]);
    let one_by_one = nodes.feed("desk", &["dispatch", "slow@lap", "-j", "1"], "1\n2\n3\n");
    assert!(results(&one_by_one.ok()).is_sorted_by_key(|result| result["index"].as_u64()));
}

#[test]
fn what_fails_is_told_and_called_again_where_that_is_allowed() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    nodes.serve(
        "desk",
        "choosy",
        "read l; [ $l = 2 ] && echo odd >&2 && exit 67; echo $l",
    );
    let ran = nodes.feed("desk", &["dispatch", "choosy"], &numbers(0..4));
    assert_eq!(ran.code, Some(67), "{ran:#?}");
    assert_eq!(
        by_index(&ran, "code"),
        ["ok", "ok", "invalid_argument", "ok"]
    );
    assert_eq!(by_index(&ran, "details")[2], "odd");
    assert!(
        ran.stderr
            .contains("1 of 4 inputs were not answered: 1 invalid_argument")
    );

    // Of each input's calls the first fails.
    let seen = nodes.path("seen");
    fs::create_dir(&seen).unwrap();
    let script = format!(
        "mkdir '{}'/$HAIL_IDEMPOTENCY_KEY && exit 78; cat",
        seen.display()
    );
    nodes.serve("desk", "flaky", &script);
    let args = [
        "dispatch",
        "flaky",
        "--retry",
        "3",
        "--idempotency-key",
        "k",
    ];
    let ran = nodes.feed("desk", &args, &numbers(0..3)).ok();
    assert_eq!(by_index(&ran, "text"), ["0", "1", "2"]);
    assert_eq!(by_index(&ran, "calls"), [2, 2, 2]);
    assert!(seen.join("k:2").is_dir());

    // A member that fails beside one that answers.
    nodes.serve("desk", "pair", "cat >/dev/null; exit 78");
    nodes.serve("desk", "pair", "cat");
    let args = [
        "dispatch",
        "pair",
        "--retry",
        "20",
        "--idempotency-key",
        "k",
    ];
    let ran = nodes.feed("desk", &args, &numbers(0..20)).ok();
    assert_eq!(by_index(&ran, "code"), ["ok"; 20]);

    let args = ["dispatch", "late", "--timeout", "200ms"];
    nodes.serve(
        "desk",
        "late",
        "read l; [ $l = 1 ] && exec sleep 1000; echo $l",
    );
    let ran = nodes.feed("desk", &args, &numbers(0..2));
    assert_eq!(ran.code, Some(68), "{ran:#?}");
    assert_eq!(by_index(&ran, "code"), ["ok", "deadline_exceeded"]);
}

/// An agent that writes down each input that it is called for, and holds those from 20 on until a file `go` is there.
struct CountingAgent {
    nodes: TestNodes,
}

impl CountingAgent {
    fn new() -> Self {
        let mut nodes = TestNodes::new();
        nodes.up("desk");
        let folder = nodes.path("");
        let script = format!(
            "cd '{}'; read l; [ -n \"$l\" ] || exit 1; echo $l >>calls; [ $l -ge 20 ] && [ ! -e go ] && exec sleep 1000; echo $l",
            folder.display()
        );
        nodes.serve("desk", "count", &script);
        Self { nodes }
    }

    fn journal(&self) -> String {
        self.nodes.path("journal").display().to_string()
    }

    /// How often it was called for each input.
    fn calls(&self) -> BTreeMap<u32, u32> {
        let text = fs::read_to_string(self.nodes.path("calls")).unwrap_or_default();
        let mut calls = BTreeMap::new();
        for line in text.lines() {
            *calls.entry(line.parse().unwrap()).or_default() += 1;
        }
        calls
    }

    /// Starts a run over 40 inputs, of which it answers 20, and returns when those are printed.
    fn held(&self) -> Child {
        let journal = self.journal();
        let args = ["dispatch", "count", "-j", "4", "--journal", &journal];
        let mut command = self.nodes.hail("desk", &args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(numbers(0..40).as_bytes()).unwrap();
        drop(stdin);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.take(20).map(Result::unwrap).count(), 20);
        child
    }

    /// Lets all inputs be answered, and runs the command again.
    fn go_on(&self, more: &[&str]) -> Ran {
        fs::write(self.nodes.path("go"), "").unwrap();
        self.run(more)
    }

    fn run(&self, more: &[&str]) -> Ran {
        let journal = self.journal();
        let args = [&["dispatch", "count", "--journal", &journal], more].concat();
        self.nodes.feed("desk", &args, &numbers(0..40))
    }
}

fn signal(child: &Child, name: &str) {
    let args = [format!("-{name}"), child.id().to_string()];
    assert!(Command::new("kill").args(args).status().unwrap().success());
}

#[test]
fn a_run_that_was_killed_goes_on_and_calls_for_nothing_twice_that_was_answered() {
    let agent = CountingAgent::new();
    let mut killed = agent.held();
    // Another run is kept away from its journal.
    let kept_away = agent.run(&[]);
    assert_eq!(kept_away.code, Some(73), "{kept_away:#?}");
    assert!(
        kept_away
            .stderr
            .contains("another dispatch runs with the journal")
    );
    signal(&killed, "KILL");
    killed.wait().unwrap();

    let ran = agent.go_on(&["--ordered"]).ok();
    let texts: Vec<_> = (0..40).map(|number| json!(format!("{number}\n"))).collect();
    let in_order: Vec<_> = results(&ran)
        .iter()
        .map(|result| result["text"].clone())
        .collect();
    assert_eq!(in_order, texts);
    assert!(
        ran.stderr
            .starts_with("40 answered (20 of them in the journal); "),
        "{ran:#?}"
    );
    let calls = agent.calls();
    for input in 0..40 {
        // Four were in flight.
        let most = if input < 20 { 1 } else { 2 };
        assert!((1..=most).contains(&calls[&input]), "{input}: {calls:?}");
    }

    // Once more there is nothing to call for.
    let again = agent.go_on(&["--ordered"]).ok();
    assert_eq!(again.stdout, ran.stdout);
    assert_eq!(agent.calls(), calls);
}

#[test]
fn ctrl_c_ends_a_run_from_which_the_same_command_goes_on() {
    let agent = CountingAgent::new();
    let interrupted = agent.held();
    signal(&interrupted, "INT");
    let ran = Ran::from(interrupted.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:#?}");
    for said in ["20 answered; ", "the same command goes on"] {
        assert!(ran.stderr.contains(said), "{said}: {ran:#?}");
    }
    let ran = agent.go_on(&[]).ok();
    assert_eq!(by_index(&ran, "code"), ["ok"; 40]);
    assert!(
        agent
            .calls()
            .iter()
            .all(|(input, calls)| *input >= 20 || *calls == 1)
    );
}

#[test]
fn a_line_that_was_cut_off_is_called_for_again_and_another_journal_is_refused() {
    let agent = CountingAgent::new();
    agent.go_on(&["-j", "1"]).ok();
    let path = agent.nodes.path("journal");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    let ran = agent.go_on(&[]).ok();
    assert!(ran.stderr.contains("39 of them in the journal"), "{ran:#?}");
    let calls = agent.calls();
    assert!(
        calls
            .iter()
            .all(|(input, calls)| *calls == 1 + u32::from(*input == 39))
    );
    // The new last line is as whole as the others.
    assert_eq!(by_index(&agent.go_on(&[]).ok(), "text").len(), 40);

    let journal = agent.journal();
    let refuse = |args: &[&str], input: &str, said: &str| {
        let before = fs::read(&path).unwrap();
        let args = [&["dispatch", "count", "--journal", &journal], args].concat();
        let ran = agent.nodes.feed("desk", &args, input);
        assert_eq!(ran.code, Some(73), "{ran:#?}");
        assert!(
            ran.stderr.contains(said) && ran.stderr.contains("hint: "),
            "{said}: {ran:#?}"
        );
        assert_eq!(fs::read(&path).unwrap(), before, "it was not changed");
    };
    refuse(
        &[],
        "7\n",
        "of other inputs: it has the answer of another input 0",
    );
    refuse(&[], &numbers(0..39), "answers of 1 beyond the 39");
    refuse(&["-m", "x"], &numbers(0..40), "another method");
    refuse(
        &["--values", "-"],
        &numbers(0..40),
        "inputs that are lines, not values",
    );
    assert_eq!(agent.calls(), calls);

    fs::write(&path, "{\"a\":1}\n").unwrap();
    refuse(&[], &numbers(0..40), "is not a journal");
    fs::write(&path, "some notes").unwrap();
    refuse(&[], &numbers(0..40), "is not a journal");
    let mut spoiled = whole.clone();
    let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    spoiled[second] = b'x';
    fs::write(&path, spoiled).unwrap();
    refuse(&[], &numbers(0..40), "line 2 is none of one");
}
