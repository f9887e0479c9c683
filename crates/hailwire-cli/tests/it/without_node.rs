//! Commands that need no node.

use crate::test_nodes::TestNodes;

#[test]
fn what_needs_a_node_says_how_to_start_one() {
    let nodes = TestNodes::new();
    for args in [
        &["status"][..],
        &["peers"],
        &["agents"],
        &["invite"],
        &["trust", "ls"],
        &["call", "a"],
        &["send", "a"],
        &["stream", "a"],
        &["ping", "a"],
        &["serve", "a", "--", "cat"],
    ] {
        let ran = nodes.run("a", args);
        assert_eq!(ran.code, Some(78), "{args:?}: {ran:#?}");
        assert!(ran.stdout.is_empty(), "{args:?}: {ran:#?}");
        assert!(
            ran.stderr
                .contains("(unavailable)\nhint: start it with `hail up -d`\n"),
            "{ran:#?}"
        );
    }
}

#[test]
fn help_and_version_are_commands_too() {
    let nodes = TestNodes::new();
    for (command, options) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "call"], &["call", "--help"]),
        (&["help", "trust", "add"], &["trust", "add", "--help"]),
        (&["help", "bench", "run"], &["bench", "run", "--help"]),
        (&["version"], &["--version"]),
    ] {
        let ran = nodes.run("a", command).ok();
        assert_eq!(
            ran.stdout,
            nodes.run("a", options).ok().stdout,
            "{command:?}"
        );
        assert!(!ran.stdout.is_empty() && ran.stderr.is_empty(), "{ran:#?}");
    }
    let wrong = nodes.run("a", &["help", "no-such-command"]);
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
    assert!(wrong.stderr.contains("no-such-command"), "{wrong:#?}");
}

#[test]
fn a_failure_is_json_on_stderr_when_asked() {
    let nodes = TestNodes::new();
    let ran = nodes.run("a", &["status", "--json"]);
    let failure: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(failure["error"]["code"], "unavailable");
    assert_eq!(failure["error"]["exit"], 78);
}

#[test]
fn mistakes_in_typing_exit_with_2() {
    let nodes = TestNodes::new();
    for args in [
        &["cal"][..],
        &["call"],
        &["call", "Not A Name"],
        &["call", "a", "--timeout", "10"],
        &["call", "a", "-p", "urgent"],
        &["serve", "a"],
        &["trust", "add", "not-a-key"],
    ] {
        assert_eq!(nodes.run("a", args).code, Some(2), "{args:?}");
    }
}

#[test]
fn stopping_what_does_not_run_is_no_failure() {
    let nodes = TestNodes::new();
    let ran = nodes.run("a", &["down", "--json"]).ok();
    assert_eq!(ran.json()["stopped"], false);
}

#[test]
fn the_configuration_is_shown_and_checked() {
    let nodes = TestNodes::new();
    nodes.run("a", &["config", "check"]).ok();
    std::fs::create_dir(nodes.path("a")).unwrap();
    std::fs::write(nodes.path("a/hail.kdl"), "node { name \"desk\" }\n").unwrap();
    assert_eq!(
        nodes.run("a", &["config", "show"]).ok().stdout,
        "node { name \"desk\" }\n"
    );
    let shown = nodes.run("a", &["config", "show", "--json"]).ok().json();
    assert_eq!(shown["node"]["name"], "desk");
    assert_eq!(shown["limits"]["grace"], "10s");

    std::fs::write(nodes.path("a/hail.kdl"), "limits {\n  grase \"1s\"\n}\n").unwrap();
    let ran = nodes.run("a", &["config", "check"]);
    assert_eq!(ran.code, Some(67), "{ran:#?}");
    assert!(
        ran.stderr
            .contains("hail.kdl:2:3: `grase` is not a setting of `limits`"),
        "{ran:#?}"
    );
    assert!(
        ran.stderr.contains("hint: did you mean `grace`?"),
        "{ran:#?}"
    );
    assert_eq!(nodes.run("a", &["up"]).code, Some(67));
}

#[test]
fn completions_and_manual_pages_come_from_the_same_table() {
    let nodes = TestNodes::new();
    assert!(
        nodes
            .run("a", &["completions", "bash"])
            .ok()
            .stdout
            .contains("_hail()")
    );
    assert!(nodes.run("a", &["man"]).ok().stdout.contains(".TH"));
    let folder = nodes.path("man");
    nodes.run("a", &["man", folder.to_str().unwrap()]).ok();
    assert!(folder.join("hail-call.1").exists());
}

#[test]
fn the_reader_of_stdout_may_leave() {
    let nodes = TestNodes::new();
    let mut command = nodes.hail("a", &["completions", "zsh"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty());
}

#[test]
fn a_hub_that_never_ran_gives_no_tickets() {
    let nodes = TestNodes::new();
    let ran = nodes.run("h", &["hub", "invite"]);
    assert_eq!(ran.code, Some(73), "{ran:#?}");
}
