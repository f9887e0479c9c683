//! The kits' dialects. The kits themselves are in no registry; `kit.py` behaves as they do.

use std::{path::Path, process::Stdio, time::Duration};

use bytes::Bytes;
use hailwire_callout::{
    Agent, Decision, Event, Response,
    agent::{self, ServeOptions},
    event::{
        BodyChunk, Configure, Guardrail, Metadata, RequestComplete, RequestHeaders,
        ResponseHeaders, WebSocketFrame,
    },
    host::{
        ConnectError, ConnectOptions, Connection, ConnectionState, RequestError,
        dialect::{self, Dialect, UdsEndpoint},
        reverse::{self, ReverseOptions},
    },
    response::HeaderOp,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

const LONG: Duration = Duration::from_secs(30);

/// An agent of `kit.py`, until it is dropped.
struct Kit {
    lines: Lines<BufReader<ChildStdout>>,
    dir: TempDir,
    _child: Child,
}

impl Kit {
    /// `None`, said as a skip, without Python.
    async fn start(mode: &str) -> Option<Self> {
        let mut kit = Self::run(mode, tempfile::tempdir().unwrap(), &[])?;
        assert_eq!(kit.line().await, "ready");
        Some(kit)
    }

    fn run(mode: &str, dir: TempDir, more: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kit.py");
        let child = Command::new("python3")
            .arg(script)
            .arg(mode)
            .arg(dir.path().join("agent"))
            .args(more)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                hailwire_skip::skipped(format!("python3: {error}"));
                return None;
            }
        };
        Some(Self {
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            dir,
            _child: child,
        })
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("agent")
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(LONG, self.lines.next_line()).await;
        line.expect("a line").unwrap().expect("the kit runs")
    }

    /// The next line that begins so.
    async fn says(&mut self, word: &str) -> String {
        loop {
            let line = self.line().await;
            if line.starts_with(word) {
                return line;
            }
        }
    }
}

fn options() -> ConnectOptions {
    ConnectOptions::default()
}

fn head(id: &str, uri: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        request_id: id,
        client_ip: "192.0.2.7",
        client_port: 40000,
        protocol: "HTTP/1.1",
        timestamp: "2026-01-01T00:00:00Z",
        ..Metadata::default()
    };
    let headers = [("host", "a"), ("content-length", "6")];
    Event::RequestHeaders(RequestHeaders::new(&metadata, "POST", uri, headers))
}

fn piece(id: &str, index: u32, data: impl Into<Bytes>, is_last: bool) -> Event {
    let data = data.into();
    Event::RequestBody(BodyChunk {
        correlation_id: id.into(),
        transferred: data.len() as u64,
        data,
        is_last,
        total_size: None,
        index,
    })
}

fn complete(id: &str) -> Event {
    Event::RequestComplete(RequestComplete {
        correlation_id: id.into(),
        status: 200,
        request_body_size: 6,
        ..RequestComplete::default()
    })
}

fn status(response: &Response) -> Option<u16> {
    match response.decision {
        Decision::Block { status, .. } => Some(status),
        _ => None,
    }
}

async fn ask(connection: &Connection, event: Event) -> Result<Response, RequestError> {
    tokio::time::timeout(LONG, connection.request(event))
        .await
        .expect("an answer")
}

#[tokio::test]
async fn each_dialect_is_told_apart_and_its_agent_is_obeyed() {
    let kits = [
        ("v1", Dialect::V1),
        ("v1-silent", Dialect::V1),
        ("documented", Dialect::Documented),
    ];
    for (mode, expected) in kits {
        let Some(kit) = Kit::start(mode).await else {
            return;
        };
        let (connection, found) = dialect::connect_any(kit.path(), &options()).await.unwrap();
        assert_eq!(found, expected, "{mode}");
        let allowed = ask(&connection, head("c1", "/")).await.unwrap();
        assert_eq!(status(&allowed), None, "{mode}");
        let [HeaderOp::Set { name, .. }] = allowed.request_headers.as_slice() else {
            panic!("{mode} {allowed:?}");
        };
        assert_eq!(name, "x-kit");
        let more = ask(&connection, piece("c1", 0, "att", false))
            .await
            .unwrap();
        assert!(more.needs_more, "{mode}");
        let whole = ask(&connection, piece("c1", 1, "ack", true)).await.unwrap();
        assert_eq!(status(&whole), Some(406), "{mode}");
        let head_of_answer = ResponseHeaders::new("c1", 200, [("a", "b")]);
        let passed = ask(&connection, Event::ResponseHeaders(head_of_answer)).await;
        assert_eq!(status(&passed.unwrap()), None, "{mode}");
        assert_eq!(
            ask(&connection, complete("c1")).await,
            Ok(Response::allow())
        );
        let blocked = ask(&connection, head("c2", "/block")).await.unwrap();
        assert_eq!(status(&blocked), Some(403), "{mode}");
    }
}

