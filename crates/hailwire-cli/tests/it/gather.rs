//! `hail call --all` and `--replies N`: the answers of several members, of this node and of others.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use crate::test_nodes::{TestNodes, mkfifo};

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap();
    text.lines().map(parse).collect()
}

/// Two members on `desk`, three on `lap`, each of which answers with its letter and what it was sent.
fn five_members() -> TestNodes {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    for (node, letter) in [
        ("desk", "a"),
        ("desk", "b"),
        ("lap", "c"),
        ("lap", "d"),
        ("lap", "e"),
    ] {
        nodes.serve(node, "vote", &format!("printf '{letter} '; cat"));
    }
    nodes
}

#[test]
fn every_member_here_and_on_other_nodes_answers_once() {
    let mut nodes = five_members();
    let letters = |stdout: &str| {
        let texts = lines(stdout).into_iter();
        let texts = texts.map(|line| line["text"].as_str().unwrap().to_owned());
        texts.collect::<BTreeSet<_>>()
    };
    let all = ["a x", "b x", "c x", "d x", "e x"].map(str::to_owned);
    for _ in 0..3 {
        let ran = nodes
            .run("desk", &["--json", "call", "vote", "x", "--all"])
            .ok();
        assert_eq!(
            letters(&ran.stdout),
            BTreeSet::from(all.clone()),
            "{ran:#?}"
        );
        let members: BTreeSet<_> = lines(&ran.stdout)
            .iter()
            .map(|line| format!("{} {}", line["node"], line["member"]))
            .collect();
        assert_eq!(members.len(), 5, "{ran:#?}");
    }
    let there = nodes
        .run("desk", &["--json", "call", "vote@lap", "x", "--all"])
        .ok();
    assert_eq!(letters(&there.stdout), all[2..].iter().cloned().collect());
    let here = nodes
        .run("desk", &["--json", "call", "vote@desk", "x", "--all"])
        .ok();
    assert_eq!(letters(&here.stdout).len(), 2, "{here:#?}");

    let people = nodes.run("desk", &["call", "vote", "x", "--all"]).ok();
    assert_eq!(
        people.stdout.matches("==> desk, member ").count(),
        2,
        "{people:#?}"
    );
    assert_eq!(
        people.stdout.matches("==> lap, member ").count(),
        3,
        "{people:#?}"
    );
    assert!(people.stdout.contains(" <==\nd x\n"), "{people:#?}");

    // A member that fails costs no other its answer.
    nodes.serve("lap", "vote", "echo why >&2; exit 78");
    let one_fails = nodes.run("desk", &["call", "vote", "x", "--all"]);
    assert_eq!(one_fails.code, Some(78), "{one_fails:#?}");
    assert_eq!(
        one_fails.stdout.matches("==> ").count(),
        5,
        "{one_fails:#?}"
    );
    for said in ["(unavailable)\n    why\n", "1 of 6 members did not answer"] {
        assert!(one_fails.stderr.contains(said), "{said}: {one_fails:#?}");
    }

    let unknown = nodes.run("desk", &["call", "vot", "x", "--all"]);
    assert_eq!(unknown.code, Some(69), "{unknown:#?}");
    assert!(
        unknown.stderr.contains("did you mean `vote`?"),
        "{unknown:#?}"
    );
    let both = nodes.run("desk", &["call", "vote", "x", "--all", "--stats"]);
    assert_eq!(both.code, Some(2));
}

#[test]
fn as_many_replies_as_were_asked_for_are_enough_and_the_others_are_cancelled() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("desk", "lap");
    let held = nodes.path("held");
    mkfifo(&held);
    nodes.serve("lap", "race", "echo lap");
    nodes.serve("desk", "race", "echo desk");
    let begun = nodes.path("begun");
    let script = format!(
        "exec 3>'{}'; touch '{}'; sleep 1000",
        held.display(),
        begun.display()
    );
    nodes.serve("lap", "race", &script);
    // Reading the pipe ends when the last process that holds it has ended.
    let gone = std::thread::spawn(move || fs::read(held).unwrap());
    let ran = nodes.run("desk", &["call", "race", "--replies", "2"]).ok();
    assert_eq!(ran.stdout.matches("==> ").count(), 2, "{ran:#?}");
    if begun.exists() {
        gone.join().unwrap();
    }

    let late = nodes.run("desk", &["call", "race", "--all", "--timeout", "3s"]);
    assert_eq!(late.code, Some(68), "{late:#?}");
    assert_eq!(late.stdout.matches("==> ").count(), 2, "{late:#?}");
    for said in ["lap, member ", "1 of 3 members did not answer"] {
        assert!(late.stderr.contains(said), "{said}: {late:#?}");
    }
    let too_many = nodes.run(
        "desk",
        &["call", "race", "--replies", "4", "--timeout", "3s"],
    );
    assert!(
        too_many
            .stderr
            .contains("2 of 3 members answered, and 4 were to"),
        "{too_many:#?}"
    );
}

#[test]
fn a_peer_that_may_get_no_bare_call_gets_none() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    nodes.up("lap");
    let invite = ["--json", "invite", "--offer", "other"];
    let ticket = nodes.run("desk", &invite).ok().json();
    let ticket = ticket["ticket"].as_str().unwrap();
    nodes.run("lap", &["join", ticket]).ok();
    nodes.serve("desk", "who", "echo desk");
    nodes.serve("lap", "who", "echo lap");
    // It is known, and called where it is named.
    let there = nodes.run("desk", &["call", "who@lap", "--all"]).ok();
    assert!(there.stdout.ends_with("<==\nlap\n"), "{there:#?}");
    let all = nodes.run("desk", &["call", "who", "--all"]).ok();
    assert_eq!(all.stdout.matches("==> ").count(), 1, "{all:#?}");
    assert!(all.stdout.ends_with("<==\ndesk\n"), "{all:#?}");
}
