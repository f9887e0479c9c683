//! Envoy.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hailwire_callout::{
    EventKind,
    front::{FrontListener, ext_proc::ExtProcServer},
    inspect::{FallbackAction, Inspector, config::ListenAddress},
};
use tokio::task::JoinSet;

use crate::{
    agent::Agent,
    system::{self, Client, Running, ask, example, get, post, program, streamed},
};

const ALL: &[EventKind] = &[
    EventKind::RequestHeaders,
    EventKind::RequestBody,
    EventKind::ResponseHeaders,
    EventKind::ResponseBody,
    EventKind::RequestComplete,
];

/// Envoy between a client and a server, with a front.
struct Envoy {
    at: SocketAddr,
    front: JoinSet<()>,
    _running: Running,
    _server: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Envoy {
    /// `None` where there is no Envoy.
    async fn start(inspector: Arc<Inspector>, mode: &str) -> Option<Self> {
        Self::with(inspector, mode, |config| config).await
    }

    async fn with(
        inspector: Arc<Inspector>,
        mode: &str,
        change: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        Self::at(inspector, mode, change, system::tcp()).await
    }

    /// With its front at an address.
    async fn at(
        inspector: Arc<Inspector>,
        mode: &str,
        change: impl FnOnce(String) -> String,
        front: ListenAddress,
    ) -> Option<Self> {
        let installed = "target/peers/envoy-1.40.0/bin/envoy";
        let Some(envoy) = program("HAILWIRE_ENVOY", &[installed]) else {
            hailwire_skip::skipped("Envoy is not installed (peers/install envoy)");
            return None;
        };
        let (server, server_tasks) = system::server().await;
        let listener = FrontListener::bind(&front).await.unwrap();
        let front = match listener.local_address().unwrap() {
            ListenAddress::Tcp(at) => {
                let port = at.port();
                format!("socket_address: {{ address: 127.0.0.1, port_value: {port} }}")
            }
            ListenAddress::Unix(path) => format!("pipe: {{ path: {} }}", path.display()),
        };
        let mut tasks = JoinSet::new();
        let serve = ExtProcServer::new(inspector, FallbackAction::Block(413));
        tasks.spawn(async move {
            let _ = serve.serve_at(listener, std::future::pending()).await;
        });
        let folder = tempfile::tempdir().unwrap();
        let (config, admin) = (
            folder.path().join("envoy.yaml"),
            folder.path().join("admin"),
        );
        let port = |n: u16| format!("port_value: {n}");
        let trailers = match mode {
            "FULL_DUPLEX_STREAMED" => "SEND",
            _ => "SKIP",
        };
        let changes = [
            (
                "0.0.0.0, port_value: 10000",
                format!("127.0.0.1, {}", port(0)),
            ),
            ("port_value: 8080", port(server.port())),
            (
                "socket_address: { address: 127.0.0.1, port_value: 9470 }",
                front,
            ),
            ("port_value: 9901", port(0)),
            (
                "body_mode: FULL_DUPLEX_STREAMED",
                format!("body_mode: {mode}"),
            ),
            ("trailer_mode: SEND", format!("trailer_mode: {trailers}")),
        ];
        std::fs::write(&config, change(example("envoy.yaml", &changes))).unwrap();
        let args = [
            "-c".as_ref(),
            config.as_os_str(),
            "--admin-address-path".as_ref(),
            admin.as_os_str(),
            "--disable-hot-restart".as_ref(),
            "--concurrency".as_ref(),
            "1".as_ref(),
            "-l".as_ref(),
            "warning".as_ref(),
        ];
        let mut running = Running::start(&envoy, &args, folder.path().join("log"));
        let admin: SocketAddr = running
            .once(async || std::fs::read_to_string(&admin).ok()?.trim().parse().ok())
            .await;
        let at = running.once(async || listening(admin).await).await;
        Some(Self {
            at,
            front: tasks,
            _running: running,
            _server: server_tasks,
            _folder: folder,
        })
    }
}

/// Where Envoy listens: `www::127.0.0.1:41234` in the list of its listeners.
async fn listening(admin: SocketAddr) -> Option<SocketAddr> {
    let got = Client::connect(admin)
        .await?
        .send(get("/listeners"))
        .await?;
    let line = got
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("www::"))?;
    line.parse().ok().filter(|at: &SocketAddr| at.port() != 0)
}