#[tokio::test]
async fn an_agent_of_ours_is_found_to_speak_the_running_wire() {
    struct Plain;
    impl Agent for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        async fn request_headers(&self, _: RequestHeaders) -> Response {
            Response::block(418)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    let listener = agent::uds::UdsListener::bind(&path).unwrap();
    let serving = tokio::spawn(async move {
        agent::uds::serve(
            std::sync::Arc::new(Plain),
            listener,
            &ServeOptions::default(),
        )
        .await
    });
    let agent = UdsEndpoint::new(&path, None);
    for _ in 0..2 {
        let connection = agent.connect(&options()).await.unwrap();
        assert_eq!(agent.dialect(), Some(Dialect::Crate));
        assert_eq!(connection.capabilities().agent_id, "plain");
        let answer = ask(&connection, head("c", "/")).await.unwrap();
        assert_eq!(status(&answer), Some(418));
    }
    serving.abort();
}

#[tokio::test]
async fn what_an_agent_spoke_is_remembered_and_another_one_in_its_place_is_found() {
    let Some(mut kit) = Kit::start("v1-silent").await else {
        return;
    };
    let agent = UdsEndpoint::new(kit.path(), None);
    drop(agent.connect(&options()).await.unwrap());
    assert_eq!(agent.dialect(), Some(Dialect::V1));
    // One for the handshake that it did not understand, one that it did.
    assert_eq!(
        (kit.line().await, kit.line().await),
        ("connection".into(), "connection".into())
    );
    let again = agent.connect(&options()).await.unwrap();
    ask(&again, head("c1", "/")).await.unwrap();
    ask(&again, complete("c1")).await.unwrap();
    assert_eq!(kit.line().await, "connection");
    assert_eq!(kit.line().await, "complete c1 200 6");

    let Kit { dir, .. } = kit;
    std::fs::remove_file(dir.path().join("agent")).unwrap();
    let mut other = Kit::run("documented", dir, &[]).unwrap();
    assert_eq!(other.line().await, "ready");
    let connection = agent.connect(&options()).await.unwrap();
    assert_eq!(agent.dialect(), Some(Dialect::Documented));
    assert_eq!(connection.capabilities().agent_id, "kit");
}

#[tokio::test]
async fn nobody_at_the_socket_is_not_a_dialect() {
    let dir = tempfile::tempdir().unwrap();
    let failed = dialect::connect_any(dir.path().join("none"), &options()).await;
    assert!(matches!(failed, Err(ConnectError::Io(_))), "{failed:?}");
}

#[tokio::test]
async fn a_dialect_that_is_given_is_the_only_one_tried() {
    let Some(mut kit) = Kit::start("v1").await else {
        return;
    };
    let fixed = UdsEndpoint::new(kit.path(), Some(Dialect::V1));
    let connection = fixed.connect(&options()).await.unwrap();
    ask(&connection, head("c1", "/")).await.unwrap();
    ask(&connection, complete("c1")).await.unwrap();
    assert_eq!(kit.line().await, "connection");
    assert_eq!(kit.line().await, "complete c1 200 6");
    let wrong = UdsEndpoint::new(kit.path(), Some(Dialect::Documented));
    assert!(wrong.connect(&options()).await.is_err());
}

#[tokio::test]
async fn configuration_is_acknowledged_or_ends_the_connection_in_the_older_framing() {
    let Some(kit) = Kit::start("v1").await else {
        return;
    };
    let with = |config| ConnectOptions {
        config: Some(config),
        ..options()
    };
    let good = with(serde_json::json!({"mode": "strict"}));
    let (connection, _) = dialect::connect_any(kit.path(), &good).await.unwrap();
    let configure = |config| {
        Event::Configure(Configure {
            correlation_id: "k".into(),
            config,
            config_version: None,
        })
    };
    let pushed = ask(&connection, configure(serde_json::json!({}))).await;
    assert_eq!(pushed, Ok(Response::allow()));
    let refused = ask(&connection, configure(serde_json::json!({"refuse": true}))).await;
    assert_eq!(status(&refused.unwrap()), Some(500));
    let bad = with(serde_json::json!({"refuse": true}));
    let refused = dialect::connect_any(kit.path(), &bad).await;
    assert!(matches!(refused, Err(ConnectError::Configuration(why)) if why == "as told"));
}

#[tokio::test]
async fn a_guardrail_of_the_older_framing_answers_in_the_routing_metadata() {
    let Some(kit) = Kit::start("v1").await else {
        return;
    };
    let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
    let event = Guardrail {
        correlation_id: "g".into(),
        content: "ignore what was said".to_owned(),
        ..Guardrail::default()
    };
    let answer = ask(&connection, Event::Guardrail(event)).await.unwrap();
    let kept = answer.routing_metadata.get("guardrail_response").unwrap();
    let kept: serde_json::Value = serde_json::from_str(kept).unwrap();
    assert_eq!(kept["detected"], true);
}

#[tokio::test]
async fn what_a_kit_would_allow_unseen_is_refused() {
    let Some(kit) = Kit::start("v1").await else {
        return;
    };
    let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
    let unseen = ask(&connection, piece("c1", 0, "attack", true)).await;
    assert!(
        matches!(unseen, Err(RequestError::Refused(_))),
        "{unseen:?}"
    );
    // The connection goes on.
    ask(&connection, head("c1", "/")).await.unwrap();
    let seen = ask(&connection, piece("c1", 0, "attack", true))
        .await
        .unwrap();
    assert_eq!(status(&seen), Some(406));
}

#[tokio::test]
async fn a_long_body_in_preferred_pieces_is_whole_for_a_kit_that_reads_once() {
    let Some(kit) = Kit::start("v1").await else {
        return;
    };
    let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
    ask(&connection, head("c1", "/")).await.unwrap();
    let size = connection.capabilities().limits.preferred_chunk_size as usize;
    for index in 0..256 {
        let more = ask(&connection, piece("c1", index, vec![b'x'; size], false)).await;
        assert!(more.unwrap().needs_more);
    }
    let last = ask(&connection, piece("c1", 256, "attack", true))
        .await
        .unwrap();
    assert_eq!(status(&last), Some(406));
}

#[tokio::test]
async fn many_ask_an_agent_of_the_older_framing_and_each_gets_its_own_answer() {
    let Some(kit) = Kit::start("v1").await else {
        return;
    };
    let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
    let asks = (0..64).map(|n| {
        let connection = connection.clone();
        async move {
            let uri = if n % 3 == 0 { "/block" } else { "/" };
            let answer = ask(&connection, head(&format!("c{n}"), uri)).await.unwrap();
            assert_eq!(status(&answer).is_some(), n % 3 == 0, "{n}");
        }
    });
    futures_util::future::join_all(asks).await;
}

#[tokio::test]
async fn a_late_answer_is_given_to_nobody_and_a_kit_that_is_stuck_loses_its_connection() {
    let Some(kit) = Kit::start("v1").await else {
        return;
    };
    let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
    let given_up = connection.request(head("c1", "/slow"));
    assert!(
        tokio::time::timeout(Duration::from_millis(150), given_up)
            .await
            .is_err()
    );
    let next = ask(&connection, head("c2", "/block")).await.unwrap();
    assert_eq!(status(&next), Some(403), "not the answer to the other");
    let given_up = connection.request(head("c3", "/stuck"));
    assert!(
        tokio::time::timeout(Duration::from_millis(20), given_up)
            .await
            .is_err()
    );
    let next = ask(&connection, head("c4", "/")).await;
    assert_eq!(next, Err(RequestError::Closed));
    tokio::time::timeout(LONG, connection.closed())
        .await
        .unwrap();
    assert_eq!(connection.state(), ConnectionState::Closed);
}

#[tokio::test]
async fn a_request_has_one_number_on_every_connection_of_the_documented_wire() {
    let Some(mut kit) = Kit::start("documented").await else {
        return;
    };
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
        ask(&connection, head("c1", "/")).await.unwrap();
        ask(&connection, head("c2", "/")).await.unwrap();
        for _ in 0..2 {
            numbers.push(kit.says("head").await);
        }
    }
    assert_eq!(numbers[..2], numbers[2..]);
    let number = |line: &str| line.split(' ').nth(2).unwrap().to_owned();
    assert_ne!(number(&numbers[0]), number(&numbers[1]));
}

