//! Publishing and subscribing through the command line.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::test_nodes::TestNodes;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// `hail sub` with these arguments, once it is subscribed.
fn subscribed(
    nodes: &TestNodes,
    node: &str,
    args: &[&str],
) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = nodes.hail(node, &["--json", "sub"]);
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = next(&mut lines);
    assert!(first["subscribed"].is_array(), "{first}");
    (child, lines)
}

fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    let line = lines.next().expect("a line").unwrap();
    serde_json::from_str(&line).unwrap()
}

/// Waits until a peer's pattern is known at a node.
fn wanted(nodes: &TestNodes, node: &str, pattern: &str) {
    let given_up = Instant::now() + PATIENCE;
    loop {
        let list = nodes.run(node, &["--json", "topics"]).ok().json();
        let rows = list["topics"].as_array().unwrap();
        if rows
            .iter()
            .any(|row| row["pattern"] == pattern && row["node"].is_string())
        {
            return;
        }
        assert!(Instant::now() < given_up, "{list}");
    }
}

#[test]
fn what_is_published_on_one_machine_is_printed_on_both() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "laptop");
    let (mut near, mut here) = subscribed(&nodes, "desk", &["-n", "4", "build.>"]);
    let (mut far, mut there) = subscribed(
        &nodes,
        "laptop",
        &["-n", "4", "build.*.done", "build.lines"],
    );
    wanted(&nodes, "desk", "build.*.done");
    wanted(&nodes, "desk", "build.lines");

    let args = [
        "pub",
        "build.web.done",
        "tests pass",
        "-H",
        "commit=abc",
        "--type",
        "text/plain",
        "--from",
        "ci",
    ];
    let published = nodes.run("desk", &args).ok();
    assert_eq!(published.stdout, "");
    assert!(
        published.stderr.contains("subscribers here: 1, peers: 1"),
        "{}",
        published.stderr
    );
    let lines = nodes
        .feed(
            "desk",
            &["--json", "pub", "build.lines", "--lines"],
            "one\n\nthree",
        )
        .ok();
    assert_eq!(
        lines.json(),
        json!({ "published": 3, "programs": 3, "peers": 3 })
    );

    let desk = nodes.run("desk", &["id"]).ok().stdout;
    for (lines, node) in [(&mut here, Value::Null), (&mut there, json!(desk.trim()))] {
        let first = next(lines);
        assert_eq!(first["node"], node);
        assert_eq!(first["topic"], "build.web.done");
        assert_eq!(first["body"], json!({ "text": "tests pass" }));
        assert_eq!(first["headers"], json!([["commit", "abc"]]));
        assert_eq!(
            (&first["from"], &first["content_type"]),
            (&json!("ci"), &json!("text/plain"))
        );
        let bodies = [(); 3].map(|()| next(lines)["body"].clone());
        assert_eq!(
            bodies,
            [
                json!({ "text": "one" }),
                json!({}),
                json!({ "text": "three" })
            ]
        );
        assert!(lines.next().is_none(), "it ends after four");
    }
    for child in [&mut near, &mut far] {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn bodies_are_printed_as_they_are_and_mistakes_say_what_to_do() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let mut command = nodes.hail("desk", &["sub", "-n", "3", "--topic", ">"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(said, "subscribed to > (Ctrl-C to stop)\n");
    for (topic, body) in [("a", "one"), ("b.c", "two\n"), ("a", "")] {
        nodes.feed("desk", &["pub", topic], body).ok();
    }
    let printed = child.wait_with_output().unwrap();
    assert_eq!(printed.stdout, b"a\tone\nb.c\ttwo\na\t\n");

    let nobody = nodes.run("desk", &["pub", "a", "x"]).ok();
    assert!(
        nobody.stderr.contains("nobody is subscribed"),
        "{}",
        nobody.stderr
    );
    let late = nodes.run("desk", &["--timeout", "200ms", "sub", "-n", "1", "a"]);
    assert_eq!(late.code, Some(68), "{}", late.stderr);
    for wrong in [
        &["pub", "a.*"][..],
        &["pub", "A"],
        &["sub", ">.a"],
        &["sub"],
        &["pub", "a", "x", "--lines"],
    ] {
        let wrong = nodes.run("desk", wrong);
        assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    }
    let large = "x".repeat(1024 * 1024 + 1);
    for args in [&["pub", "a", "-"][..], &["pub", "a", "--lines"]] {
        let large = nodes.feed("desk", args, &large);
        assert_eq!(large.code, Some(64 + 8), "{}", large.stderr);
        assert!(
            large.stderr.contains("larger than 1.0 MiB"),
            "{}",
            large.stderr
        );
    }
    let none = nodes.run("desk", &["--json", "topics"]).ok().json();
    assert_eq!(none, json!({ "topics": [], "peers": [] }));
}
