//! Programs that sleep until a durable message waits for them (`hail serve --on-message`). Real processes.

use std::{fs, io::Write as _, path::Path};

use serde_json::Value;

use crate::{
    programs::{kill, runs, until},
    test_nodes::{TestNodes, mkfifo},
};

/// The beginning of a script that notes its start in the file `started`, and has a function that takes a message and one that says that it is done.
fn script(nodes: &TestNodes, rest: &str) -> String {
    let hail = env!("CARGO_BIN_EXE_hail");
    let started = nodes.path("started");
    format!(
        "echo \"$$ $HAIL_AGENT $HAIL_WAITING\" >> '{}'
        take() {{ id=$('{hail}' inbox take \"$HAIL_AGENT\" | head -n 1 | cut -d ' ' -f 1); }}
        ack() {{ '{hail}' inbox ack \"$id\"; }}
        {rest}",
        started.display()
    )
}

/// The words of each start: the process, the agent, how many waited.
fn starts(nodes: &TestNodes) -> Vec<Vec<String>> {
    let text = fs::read_to_string(nodes.path("started")).unwrap_or_default();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    text.lines().map(words).collect()
}

fn send(nodes: &TestNodes, more: &[&str]) -> String {
    let args = [&["send", "--durable", "night@desk", "sweep"], more].concat();
    nodes.run("desk", &args).ok().stdout.trim().to_owned()
}

fn wait_for(nodes: &TestNodes, id: &str) {
    let waited = nodes.run("desk", &["inbox", "wait", id]).ok();
    assert_eq!(waited.stdout.trim(), "acknowledged");
}

fn row(nodes: &TestNodes) -> Value {
    let listed = nodes.run("desk", &["serve", "ls", "--json"]).ok().json();
    listed[0].clone()
}

#[test]
fn a_message_wakes_a_program_which_ends_once_nothing_waits_and_is_woken_by_the_next() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let script = script(&nodes, "take; ack; exec sleep 1000");
    let args = ["night", "--on-message", "--idle", "200ms", "--"];
    nodes.serve_with("desk", &[&args[..], &["sh", "-c", &script]].concat());
    assert!(starts(&nodes).is_empty());
    // A call is not kept, and finds nobody.
    let call = nodes.run("desk", &["call", "night", "x", "--timeout", "20s"]);
    assert_eq!(call.code, Some(69), "{call:#?}");
    for woken in 1..=2 {
        let id = send(&nodes, &[]);
        wait_for(&nodes, &id);
        let starts = starts(&nodes);
        assert_eq!(starts.len(), woken);
        assert_eq!(starts[woken - 1][1..], ["night", "1"]);
        let pid = starts[woken - 1][0].parse().unwrap();
        until("it ends once nothing waits", || !runs(pid));
    }
}

#[test]
fn what_waits_wakes_a_kept_program_after_its_node_was_killed() {
    let mut nodes = TestNodes::new();
    let node = nodes.up("desk")["pid"].as_u64().unwrap();
    let node = u32::try_from(node).unwrap();
    let id = send(&nodes, &[]);
    kill("-KILL", node);
    until("the node ends", || !runs(node));
    let script = script(&nodes, "echo begun; take; ack");
    let args = ["serve", "--keep", "night", "--on-message", "--"];
    let kept = nodes.run("desk", &[&args[..], &["sh", "-c", &script]].concat());
    kept.ok();
    nodes.up("desk");
    wait_for(&nodes, &id);
    assert_eq!(starts(&nodes).len(), 1);
    until("it sleeps", || row(&nodes)["state"] == "sleeping");
    let log = nodes.run("desk", &["serve", "logs", "night"]).ok().stdout;
    for line in [
        "hail: started: 1 messages wait",
        "begun",
        "hail: ended: exit status 0",
    ] {
        assert!(log.contains(line), "{log}");
    }
    // Its node is killed again, with the supervisor: the next message is as welcome.
    nodes.run("desk", &["down"]).ok();
    nodes.up("desk");
    let id = send(&nodes, &[]);
    wait_for(&nodes, &id);
    assert_eq!(starts(&nodes).len(), 2);
}

fn fifo(path: &Path) -> fs::File {
    mkfifo(path);
    let (mut options, yes) = (fs::OpenOptions::new(), true);
    options.read(yes).write(yes).open(path).unwrap()
}

#[test]
fn no_more_programs_run_than_may_and_as_many_as_there_is_to_do() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let (running, counted) = (nodes.path("running"), nodes.path("counted"));
    fs::create_dir(&running).unwrap();
    let mut go = fifo(&nodes.path("go"));
    let ids: Vec<String> = (0..5).map(|_| send(&nodes, &["--any-order"])).collect();
    let rest = format!(
        "touch '{0}'/$$; take; [ -n \"$id\" ] || {{ rm '{0}'/$$; exit 0; }}; ls '{0}' | wc -l >> '{1}'; read go < '{2}'; ack; rm '{0}'/$$",
        running.display(),
        counted.display(),
        nodes.path("go").display()
    );
    let script = script(&nodes, &rest);
    let args = ["night", "--on-message", "--max", "2", "--"];
    nodes.serve_with("desk", &[&args[..], &["sh", "-c", &script]].concat());
    let counts = || -> Vec<usize> {
        let text = fs::read_to_string(&counted).unwrap_or_default();
        text.lines()
            .map(|line| line.trim().parse().unwrap())
            .collect()
    };
    until("two run", || counts().len() == 2);
    go.write_all(b"go\ngo\ngo\ngo\ngo\n").unwrap();
    for id in &ids {
        wait_for(&nodes, id);
    }
    let counts = counts();
    assert_eq!((counts.len(), counts.iter().max()), (5, Some(&2)));
}

#[test]
fn a_program_that_fails_at_once_is_started_after_pauses_and_says_why() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let repaired = nodes.path("repaired");
    let rest = format!(
        "if [ ! -e '{}' ]; then echo broken >&2; exit 3; fi; take; ack",
        repaired.display()
    );
    let script = script(&nodes, &rest);
    let args = ["serve", "--keep", "night", "--on-message", "--"];
    let kept = nodes.run("desk", &[&args[..], &["sh", "-c", &script]].concat());
    kept.ok();
    assert_eq!(row(&nodes)["state"], "sleeping");
    let begun = std::time::Instant::now();
    let id = send(&nodes, &[]);
    until("it is started again", || starts(&nodes).len() >= 3);
    // The pauses are 1 s and 2 s.
    assert!(begun.elapsed() >= std::time::Duration::from_secs(3));
    let mut restarting = Value::Null;
    until("its state says why", || {
        restarting = row(&nodes);
        restarting["state"] == "restarting"
    });
    let why = restarting["why"].as_str().unwrap();
    assert!(why.contains("it took no message: exit status 3"), "{why}");
    let log = nodes.run("desk", &["serve", "logs", "night"]).ok().stdout;
    assert!(
        log.contains("broken") && log.contains("started again in 2 s"),
        "{log}"
    );
    // Whoever has repaired it need not wait.
    fs::write(&repaired, "").unwrap();
    nodes.run("desk", &["serve", "restart", "night"]).ok();
    wait_for(&nodes, &id);
}
