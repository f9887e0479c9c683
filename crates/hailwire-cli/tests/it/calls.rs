//! Calls from one node to another, through programs as agents.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use crate::{
    companion_programs,
    test_nodes::{TestNodes, first_line, mkfifo},
};

#[test]
fn the_shell_completes_agents_and_peers_and_errors_name_the_nearest() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    nodes.serve("lap", "word-count", "wc -w");
    let data = nodes.path("desk");
    let completed = |words: &[&str]| companion_programs::completed(&data, words);
    // Who is called first finds what the peer offers.
    nodes
        .feed("desk", &["call", "word-count@lap", "-"], "a b")
        .ok();
    assert_eq!(completed(&["call", "wo"]), ["word-count", "word-count@lap"]);
    assert_eq!(completed(&["ping", "l"]), ["lap"]);
    assert_eq!(completed(&["trust", "rm", "l"]), ["lap"]);

    for (args, nearest) in [
        (
            &["call", "wordcount", "x"][..],
            "did you mean `word-count`?",
        ),
        (
            &["send", "word-cont@lap", "x"],
            "did you mean `word-count@lap`?",
        ),
        (&["ping", "lapp"], "did you mean `lap`?"),
        (&["trust", "rm", "lapp"], "did you mean `lap`?"),
    ] {
        let ran = nodes.run("desk", args);
        assert_eq!(ran.code, Some(69), "{ran:#?}");
        assert!(ran.stderr.contains(nearest), "{ran:#?}");
    }
    let mistaken = nodes.run("desk", &["--json", "call"]);
    assert_eq!(mistaken.code, Some(2));
    let failure: serde_json::Value = serde_json::from_str(&mistaken.stderr).unwrap();
    assert_eq!(failure["error"]["code"], "invalid_argument");
    assert!(
        failure["error"]["hint"]
            .as_str()
            .unwrap()
            .contains("Usage: hail call")
    );
}

#[test]
fn an_agent_is_described_on_its_node_and_on_others_that_may_call_it() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    let file = nodes.path("words.json").display().to_string();
    let schema = serde_json::json!({"methods": [{
        "name": "count",
        "inputSchema": {"type": "string", "contentMediaType": "text/plain"},
        "examples": [{"input": "one two", "output": 2}],
    }]});
    std::fs::write(&file, schema.to_string()).unwrap();
    nodes.serve_with("lap", &["words", "--schema", &file, "--", "wc", "-w"]);
    for (node, who) in [("lap", "words"), ("desk", "words@lap")] {
        let described = nodes.run(node, &["describe", who]).ok();
        let page = format!(
            "words  on lap\n\ncount\n  takes   text/plain\n  $ hail call {who} -m count 'one two'\n  2\n"
        );
        assert_eq!(described.stdout, page);
        let json = nodes.run(node, &["describe", who, "--json"]).ok().json();
        assert_eq!(json["methods"], schema["methods"]);
    }
    let unknown = nodes.run("desk", &["describe", "word@lap"]);
    assert_eq!(unknown.code, Some(69), "{unknown:#?}");

    std::fs::write(&file, r#"{"methods": [{"inputschema": {}}]}"#).unwrap();
    for args in [
        &["serve", "bad", "--schema", &file, "--", "wc"][..],
        &["serve", "bad", "--schema", "none.json", "--", "wc"],
        &["serve", "--keep", "bad", "--schema", &file, "--", "wc"],
    ] {
        let refused = nodes.run("lap", args);
        assert_ne!(refused.code, Some(0), "{refused:#?}");
        assert!(refused.stderr.contains("the schema in "), "{refused:#?}");
    }
}

#[test]
fn a_call_reaches_a_program_on_another_node() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    nodes.serve("desk", "upper", "tr a-z A-Z");
    assert_eq!(
        nodes
            .run("lap", &["call", "upper@desk", "hail"])
            .ok()
            .stdout,
        "HAIL"
    );
    assert_eq!(
        nodes.run("lap", &["call", "upper", "hail"]).ok().stdout,
        "HAIL"
    );
    assert_eq!(
        nodes.run("desk", &["call", "upper", "hail"]).ok().stdout,
        "HAIL"
    );
    assert_eq!(
        nodes
            .feed("lap", &["call", "upper", "-"], "piped")
            .ok()
            .stdout,
        "PIPED"
    );
    // What is piped in is the body where none is given.
    let piped = |args: &[&str]| nodes.feed("lap", args, "piped").ok().stdout;
    assert_eq!(piped(&["call", "upper"]), "PIPED");
    assert_eq!(piped(&["call", "upper", "given"]), "GIVEN");
    assert_eq!(piped(&["call", "upper", ""]), "");
    nodes.run("lap", &["send", "upper", "hail"]).ok();

    let ran = nodes.run("lap", &["call", "upper", "hail", "--stats"]).ok();
    for part in ["connect", "first byte", "total", "direct 127.0.0.1:", "RTT"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:#?}");
    }
    let events = nodes
        .run("lap", &["call", "upper", "hail", "--json"])
        .ok()
        .stdout;
    assert!(events.contains("{\"text\":\"HAIL\"}\n"), "{events}");
}

