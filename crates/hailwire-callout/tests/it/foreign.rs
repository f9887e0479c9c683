//! Against the published crate, as agent and as proxy. Skipped where its program cannot be built.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use hailwire_callout::{
    Event, Response,
    agent::{
        ServeOptions,
        reverse::{DialOptions, dial},
    },
    event::{RequestComplete, ResponseHeaders},
    host::{self, ConnectOptions},
    wire::Encoding,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::support::{LONG, Served, Told, blocks, head, piece};

/// The program on the crate; `None`, said as a skip, where there is none.
async fn peer() -> Option<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/zentinel/build");
    let built = Command::new(build).output().await;
    match built {
        Ok(built) if built.status.success() => {
            let path = String::from_utf8(built.stdout).unwrap();
            Some(PathBuf::from(path.trim()))
        }
        Ok(built) => {
            hailwire_skip::skipped(String::from_utf8_lossy(&built.stderr));
            None
        }
        Err(error) => {
            hailwire_skip::skipped(error);
            None
        }
    }
}

struct Peer {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Peer {
    fn start(program: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            lines,
            _child: child,
        }
    }

    async fn line(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(LONG, self.lines.next_line()).await;
        let line = line.expect("a line").unwrap()?;
        Some(serde_json::from_str(&line).unwrap())
    }

    /// What it sent and was answered, until it ends.
    async fn told(&mut self) -> Vec<(String, Value)> {
        let mut told = Vec::new();
        while let Some(line) = self.line().await {
            if let Some(sent) = line["sent"].as_str() {
                assert!(line["error"].is_null(), "{line}");
                told.push((sent.to_owned(), line["answer"].clone()));
            }
        }
        told
    }
}

#[tokio::test]
async fn their_agent_answers_ours_in_both_encodings() {
    let Some(program) = peer().await else {
        return;
    };
    for json_only in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let mut args = vec!["serve", "--uds", path.to_str().unwrap()];
        if json_only {
            args.push("--json-only");
        }
        let mut agent = Peer::start(&program, &args);
        assert!(!agent.line().await.unwrap()["ready"].is_null());
        let encodings = [Encoding::MessagePack, Encoding::Json];
        for offered in [&encodings[..], &encodings[1..]] {
            let options = ConnectOptions {
                encodings: offered.to_vec(),
                config: Some(serde_json::json!({"mode": "strict"})),
                ..ConnectOptions::default()
            };
            let connection = host::uds::connect(&path, &options).await.unwrap();
            assert_eq!(connection.capabilities().agent_id, "peer");
            let ask = |event| connection.request(event);
            assert_eq!(ask(head("c1", "/")).await, Ok(Response::allow()));
            assert!(blocks(&ask(head("c2", "/block")).await.unwrap(), 403));
            // Changed while it streams, each piece answered before the next leaves.
            assert_eq!(ask(head("c3", "/mutate")).await, Ok(Response::allow()));
            let pieces = ["one ", "two ", "three"];
            let asks = (0..)
                .zip(pieces)
                .map(|(index, data)| ask(Event::RequestBody(piece("c3", index, data, index == 2))));
            let mut passed = Vec::new();
            for answer in futures_util::future::join_all(asks).await {
                passed.extend(answer.unwrap().request_body.unwrap().data.unwrap());
            }
            assert_eq!(passed, b"ONE TWO THREE");
            let answer = ask(Event::ResponseHeaders(ResponseHeaders::new("c3", 200, [])));
            assert_eq!(answer.await.unwrap().response_headers.len(), 1);
            let complete = RequestComplete {
                correlation_id: "c3".into(),
                ..RequestComplete::default()
            };
            ask(Event::RequestComplete(complete)).await.unwrap();
            connection.ping().await.unwrap();
        }
    }
}

#[tokio::test]
async fn our_agent_answers_their_proxy_in_both_encodings() {
    let Some(program) = peer().await else {
        return;
    };
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    let path = served.path().to_str().unwrap();
    for encoding in ["json", "msgpack"] {
        let args = [
            "drive",
            "--uds",
            path,
            "--encoding",
            encoding,
            "--uri",
            "/block",
        ];
        let mut proxy = Peer::start(&program, &args);
        let told = proxy.told().await;
        let answered = |kind: &str| {
            let found = told.iter().find(|(sent, _)| sent == kind);
            found
                .unwrap_or_else(|| panic!("{kind}: {told:?}"))
                .1
                .clone()
        };
        assert_eq!(
            answered("request_headers")["decision"]["block"]["status"],
            403
        );
        assert_eq!(
            answered("response_headers")["decision"]["block"]["status"],
            200
        );
        assert_eq!(
            answered("response_body_chunk")["response_body_mutation"]["data"],
            ""
        );
        assert_eq!(answered("websocket_frame")["websocket_decision"], "drop");
        for kind in ["configure", "request_body_chunk", "request_complete"] {
            assert_eq!(answered(kind)["decision"], "allow", "{kind}");
        }
        assert!(!answered("guardrail_inspect").is_null());
        for kind in ["ping", "cancel"] {
            assert!(told.iter().any(|(sent, _)| sent == kind), "{kind}");
        }
    }
}

#[tokio::test]
async fn our_agent_registers_with_their_proxy() {
    let Some(program) = peer().await else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("proxy");
    let socket = path.to_str().unwrap();
    let args = [
        "listen-reverse",
        "--uds",
        socket,
        "--token",
        "secret",
        "--uri",
        "/block",
    ];
    let mut proxy = Peer::start(&program, &args);
    assert!(!proxy.line().await.unwrap()["ready"].is_null());
    let (told, _seen) = Told::new();
    let options = DialOptions {
        token: Some("secret".to_owned()),
        ..DialOptions::default()
    };
    let dialling = tokio::spawn(async move { dial(Arc::new(told), path, &options).await });
    let told = proxy.told().await;
    let kinds: Vec<&str> = told.iter().map(|(sent, _)| sent.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "request_headers",
            "request_body_chunk",
            "response_headers",
            "response_body_chunk"
        ]
    );
    assert_eq!(told[0].1["decision"]["block"]["status"], 403);
    assert_eq!(told[3].1["response_body_mutation"]["data"], "");
    dialling.abort();
}
