//! A change of trust is on the disk before it is acknowledged: seen in the system calls of a process.

use std::{io::Write as _, process::Command};

use hailwire::{NodeId, admin, admin::method};

use crate::test_node::{TestNode, call, serve_echo};

/// Set in the process that is watched.
const WATCHED: &str = "HAIL_TEST_SYNCED";

/// What the watched process writes after each change that was acknowledged.
const MARK: &str = "acknowledged:";

/// In one write, so that the watcher sees it whole.
fn mark(what: &str) {
    let line = format!("{MARK} {what}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Does the changes, in the watched process.
#[tokio::test]
async fn changes_for_the_watcher() {
    if std::env::var_os(WATCHED).is_none() {
        return;
    }
    let (host, other) = (TestNode::named("alice").await, TestNode::named("bob").await);
    let client = host.client();
    let add = admin::TrustAdd {
        id: NodeId::from_bytes([7; 32]),
        alias: "z".into(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: Vec::new(),
    };
    mark("start");
    let _: admin::TrustedPeer = client.admin(method::TRUST_ADD, &add).await.unwrap();
    mark("trust");
    let who = admin::PeerSelector { who: "z".into() };
    let () = client.admin(method::TRUST_REMOVE, &who).await.unwrap();
    mark("removal");
    let ticket = host.invite(1, &[]).await;
    mark("invitation");
    other.join(&ticket).await.unwrap();
    mark("join");
    // What need not last waits for no disk.
    let _echo = serve_echo(&other.client(), "echo").await;
    call(&client, "echo@bob", "x").await.unwrap();
    mark("call");
}

#[test]
fn trust_removals_and_invitations_are_synced_before_they_are_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let watched = Command::new("strace")
        .args([
            "-f",
            "-y",
            "-s",
            "64",
            "-e",
            "trace=fsync,fdatasync,write",
            "-o",
        ])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "synced::changes_for_the_watcher", "--nocapture"])
        .env(WATCHED, "1")
        .output();
    let Ok(watched) = watched else {
        hailwire_skip::skipped("strace is not installed");
        return;
    };
    if !watched.status.success() && String::from_utf8_lossy(&watched.stderr).contains("ptrace") {
        hailwire_skip::skipped("strace may not watch here");
        return;
    }
    assert!(watched.status.success(), "{watched:?}");
    let trace = std::fs::read_to_string(trace).unwrap();
    let mut syncs = 0;
    let mut seen = Vec::new();
    for line in trace.lines() {
        // One that another thread interrupts is begun on one line and ended on another.
        let begun = line.contains("sync(") && line.contains("node.db-wal");
        syncs += usize::from(begun);
        if let Some((_, mark)) = line.split_once(MARK) {
            let name: String = mark
                .trim()
                .chars()
                .take_while(char::is_ascii_lowercase)
                .collect();
            seen.push((name, std::mem::take(&mut syncs)));
        }
    }
    let names: Vec<&str> = seen.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["start", "trust", "removal", "invitation", "join", "call"];
    assert_eq!(names, expected, "{trace}");
    for (name, syncs) in &seen[1..] {
        match name.as_str() {
            "call" => assert_eq!(*syncs, 0, "a call waits for the disk"),
            // The use of the ticket and the joiner here, and the inviter there.
            "join" => assert_eq!(*syncs, 3, "{name}"),
            _ => assert_eq!(*syncs, 1, "{name}"),
        }
    }
}

#[tokio::test]
async fn the_database_is_readable_by_its_user_alone_also_one_of_before() {
    use std::os::unix::fs::PermissionsExt as _;

    let host = TestNode::named("alice").await;
    let files = ["node.db", "node.db-wal", "node.db-shm", "lock"];
    let modes = |host: &TestNode| {
        let mode = |name: &str| {
            let meta = std::fs::metadata(host.dir.path().join(name)).unwrap();
            meta.permissions().mode() & 0o777
        };
        files.map(mode)
    };
    assert_eq!(modes(&host), [0o600; 4]);
    // As an earlier version left them, with a killed node's log beside.
    host.node.shutdown(std::time::Duration::ZERO).await;
    for name in files {
        let path = host.dir.path().join(name);
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    let node = crate::test_node::start(host.dir.path(), "alice")
        .await
        .unwrap();
    let dir = host.dir;
    assert_eq!(modes(&TestNode { node, dir })[..3], [0o600; 3]);
}
