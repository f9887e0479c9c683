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
        json!({ "published": 3, "programs": 3, "peers": 3, "kept": 0, "last": 0 })
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
    let nothing = json!({ "topics": [], "peers": [], "kept": [], "named": [] });
    assert_eq!(none, nothing);
}

/// The texts of so many messages, whatever is told between them.
fn bodies(lines: &mut Lines<BufReader<ChildStdout>>, count: usize) -> Vec<String> {
    let mut bodies = Vec::new();
    while bodies.len() < count {
        let line = next(lines);
        if line["topic"].is_string() {
            bodies.push(line["body"]["text"].as_str().unwrap_or_default().to_owned());
        }
    }
    bodies
}

#[test]
fn what_is_kept_is_printed_from_where_it_is_asked_for_and_a_name_goes_on_after_what_it_printed() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "laptop");
    let kept = nodes
        .run(
            "desk",
            &["topics", "keep", "build.>", "--max-bytes", "10MiB"],
        )
        .ok();
    assert_eq!(
        kept.stderr,
        "what is published here under build.> is kept: 10.0 MiB, 7d 0h\n"
    );
    let published = nodes.run("desk", &["pub", "build.web", "1"]).ok();
    assert!(
        published.stderr.starts_with("kept as number 1; "),
        "{}",
        published.stderr
    );
    let lines = nodes
        .feed(
            "desk",
            &["--json", "pub", "build.web", "--lines"],
            "2\n3\n4",
        )
        .ok();
    assert_eq!(
        (&lines.json()["kept"], &lines.json()["last"]),
        (&json!(3), &json!(4))
    );
    let printed = nodes
        .run(
            "laptop",
            &["sub", "build.>", "--last", "2", "-n", "2", "--topic"],
        )
        .ok();
    assert_eq!(printed.stdout, "build.web\t3\nbuild.web\t4\n");
    let printed = nodes
        .run("desk", &["sub", ">", "--since", "10m", "-n", "4"])
        .ok();
    assert_eq!(printed.stdout, "1\n2\n3\n4\n");

    // A name begins where it is said, and goes on after what it printed, also when it was killed.
    let (mut first, mut lines) = subscribed(
        &nodes,
        "laptop",
        &["build.>", "--as", "audit", "--from", "1"],
    );
    assert_eq!(bodies(&mut lines, 4), ["1", "2", "3", "4"]);
    let given_up = Instant::now() + PATIENCE;
    loop {
        let list = nodes.run("laptop", &["--json", "topics"]).ok().json();
        let named = &list["named"][0];
        assert_eq!(named["name"], "audit", "{list}");
        let positions = named["positions"].as_array().unwrap();
        if positions.iter().any(|position| position["kept"] == 4) {
            break;
        }
        assert!(Instant::now() < given_up, "{list}");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    nodes.run("desk", &["pub", "build.web", "5"]).ok();
    let printed = nodes
        .run("laptop", &["sub", "build.>", "--as", "audit", "-n", "1"])
        .ok();
    assert_eq!(printed.stdout, "5\n");

    let table = nodes.run("desk", &["topics"]).ok().stdout;
    assert!(table.contains("KEPT") && table.contains("1-5"), "{table}");
    let table = nodes.run("laptop", &["topics", "ls"]).ok().stdout;
    assert!(
        table.contains("audit") && table.contains("desk: 5"),
        "{table}"
    );
    nodes.run("laptop", &["topics", "forget", "audit"]).ok();
    let removed = nodes.run("desk", &["topics", "unkeep", "build.>"]).ok();
    assert_eq!(
        removed.stderr,
        "build.> is kept no more; messages removed: 5\n"
    );
    for (wrong, code) in [
        (&["sub", "a", "--last", "1", "--since", "1s"][..], 2),
        (&["sub", "a", "--last", "100001"], 2),
        (&["topics", "keep", "a", "--max-bytes", "0"], 2),
        (&["topics", "keep", "state.>"], 64 + 3),
        (&["topics", "unkeep", "build.>"], 64 + 5),
        (&["topics", "forget", "audit"], 64 + 5),
    ] {
        let wrong = nodes.run("desk", wrong);
        assert_eq!(wrong.code, Some(code), "{}", wrong.stderr);
    }
}

#[test]
fn state_is_put_read_watched_and_deleted_on_both_machines() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "laptop");
    let none = nodes.run("desk", &["state", "get", "build.web"]);
    assert_eq!(none.code, Some(64 + 5), "{}", none.stderr);
    assert!(none.stderr.contains("hint: "), "{}", none.stderr);
    let put = nodes
        .run("desk", &["state", "put", "build.web", "green"])
        .ok();
    assert_eq!(put.stdout, "1\n");
    let mut watch = nodes.hail(
        "laptop",
        &["--json", "state", "watch", "build.>", "-n", "2"],
    );
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut value = || loop {
        let line = next(&mut lines);
        if line["key"].is_string() {
            break line;
        }
    };
    let first = value();
    assert_eq!(first["value"], json!({ "text": "green" }));
    let late = nodes.run(
        "desk",
        &["state", "put", "build.web", "blue", "--if-revision", "7"],
    );
    assert_eq!(late.code, Some(64 + 10), "{}", late.stderr);
    assert!(late.stderr.contains("the revision of"), "{}", late.stderr);
    let put = nodes.feed(
        "desk",
        &[
            "--json",
            "state",
            "put",
            "build.web",
            "-",
            "--if-revision",
            "1",
        ],
        "red",
    );
    assert_eq!(put.ok().json(), json!({ "revision": 2 }));
    let second = value();
    let desk = nodes.run("desk", &["id"]).ok().stdout;
    assert_eq!(
        (
            &second["key"],
            &second["value"],
            &second["node"],
            &second["revision"]
        ),
        (
            &json!("build.web"),
            &json!({ "text": "red" }),
            &json!(desk.trim()),
            &json!(2)
        )
    );
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    let read = nodes.run("laptop", &["state", "get", "build.web"]).ok();
    assert_eq!(read.stdout, "red\n");
    nodes
        .run("laptop", &["state", "put", "build.api", "up"])
        .ok();
    let list = nodes.run("desk", &["--json", "state", "ls"]).ok().json();
    let keys: Vec<_> = list["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["key"])
        .collect();
    assert_eq!(keys, ["build.api", "build.web"]);
    assert_eq!(list["away"], json!([]));
    let table = nodes.run("desk", &["state", "ls", "build.*"]).ok().stdout;
    assert!(
        table.contains("build.api") && table.contains("up"),
        "{table}"
    );
    nodes.run("desk", &["state", "rm", "build.web"]).ok();
    for node in ["desk", "laptop"] {
        let gone = nodes.run(node, &["state", "get", "build.web"]);
        assert_eq!(gone.code, Some(64 + 5), "{}", gone.stderr);
    }
    for wrong in [
        &["state", "put", "build.*", "x"][..],
        &["state", "get", "A"],
        &["state", "watch", ">.a"],
    ] {
        assert_eq!(nodes.run("desk", wrong).code, Some(2), "{wrong:?}");
    }
}
