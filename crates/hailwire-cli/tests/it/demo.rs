//! `hail demo`: the whole system in processes of its own, and nothing left of it.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::test_nodes::{Ran, TestNodes};

/// Long enough for any step on a busy machine; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// Documents, of which every other one has a line with the text that the demonstration looks for.
const DOCUMENTS: usize = 60;

/// `hail demo` on a small folder, with a folder of its own for temporary files.
fn demo(nodes: &TestNodes, args: &[&str]) -> Command {
    let input = nodes.path("input");
    fs::create_dir_all(input.join("sub")).unwrap();
    for i in 0..DOCUMENTS {
        let text = format!("document {i}\n{}", "in the beginning\n".repeat(i % 2 * i));
        fs::write(input.join(format!("sub/{i}.txt")), text).unwrap();
    }
    fs::write(input.join("binary"), [0, 1, 2]).unwrap();
    fs::create_dir(temporary(nodes)).unwrap();
    let mut command = nodes.hail("unused", args);
    command
        .args(["demo", "--input"])
        .arg(input)
        .env("TMPDIR", temporary(nodes));
    command
}

fn temporary(nodes: &TestNodes) -> PathBuf {
    nodes.path("tmp")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// Whether this is one of the demonstration's processes, alive.
fn is_part(pid: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.windows(6).any(|part| part == b"--part")
}

/// Starts the demonstration and waits until it has killed its worker, with much left to do.
fn half_way(nodes: &TestNodes) -> Child {
    let mut command = demo(nodes, &[]);
    command.arg("--details");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("half-way: ")));
    child
}

#[test]
fn the_demonstration_verifies_every_answer_though_a_worker_is_killed() {
    let nodes = TestNodes::new();
    let ran = Ran::from(demo(&nodes, &["--json"]).output().unwrap()).ok();
    let summary = ran.json();
    let number = |name: &str| summary[name].as_u64().unwrap();
    let wanted = 3 * DOCUMENTS as u64;
    assert_eq!((number("documents"), number("wanted")), (60, wanted));
    assert_eq!(summary["skipped"]["not_text"], 1);
    assert_eq!(number("verified"), wanted);
    assert_eq!((number("wrong"), number("lost")), (0, 0));
    assert!(number("redispatched") > 0, "{summary:#}");
    assert_eq!(number("calls"), wanted + number("redispatched"));
    assert_eq!((number("workers"), number("agents")), (5, 50));
    assert_eq!(summary["rows"].as_array().unwrap().len(), 15);
    assert!(summary["killed"].as_str().unwrap().starts_with("worker-"));
    let processes = summary["processes"].as_array().unwrap();
    let in_a_network = 4 * usize::from(hailwire_lab::real::available().is_ok());
    assert_eq!(processes.len(), 10 + in_a_network);
    for process in processes {
        assert!(process["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(!is_part(&process["pid"].to_string()), "{process} is left");
    }
    assert!(is_empty(&temporary(&nodes)));
}

#[test]
fn the_scenes_show_two_homes_an_office_workers_a_cancel_a_stranger_and_a_proxy() {
    let nodes = TestNodes::new();
    if !crate::lab::possible() {
        return;
    }
    let page = nodes.path("demo.html");
    let ran = Ran::from(
        demo(&nodes, &["--no-color"])
            .arg("--html")
            .arg(&page)
            .output()
            .unwrap(),
    )
    .ok();
    let lines: Vec<&str> = ran.stdout.lines().take(6).collect();
    let expected = [
        "two homes behind NAT meet: ",
        "an office that lets no UDP out calls over TCP port 443: ",
        "50 agents on 5 workers give 180 right answers",
        "a call is cancelled, and the program at the other end has stopped",
        "a stranger, who knows key and address, is refused",
        "a proxy asks an agent in the other home: a harmless request passes",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with('✓') && line.contains(expected), "{ran:#?}");
    }
    assert!(ran.stdout.contains("hail join TICKET"), "{ran:#?}");
    assert_eq!(ran.stderr, "", "{ran:#?}");
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<li class=shown>").count(), 6, "{page}");
}

#[test]
fn what_this_machine_cannot_show_is_left_out_with_the_reason() {
    let nodes = TestNodes::new();
    let hail = demo(&nodes, &["--no-color"]);
    // Without `nsenter` and the lab's other programs.
    let mut command = Command::new("unshare");
    command.args(["--user", "--"]).arg(hail.get_program());
    command.args(hail.get_args());
    for (name, value) in hail.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran = Ran::from(command.output().unwrap()).ok();
    let first = ran.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("–         left out: two homes behind NAT"),
        "{ran:#?}"
    );
    assert!(first.contains("need root"), "{ran:#?}");
    assert!(
        ran.stdout.contains("a proxy asks an agent on another node"),
        "{ran:#?}"
    );
}

#[test]
fn an_interrupted_demonstration_leaves_no_process_and_no_folder() {
    let nodes = TestNodes::new();
    let mut child = half_way(&nodes);
    let locks = locks(&temporary(&nodes));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(is_empty(&temporary(&nodes)));
    free_soon(locks);
}

#[test]
fn the_processes_of_a_demonstration_that_is_killed_end_by_themselves() {
    let nodes = TestNodes::new();
    let mut child = half_way(&nodes);
    let locks = locks(&temporary(&nodes));
    child.kill().unwrap();
    child.wait().unwrap();
    free_soon(locks);
}

#[test]
fn a_folder_without_documents_is_refused() {
    let nodes = TestNodes::new();
    let empty = nodes.path("empty");
    fs::create_dir(&empty).unwrap();
    let ran = nodes.run("unused", &["demo", "--input", empty.to_str().unwrap()]);
    assert_eq!(ran.code, Some(73));
    assert!(ran.stderr.contains("there is no text file in"), "{ran:#?}");
    let ran = nodes.run("unused", &["demo", "--input", "/nonexistent"]);
    assert_eq!(ran.code, Some(69));
}

/// The lock that each process holds on its data folder while it lives.
fn locks(temporary: &Path) -> Vec<File> {
    let demo = fs::read_dir(temporary).unwrap().next().unwrap().unwrap();
    let parts = fs::read_dir(demo.path()).unwrap().map(|part| part.unwrap());
    let locks: Vec<File> = parts
        .filter(|part| part.path().is_dir())
        .map(|part| {
            let names = ["lock", "hub.lock"].map(|name| part.path().join(name));
            let name = names.iter().find(|name| name.exists()).unwrap();
            File::open(name).unwrap()
        })
        .collect();
    let in_a_network = 4 * usize::from(hailwire_lab::real::available().is_ok());
    assert_eq!(locks.len(), 8 + in_a_network);
    locks
}

/// Waits until every lock was let go.
fn free_soon(locks: Vec<File>) {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for lock in &locks {
            lock.lock().unwrap();
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(PATIENCE).unwrap();
}