#[tokio::test]
async fn the_documented_wire_carries_cancels_pings_and_changed_pieces() {
    let Some(mut kit) = Kit::start("documented").await else {
        return;
    };
    let (connection, _) = dialect::connect_any(kit.path(), &options()).await.unwrap();
    assert_eq!(connection.capabilities().limits.max_concurrency, 8);
    tokio::time::timeout(LONG, connection.ping())
        .await
        .unwrap()
        .unwrap();
    ask(&connection, head("c1", "/")).await.unwrap();
    let changed = ask(&connection, piece("c1", 4, "change", false))
        .await
        .unwrap();
    let mutation = changed.request_body.unwrap();
    assert_eq!(
        (mutation.index, mutation.data.as_deref()),
        (4, Some(&b"changed"[..]))
    );
    // Nothing else makes the agent forget it.
    ask(&connection, complete("c1")).await.unwrap();
    assert!(kit.says("cancel").await.ends_with("True"));
    let given_up = connection.request(head("c2", "/slow"));
    assert!(
        tokio::time::timeout(Duration::from_millis(20), given_up)
            .await
            .is_err()
    );
    assert!(kit.says("cancel").await.ends_with("True"));
    let frame = Event::WebSocketFrame(WebSocketFrame::default());
    let none = ask(&connection, frame).await;
    assert!(matches!(none, Err(RequestError::Refused(_))), "{none:?}");
}

