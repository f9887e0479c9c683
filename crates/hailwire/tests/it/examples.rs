//! The examples that need nothing but themselves are run to their end, and say what their documentation says.

use std::{path::PathBuf, process::Command};

fn run(name: &str) -> String {
    // Beside this binary's folder, where Cargo builds them for a test of the package.
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    let ran = Command::new(&path).output();
    let ran = ran.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{name}: {stderr}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn each_pattern_of_coordination_and_each_topology_does_what_it_says() {
    assert_eq!(
        run("coordination"),
        "north: yes\neast: yes\nsouth: yes\n2 agreed\n0 is ONE\n1 is TWO\n2 is THREE\n3 is FOUR\nHAIL!\nWIRE!\n"
    );
    assert_eq!(
        run("topologies"),
        "star: 36\nhierarchy: 36\nring: 36\nmesh: [36]\n"
    );
}

#[test]
fn every_other_example_that_needs_no_node_of_its_user_runs_to_its_end() {
    for (name, says) in [
        ("streamed_answer", "three -> THREE"),
        ("embedded_call", "word-count@laptop answers: 4"),
        ("deadline_and_cancel", "deadline_exceeded"),
        ("publish_subscribe", "build.web.done: tests pass"),
        ("tower_service", "at most 2 at once"),
    ] {
        let said = run(name);
        assert!(said.contains(says), "{name}: {said}");
    }
}
