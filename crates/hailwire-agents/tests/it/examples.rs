//! The examples of agents, each started as its reader would and asked by our host, and by the foreign crate's client.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use hailwire_callout::{
    Decision, Event, EventKind,
    event::{BodyChunk, Metadata, RequestHeaders},
    host::{ConnectOptions, Connection, uds},
    response::HeaderOp,
};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent and waits for its word that it listens; `None` where there is no such program.
fn start(command: &mut Command) -> Option<Running> {
    let program = PathBuf::from(command.get_program());
    let mut running = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => Running(child),
        Err(error) => {
            hailwire_skip::skipped(format!("{}: {error}", program.display()));
            return None;
        }
    };
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line.trim(), "ready", "{}", program.display());
    Some(running)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of built programs: the tests' is `debug/deps`.
fn target() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

fn head(id: &str, uri: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        request_id: id,
        client_ip: "192.0.2.1",
        protocol: "HTTP/1.1",
        timestamp: "2026-11-21T00:00:00Z",
        ..Metadata::default()
    };
    Event::RequestHeaders(RequestHeaders::new(
        &metadata,
        "GET",
        uri,
        [("host", "example.com")],
    ))
}

fn piece(id: &str, data: &'static [u8], index: u32, is_last: bool) -> Event {
    let data = Bytes::from_static(data);
    let correlation_id = id.into();
    Event::RequestBody(BodyChunk {
        correlation_id,
        data,
        is_last,
        total_size: None,
        index,
        transferred: 0,
    })
}

async fn status(host: &Connection, event: Event) -> u16 {
    let answer = tokio::time::timeout(Duration::from_secs(20), host.request(event)).await;
    match answer.expect("an answer in time").unwrap().decision {
        Decision::Allow => 200,
        Decision::Block { status, .. } => status,
        other => panic!("{other:?}"),
    }
}

/// What all three examples do.
async fn decides(path: &Path) {
    let host = uds::connect(path, &ConnectOptions::default())
        .await
        .unwrap();
    assert_eq!(host.capabilities().agent_id, "no-secrets");
    let wanted: Vec<EventKind> = host.capabilities().events.iter().collect();
    assert_eq!(wanted, [EventKind::RequestHeaders, EventKind::RequestBody]);
    host.ping().await.unwrap();

    assert_eq!(status(&host, head("1", "/admin/users")).await, 403);
    let answer = host.request(head("2", "/")).await.unwrap();
    let set = HeaderOp::Set {
        name: "x-checked-by".into(),
        value: "no-secrets".into(),
    };
    assert_eq!(
        (answer.decision, answer.request_headers),
        (Decision::Allow, vec![set])
    );
    assert_eq!(status(&host, piece("2", b"harmless", 0, false)).await, 200);
    assert_eq!(
        status(&host, piece("2", b"-----BEGIN PRIVATE KEY-----", 1, true)).await,
        422
    );

    let ids: Vec<String> = (0..200).map(|n| format!("many-{n}")).collect();
    let asked = ids.iter().enumerate().map(|(n, id)| {
        let uri = if n % 2 == 0 { "/admin" } else { "/" };
        status(&host, head(id, uri))
    });
    let answers = futures_util::future::join_all(asked).await;
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer, if n % 2 == 0 { 403 } else { 200 });
    }
    host.close();
}

/// The foreign crate's client asks the same agent.
fn foreign_client_understands(path: &Path) {
    let named = std::env::var_os("HAILWIRE_ZENTINEL_PEER").map(PathBuf::from);
    let peer = named.unwrap_or_else(|| target().parent().unwrap().join("peers/bin/zentinel-peer"));
    if !peer.is_file() {
        hailwire_skip::skipped("the foreign program is not built: peers/zentinel/build");
        return;
    }
    let drive = Command::new(peer)
        .arg("drive")
        .arg("--uds")
        .arg(path)
        .args(["--uri", "/admin"])
        .output()
        .unwrap();
    let said = String::from_utf8(drive.stdout).unwrap();
    let lines: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["capabilities"]["agent_id"], "no-secrets", "{said}");
    let line = lines
        .iter()
        .find(|line| line["sent"] == "request_headers")
        .expect(&said);
    let text = line.to_string();
    assert!(text.contains("403"), "{text}");
}

#[tokio::test]
async fn the_example_in_rust_decides() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listen = format!("unix:{}", path.display());
    let program = target().join("examples/no_secrets");
    let Some(_running) = start(Command::new(program).arg(listen)) else {
        return;
    };
    decides(&path).await;
    foreign_client_understands(&path);
}

#[tokio::test]
async fn the_example_in_python_decides() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let mut python = Command::new("python3");
    python
        .arg(repository().join("examples/python/callout_agent.py"))
        .arg(&path)
        .env("PYTHONPATH", repository().join("sdk/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let Some(_running) = start(&mut python) else {
        return;
    };
    decides(&path).await;
    foreign_client_understands(&path);
}

#[tokio::test]
async fn the_example_for_node_decides() {
    let sdk = repository().join("sdk/typescript").canonicalize().unwrap();
    if !sdk.join("dist/esm/callout/index.js").is_file() {
        hailwire_skip::skipped(
            "the TypeScript SDK is not built: npm ci && npm run build in sdk/typescript",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    // Where a program of a user would have both.
    let script = dir.path().join("callout-agent.mjs");
    let modules = dir.path().join("node_modules");
    fs::copy(
        repository().join("examples/typescript/callout-agent.mjs"),
        &script,
    )
    .unwrap();
    fs::create_dir(&modules).unwrap();
    symlink(sdk, modules.join("hailwire")).unwrap();
    let Some(_running) = start(Command::new("node").arg(script).arg(&path)) else {
        return;
    };
    decides(&path).await;
    foreign_client_understands(&path);
}