#[test]
fn a_call_goes_over_the_carrier_that_was_typed() {
    let mut nodes = TestNodes::new();
    let listen = ["--listen", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
    let up = [&["up", "-d", "--name", "desk"][..], &listen[..]].concat();
    nodes.run("desk", &up).ok();
    nodes.adopt("desk");
    nodes.up("lap");
    let ticket = nodes.run("desk", &["--json", "invite"]).ok().json();
    nodes
        .run("lap", &["join", ticket["ticket"].as_str().unwrap()])
        .ok();
    nodes.serve("desk", "echo", "cat");
    for carrier in ["ws", "h2", "quic", "auto"] {
        let args = ["call", "echo@desk", "x", "--stats", "--carrier", carrier];
        let ran = nodes.run("lap", &args).ok();
        assert_eq!(ran.stdout, "x");
        let shown = if carrier == "auto" { "quic" } else { carrier };
        let line = format!("carrier     {shown}\n");
        assert!(ran.stderr.contains(&line), "{line}: {ran:#?}");
    }
    let sent = ["send", "echo@desk", "x", "--carrier", "ws"];
    nodes.run("lap", &sent).ok();
    let stream = ["stream", "echo@desk", "--carrier", "h2"];
    assert_eq!(nodes.feed("lap", &stream, "x").ok().stdout, "x");

    nodes.serve("lap", "back", "cat");
    let args = ["call", "back@lap", "x", "--carrier", "ws"];
    let refused = nodes.run("desk", &args);
    assert_eq!(refused.code, Some(78), "{refused:#?}");
    for part in ["does not listen on TCP", "hint: ", "--listen-tcp"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:#?}");
    }
    let wrong = nodes.run("lap", &["call", "echo@desk", "x", "--carrier", "h3"]);
    assert!(wrong.stderr.contains("quic, h2 or ws"), "{wrong:#?}");
}

#[test]
fn a_program_is_told_about_its_call() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    nodes.serve(
        "desk",
        "env",
        "echo $HAIL_METHOD $HAIL_HEADER_LANG ${#HAIL_NODE}",
    );
    let args = ["call", "env", "-m", "find", "-H", "lang=en"];
    assert_eq!(nodes.run("lap", &args).ok().stdout, "find en 52\n");
}

#[test]
fn failures_of_a_program_come_back_with_code_and_details() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    nodes.serve("desk", "bad", "echo part; echo reason >&2; exit 3");
    nodes.serve("desk", "none", "exit 69");
    let ran = nodes.run("lap", &["call", "bad"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(77), "part\n"));
    assert!(ran.stderr.contains("(internal)\n    reason\n"), "{ran:#?}");
    assert_eq!(nodes.run("lap", &["call", "none"]).code, Some(69));
    assert_eq!(nodes.run("lap", &["call", "nobody"]).code, Some(69));
}

#[test]
fn a_deadline_and_ctrl_c_end_the_program_on_the_other_node() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    let pipe = nodes.path("held");
    mkfifo(&pipe);
    let script = format!("exec 3>'{}'; echo started; sleep 1000", pipe.display());
    nodes.serve("desk", "slow", &script);

    // Reading the pipe ends when the last process that holds it has ended.
    let reader = pipe.clone();
    let gone = std::thread::spawn(move || std::fs::read(reader).unwrap());
    let ran = nodes.run("lap", &["call", "slow", "--timeout", "1s"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(68), "started\n"),
        "{ran:#?}"
    );
    gone.join().unwrap();

    let gone = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    let mut command = nodes.hail("lap", &["call", "slow"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut child), "started\n");
    let interrupt = ["-INT".to_owned(), child.id().to_string()];
    assert!(
        Command::new("kill")
            .args(interrupt)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    gone.join().unwrap();
}