#[tokio::test]
async fn what_is_benign_passes_with_the_headers_that_agents_set_and_without_those_they_remove() {
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), "FULL_DUPLEX_STREAMED").await else {
        return;
    };
    let got = ask(envoy.at, get("/fine?a=1")).await;
    assert_eq!((got.status, got.text()), (200, ""));
    assert_eq!(got.header("saw-x-waf-score"), Some("7"));
    assert_eq!(got.header("saw-x-secret"), None);
    assert_eq!(got.header("x-waf"), Some("response"));
    agent.until(|seen| seen.complete == [200]).await;
    let seen = agent.seen.lock().unwrap();
    assert_eq!(seen.uris, ["/fine?a=1"]);
    assert_eq!(seen.clients, ["127.0.0.1"]);
    assert_eq!(seen.cancelled, 0);
}

#[tokio::test]
async fn the_front_may_be_at_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let front = ListenAddress::Unix(folder.path().join("front"));
    let agent = Agent::new(ALL);
    let envoy = Envoy::at(agent.inspector(), "STREAMED", |config| config, front);
    let Some(envoy) = envoy.await else {
        return;
    };
    assert_eq!(ask(envoy.at, get("/fine")).await.status, 200);
    assert_eq!(ask(envoy.at, get("/block")).await.status, 406);
    assert_eq!(agent.seen.lock().unwrap().uris, ["/fine", "/block"]);
}

#[tokio::test]
async fn each_decision_reaches_the_client_as_what_it_is() {
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), "STREAMED").await else {
        return;
    };
    let got = ask(envoy.at, get("/block")).await;
    assert_eq!((got.status, got.text()), (406, "not like this"));
    assert_eq!(got.header("retry-after"), Some("9"));
    let got = ask(envoy.at, get("/redirect")).await;
    assert_eq!(got.status, 307);
    assert_eq!(got.header("location"), Some("https://login.example/?a=1"));
    let got = ask(envoy.at, get("/challenge")).await;
    assert_eq!(
        (got.status, got.header("x-challenge")),
        (403, Some("captcha"))
    );
    let got = ask(envoy.at, get("/login")).await;
    assert_eq!(got.status, 401);
    assert_eq!(
        got.header("www-authenticate"),
        Some("Basic realm=\"house\"")
    );
    let got = ask(envoy.at, get("/leak")).await;
    assert_eq!((got.status, got.text()), (502, "a leak"));
}

/// Ten megabytes go through and come back, inspected in pieces both ways; then an attack in a body, and a body that
/// is changed both ways.
async fn bodies(mode: &str, size: usize) {
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), mode).await else {
        return;
    };
    let body = Bytes::from(vec![b'b'; size]);
    let got = ask(envoy.at, post("/large", body.clone())).await;
    assert_eq!(got.status, 200, "{mode}");
    assert!(
        got.body == body,
        "{mode}: {} bytes came back",
        got.body.len()
    );
    {
        let seen = agent.seen.lock().unwrap();
        assert_eq!(seen.body, size, "{mode}");
        assert!(
            seen.largest <= 1 << 20 && seen.pieces >= size >> 20,
            "{mode}"
        );
    }
    let pieces = vec![Bytes::from_static(b"some "), Bytes::from_static(b"attack")];
    let got = ask(envoy.at, streamed("/attack", pieces)).await;
    assert_eq!(got.status, 429, "{mode}");
    let got = ask(envoy.at, post("/mutate", "lower")).await;
    assert_eq!((got.status, got.text()), (200, "LOWER"), "{mode}");
    let got = ask(envoy.at, get("/secret")).await;
    assert_eq!(got.text(), "the ******** is known", "{mode}");
}

#[tokio::test]
async fn ten_megabytes_pass_in_pieces_where_both_directions_stream() {
    bodies("FULL_DUPLEX_STREAMED", 10 << 20).await;
}

#[tokio::test]
async fn ten_megabytes_pass_in_pieces_where_bodies_stream() {
    bodies("STREAMED", 10 << 20).await;
}

#[tokio::test]
async fn bodies_pass_whole_where_they_are_buffered() {
    bodies("BUFFERED", 500 << 10).await;
}