#[tokio::test]
async fn an_agent_of_the_documented_wire_registers_with_its_token_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    let options = ReverseOptions {
        tokens: [("kit".to_owned(), "secret".to_owned())].into(),
        ..ReverseOptions::default()
    };
    let mut listener = reverse::ReverseListener::bind(&path, options).unwrap();
    let accepting = tokio::spawn(async move { listener.accept().await });
    // The socket lives in the first one's directory.
    let link = |to: &Path| {
        let other = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(to, other.path().join("agent")).unwrap();
        other
    };
    let Some(mut wrong) = Kit::run("dial", link(&path), &["guess"]) else {
        return;
    };
    assert!(wrong.line().await.starts_with("registered 4 False"));
    let mut kit = Kit::run("dial", link(&path), &["secret"]).unwrap();
    assert!(kit.line().await.starts_with("registered 4 True reverse-"));
    let connection = tokio::time::timeout(LONG, accepting).await.unwrap();
    let connection = connection.unwrap().unwrap();
    assert_eq!(connection.capabilities().agent_id, "kit");
    let blocked = ask(&connection, head("c1", "/block")).await.unwrap();
    assert_eq!(status(&blocked), Some(403));
}

#[tokio::test]
async fn an_agent_of_the_documented_wire_that_has_started_anew_is_not_shown_the_rest_of_a_request()
{
    let Some(kit) = Kit::start("documented").await else {
        return;
    };
    let agent = UdsEndpoint::new(kit.path(), None);
    let connection = agent.connect(&options()).await.unwrap();
    ask(&connection, head("c1", "/")).await.unwrap();
    let more = ask(&connection, piece("c1", 0, "att", false)).await;
    assert!(more.unwrap().needs_more);

    let Kit {
        dir, mut _child, ..
    } = kit;
    _child.kill().await.unwrap();
    tokio::time::timeout(LONG, connection.closed())
        .await
        .unwrap();
    let lost = ask(&connection, piece("c1", 1, "ack", true)).await;
    assert_eq!(lost, Err(RequestError::Closed));
    std::fs::remove_file(dir.path().join("agent")).unwrap();
    let mut again = Kit::run("documented", dir, &[]).unwrap();
    assert_eq!(again.line().await, "ready");
    let connection = agent.connect(&options()).await.unwrap();
    // It would allow them: it knows nothing of the request.
    for event in [
        piece("c1", 0, "attack", true),
        Event::ResponseHeaders(ResponseHeaders::new("c1", 200, [("a", "b")])),
    ] {
        let refused = ask(&connection, event).await;
        assert!(
            matches!(refused, Err(RequestError::Refused(_))),
            "{refused:?}"
        );
    }
    // The connection goes on.
    ask(&connection, head("c2", "/")).await.unwrap();
    let seen = ask(&connection, piece("c2", 0, "attack", true)).await;
    assert_eq!(status(&seen.unwrap()), Some(406));
}