#[test]
fn a_file_passes_through_unchanged_in_both_directions() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    nodes.serve("desk", "echo", "cat");
    let bytes: Vec<u8> = (0..8_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(nodes.path("big"), &bytes).unwrap();
    let body = format!("@{}", nodes.path("big").display());
    let output = nodes
        .hail("lap", &["call", "echo", &body])
        .output()
        .unwrap();
    assert!(output.status.success() && output.stdout == bytes);
}

#[test]
fn a_stream_carries_bytes_both_ways() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    nodes.serve(
        "desk",
        "talk",
        "while read l; do echo \"you said $l\"; done",
    );
    let mut command = nodes.hail("lap", &["stream", "talk"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for word in ["one", "two"] {
        writeln!(stdin, "{word}").unwrap();
        assert_eq!(first_line(&mut child), format!("you said {word}\n"));
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn with_lines_one_process_answers_all_calls() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let script = "while read l; do echo $$ $l; done";
    nodes.serve_with("desk", &["lines", "--lines", "--", "sh", "-c", script]);
    let call = |nodes: &TestNodes| nodes.run("desk", &["call", "lines", "x"]).ok().stdout;
    let first = call(&nodes);
    assert_eq!(first, call(&nodes));
}

#[test]
fn a_served_agent_comes_back_after_its_node_was_restarted() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let mut command = nodes.hail("desk", &["serve", "echo", "--", "cat"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = std::io::BufReader::new(child.stderr.take().unwrap());
    nodes.keep(child);
    let mut note = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut notes, &mut line).unwrap();
        line
    };
    assert!(note().contains("serving "));
    nodes.run("desk", &["down"]).ok();
    assert!(note().contains("attaching again"));
    nodes.up("desk");
    assert!(note().contains("is served again"));
    assert_eq!(nodes.run("desk", &["call", "echo", "x"]).ok().stdout, "x");
}

#[test]
fn a_message_was_taken_whole_once_its_send_succeeds() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    let file = nodes.path("received");
    nodes.serve(
        "desk",
        "note",
        &format!("cat > '{}'; echo thanks", file.display()),
    );
    nodes.serve("desk", "full", "cat > /dev/null; exit 72");
    let ran = nodes.run("lap", &["send", "note", "remember"]).ok();
    assert_eq!(
        (
            ran.stdout.as_str(),
            std::fs::read_to_string(file).unwrap().as_str()
        ),
        ("", "remember")
    );
    // By its node: what was offered a moment ago may not be known at a peer yet.
    assert_eq!(nodes.run("lap", &["send", "full@desk", "x"]).code, Some(72));
}

#[test]
fn what_others_wrote_is_shown_without_what_steers_a_terminal_and_stays_the_same_in_json() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    let foreign = "a\u{9b}2Jb\u{7f}c\u{202e}d\u{200b}e\u{2028}f\u{61c}g\u{feff}h\u{1b}[2Ji";
    let script = "printf %s \"$1\"; printf %s \"$1\" >&2; exit 3";
    let program = ["--", "sh", "-c", script, "sh", foreign];
    let args = ["bad", "--describe", foreign, "--tag", "x"];
    nodes.serve_with("desk", &[&args[..], &program].concat());
    let unfit = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.chars().any(hailwire_wire::shown::is_unfit))
    };

    let table = nodes.run("lap", &["agents"]).ok().stdout;
    assert!(table.contains("bad") && !unfit(&table), "{table:?}");
    let json = nodes.run("lap", &["--json", "agents"]).ok();
    assert!(!unfit(&json.stdout), "{json:?}");
    let agents = json.json();
    let listed = agents.as_array().unwrap().iter();
    let mut descriptions = listed.map(|agent| agent["description"].as_str().unwrap());
    assert!(descriptions.any(|text| text == foreign), "{agents}");

    let failed = nodes.run("lap", &["call", "bad"]);
    assert!(
        failed.code == Some(77) && !unfit(&failed.stderr),
        "{failed:?}"
    );
    // The answer's bytes are the answer's, where they do not go to a terminal.
    assert_eq!(failed.stdout, foreign);
    let failed = nodes.run("lap", &["--json", "call", "bad"]);
    assert!(
        !unfit(&failed.stdout) && !unfit(&failed.stderr),
        "{failed:?}"
    );
    let error: serde_json::Value = serde_json::from_str(&failed.stderr).unwrap();
    assert_eq!(error["error"]["details"], foreign);
}