#[tokio::test]
async fn a_body_that_may_come_in_part_passes_where_it_comes_whole() {
    bodies("BUFFERED_PARTIAL", 500 << 10).await;
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), "BUFFERED_PARTIAL").await else {
        return;
    };
    let got = ask(envoy.at, post("/large", vec![b'b'; 3 << 20])).await;
    assert_eq!(got.status, 413);
    assert_eq!(agent.seen.lock().unwrap().pieces, 0);
}

#[tokio::test]
async fn trailers_pass_behind_a_body_that_is_inspected() {
    let options = "http_protocol_options: { enable_trailers: true }";
    let change = |config: String| {
        let server = "- name: server\n      connect_timeout: 2s\n";
        assert!(config.contains(server));
        let http = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let typed = format!(
            "{server}      typed_extension_protocol_options:\n        {http}:\n          \
             \"@type\": type.googleapis.com/{http}\n          explicit_http_config: {{ {options} }}\n"
        );
        let remote = "use_remote_address: true";
        config
            .replace(server, &typed)
            .replace(remote, &format!("{remote}\n                {options}"))
    };
    for mode in ["FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED"] {
        let agent = Agent::new(&[EventKind::RequestHeaders, EventKind::RequestBody]);
        let change = |config: String| {
            let skip = "request_trailer_mode: SKIP";
            change(config).replace(skip, "request_trailer_mode: SEND")
        };
        let Some(envoy) = Envoy::with(agent.inspector(), mode, change).await else {
            return;
        };
        let got = ask(envoy.at, system::with_trailers("/trailers", "some body")).await;
        assert_eq!(
            (got.status, got.text()),
            (200, "some body; x-sum: 9"),
            "{mode}"
        );
        assert_eq!(agent.seen.lock().unwrap().body, 9, "{mode}");
        let got = ask(envoy.at, system::with_trailers("/trailers", "an attack")).await;
        assert_eq!(got.status, 429, "{mode}");
    }
}

#[tokio::test]
async fn a_body_that_envoy_is_not_told_to_send_does_not_pass() {
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), "NONE").await else {
        return;
    };
    assert_eq!(ask(envoy.at, post("/body", "attack")).await.status, 413);
    assert_eq!(ask(envoy.at, get("/secret")).await.status, 413);
}

#[tokio::test]
async fn what_no_agent_wants_is_not_asked_for() {
    let agent = Agent::new(&[EventKind::RequestHeaders]);
    let Some(envoy) = Envoy::start(agent.inspector(), "FULL_DUPLEX_STREAMED").await else {
        return;
    };
    let body = Bytes::from(vec![b'b'; 1 << 20]);
    let got = ask(envoy.at, post("/large", body.clone())).await;
    assert!(got.status == 200 && got.body == body);
    assert_eq!(got.header("x-waf"), Some("request"));
    assert_eq!(agent.seen.lock().unwrap().pieces, 0);
}

#[tokio::test]
async fn when_the_agent_is_gone_nothing_passes() {
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), "FULL_DUPLEX_STREAMED").await else {
        return;
    };
    assert_eq!(ask(envoy.at, get("/fine")).await.status, 200);
    agent.kill();
    for _ in 0..20 {
        assert_eq!(ask(envoy.at, get("/fine")).await.status, 503);
        assert_eq!(ask(envoy.at, post("/fine", "body")).await.status, 503);
    }
}

#[tokio::test]
async fn when_the_front_is_gone_nothing_passes() {
    let agent = Agent::new(ALL);
    let Some(mut envoy) = Envoy::start(agent.inspector(), "FULL_DUPLEX_STREAMED").await else {
        return;
    };
    assert_eq!(ask(envoy.at, get("/fine")).await.status, 200);
    envoy.front.shutdown().await;
    for _ in 0..5 {
        assert_eq!(ask(envoy.at, get("/fine")).await.status, 500);
    }
}

#[tokio::test]
async fn a_client_that_gives_up_cancels_what_agents_do_for_it() {
    let agent = Agent::new(ALL);
    let Some(envoy) = Envoy::start(agent.inspector(), "STREAMED").await else {
        return;
    };
    let mut client = Client::connect(envoy.at).await.unwrap();
    let hanging = tokio::time::timeout(Duration::from_secs(20), client.send(get("/hang")));
    tokio::select! {
        _ = hanging => panic!("an answer"),
        () = agent.until(|seen| seen.uris == ["/hang"]) => {}
    }
    drop(client);
    agent.until(|seen| seen.cancelled == 1).await;
}
