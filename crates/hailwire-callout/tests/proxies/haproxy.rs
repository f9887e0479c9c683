//! HAProxy.

use std::{net::SocketAddr, os::fd::AsRawFd as _, sync::Arc};

use bytes::Bytes;
use hailwire_callout::{
    EventKind,
    front::{
        FrontListener,
        spoe::{SpoeLimits, SpoeServer},
    },
    inspect::{FallbackAction, Inspector, config::ListenAddress},
};
use tokio::task::JoinSet;

use crate::{
    agent::Agent,
    system::{self, Client, Running, ask, example, get, post, program, streamed},
};

/// What HAProxy can show.
const ALL: &[EventKind] = &[
    EventKind::RequestHeaders,
    EventKind::RequestBody,
    EventKind::ResponseHeaders,
    EventKind::RequestComplete,
];

/// HAProxy between a client and a server, with a front.
struct Haproxy {
    at: SocketAddr,
    front: JoinSet<()>,
    _running: Running,
    _server: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Haproxy {
    /// `None` where there is no HAProxy.
    async fn start(inspector: Arc<Inspector>) -> Option<Self> {
        Self::at(inspector, |config| config, system::tcp()).await
    }

    /// With its front at an address.
    async fn at(
        inspector: Arc<Inspector>,
        change: impl FnOnce(String) -> String,
        front: ListenAddress,
    ) -> Option<Self> {
        let Some(haproxy) = program("HAILWIRE_HAPROXY", &["/usr/sbin/haproxy"]) else {
            hailwire_skip::skipped("HAProxy is not installed (peers/install haproxy)");
            return None;
        };
        let (server, server_tasks) = system::server().await;
        let listener = FrontListener::bind(&front).await.unwrap();
        let front = match listener.local_address().unwrap() {
            ListenAddress::Tcp(address) => address.to_string(),
            ListenAddress::Unix(path) => format!("unix@{}", path.display()),
        };
        let mut tasks = JoinSet::new();
        let serve = Arc::new(SpoeServer::new(
            inspector,
            FallbackAction::Block(413),
            SpoeLimits::default(),
        ));
        tasks.spawn(async move {
            let _ = serve.serve_at(listener, std::future::pending()).await;
        });
        // HAProxy inherits the socket that it listens on, so that no port has to be found for it.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
        let at = socket.local_addr().unwrap();
        let changes = [
            (
                "bind 0.0.0.0:8000",
                format!("bind fd@{}", socket.as_raw_fd()),
            ),
            ("127.0.0.1:8080", server.to_string()),
            ("127.0.0.1:9471", front),
        ];
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("haproxy.cfg");
        std::fs::write(&config, change(example("haproxy.cfg", &changes))).unwrap();
        let spoe = folder.path().join("hail-spoe.cfg");
        std::fs::write(spoe, example("hail-spoe.cfg", &[])).unwrap();
        let args = ["-db".as_ref(), "-f".as_ref(), config.as_os_str()];
        let mut running = Running::start(&haproxy, &args, folder.path().join("log"));
        drop(socket);
        // It answers once it has read its configuration; refused as long as it has not, if at all.
        running
            .once(async || Client::connect(at).await?.send(get("/first")).await)
            .await;
        Some(Self {
            at,
            front: tasks,
            _running: running,
            _server: server_tasks,
            _folder: folder,
        })
    }
}

#[tokio::test]
async fn what_is_benign_passes_with_the_headers_that_agents_set_and_without_those_they_remove() {
    let agent = Agent::new(ALL);
    let Some(haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    let got = ask(haproxy.at, get("/fine?a=1")).await;
    assert_eq!((got.status, got.text()), (200, ""));
    assert_eq!(got.header("saw-x-waf-score"), Some("7"));
    assert_eq!(got.header("saw-x-secret"), None);
    assert_eq!(got.header("x-waf"), Some("response"));
    assert_eq!(got.header("server"), None);
    agent.until(|seen| seen.complete == [200, 200]).await;
    let seen = agent.seen.lock().unwrap();
    assert_eq!(seen.uris, ["/first", "/fine?a=1"]);
    assert_eq!(seen.clients[1], "127.0.0.1");
    assert_eq!(seen.cancelled, 0);
}

#[tokio::test]
async fn the_front_may_be_at_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let front = ListenAddress::Unix(folder.path().join("front"));
    let agent = Agent::new(ALL);
    let haproxy = Haproxy::at(agent.inspector(), |config| config, front);
    let Some(haproxy) = haproxy.await else {
        return;
    };
    assert_eq!(ask(haproxy.at, get("/fine")).await.status, 200);
    assert_eq!(ask(haproxy.at, get("/block")).await.status, 406);
    assert_eq!(
        agent.seen.lock().unwrap().uris,
        ["/first", "/fine", "/block"]
    );
}

#[tokio::test]
async fn each_decision_reaches_the_client_as_what_it_is() {
    let agent = Agent::new(ALL);
    let Some(haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    let got = ask(haproxy.at, get("/block")).await;
    assert_eq!((got.status, got.text()), (406, "not like this"));
    assert_eq!(got.header("retry-after"), Some("9"));
    let got = ask(haproxy.at, get("/redirect")).await;
    assert_eq!(got.status, 307);
    assert_eq!(got.header("location"), Some("https://login.example/?a=1"));
    let got = ask(haproxy.at, get("/challenge")).await;
    assert_eq!(
        (got.status, got.header("x-challenge")),
        (403, Some("captcha"))
    );
    let got = ask(haproxy.at, get("/login")).await;
    assert_eq!(got.status, 401);
    assert_eq!(
        got.header("www-authenticate"),
        Some("Basic realm=\"house\"")
    );
    let got = ask(haproxy.at, get("/leak")).await;
    assert_eq!((got.status, got.text()), (502, "a leak"));
}

#[tokio::test]
async fn a_body_that_fits_is_inspected_whole_and_a_larger_one_does_not_pass() {
    let agent = Agent::new(ALL);
    let Some(haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    let body = Bytes::from(vec![b'b'; 100 << 10]);
    let got = ask(haproxy.at, post("/large", body.clone())).await;
    assert!(got.status == 200 && got.body == body, "{}", got.status);
    assert_eq!(agent.seen.lock().unwrap().body, body.len());
    let got = ask(haproxy.at, post("/attack", "some attack")).await;
    assert_eq!(got.status, 429);
    let pieces = vec![Bytes::from_static(b"some "), Bytes::from_static(b"attack")];
    let got = ask(haproxy.at, streamed("/attack", pieces)).await;
    assert_eq!(got.status, 429);
    let seen = agent.seen.lock().unwrap().body;
    for size in [200 << 10, 10 << 20] {
        let mut client = Client::connect(haproxy.at).await.unwrap();
        // HAProxy may close before it has read all of it.
        let got = client.send(post("/large", vec![b'b'; size])).await;
        assert!(got.is_none_or(|got| got.status == 413));
    }
    let large = vec![Bytes::from(vec![b'b'; 100 << 10]); 2];
    let mut client = Client::connect(haproxy.at).await.unwrap();
    let got = client.send(streamed("/large", large)).await;
    assert!(got.is_none_or(|got| got.status == 413));
    assert_eq!(agent.seen.lock().unwrap().body, seen);
}

#[tokio::test]
async fn a_body_that_an_agent_changes_does_not_pass_unchanged() {
    let agent = Agent::new(ALL);
    let Some(haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    assert_eq!(ask(haproxy.at, post("/mutate", "lower")).await.status, 500);
}

#[tokio::test]
async fn a_response_whose_body_an_agent_wants_does_not_pass() {
    let agent = Agent::new(&[EventKind::ResponseHeaders, EventKind::ResponseBody]);
    let Some(haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    assert_eq!(ask(haproxy.at, get("/secret")).await.status, 413);
}

#[tokio::test]
async fn when_the_agent_is_gone_nothing_passes() {
    let agent = Agent::new(ALL);
    let Some(haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    assert_eq!(ask(haproxy.at, get("/fine")).await.status, 200);
    agent.kill();
    for _ in 0..20 {
        assert_eq!(ask(haproxy.at, get("/fine")).await.status, 503);
        assert_eq!(ask(haproxy.at, post("/fine", "body")).await.status, 503);
    }
}

#[tokio::test]
async fn when_the_front_is_gone_nothing_passes() {
    let agent = Agent::new(ALL);
    let Some(mut haproxy) = Haproxy::start(agent.inspector()).await else {
        return;
    };
    assert_eq!(ask(haproxy.at, get("/fine")).await.status, 200);
    haproxy.front.shutdown().await;
    // Side by side: HAProxy waits for `timeout processing` each time.
    let asked = (0..5).map(|_| ask(haproxy.at, get("/fine")));
    for got in futures_util::future::join_all(asked).await {
        assert_eq!(got.status, 503);
    }
}
