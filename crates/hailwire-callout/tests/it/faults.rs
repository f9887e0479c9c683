//! What goes wrong: peers that die, are silent, or say what they must not.

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use hailwire_callout::{
    Decision, Event, Response,
    agent::{self, ServeOptions},
    host::{self, ConnectError, ConnectOptions, ConnectionState, RequestError},
    wire::{Encoding, decode_response},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{LONG, Raw, Seen, Served, Told, blocks, head, next};

/// The variable that makes this program an agent.
const AGENT: &str = "HAILWIRE_TEST_CALLOUT_AGENT";

#[tokio::test]
async fn sixteen_calls_to_a_handler_of_20_ms_take_about_20_ms() {
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    for extensions in [true, false] {
        let options = ConnectOptions {
            extensions,
            ..ConnectOptions::default()
        };
        let connection = host::uds::connect(served.path(), &options).await.unwrap();
        let ids: Vec<String> = (0..16).map(|n| format!("c{n}")).collect();
        let started = Instant::now();
        for answer in join_all(ids.iter().map(|id| connection.request(head(id, "/20ms")))).await {
            answer.unwrap();
        }
        let took = started.elapsed();
        assert!(took < Duration::from_millis(8 * 20), "{took:?}");
    }
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing_behind_and_its_handler_is_dropped() {
    for extensions in [true, false] {
        let (told, mut seen) = Told::new();
        let served = Served::new(told, ServeOptions::default());
        let options = ConnectOptions {
            extensions,
            ..ConnectOptions::default()
        };
        let connection = host::uds::connect(served.path(), &options).await.unwrap();
        assert!(matches!(next(&mut seen).await, Seen::Connected(_)));
        let ask = connection.request(head("c1", "/wait"));
        let timed_out = tokio::time::timeout(Duration::from_millis(10), ask).await;
        assert!(timed_out.is_err());
        assert_eq!(connection.in_flight(), 0);
        let mut dropped = false;
        for _ in 0..2 {
            match next(&mut seen).await {
                Seen::Dropped => dropped = true,
                Seen::Cancelled(id, _) => assert_eq!(id, "c1"),
                other => panic!("{other:?}"),
            }
        }
        assert!(dropped);
        connection.request(head("c2", "/")).await.unwrap();
    }
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_blocked() {
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    let mut host = Raw::dial(served.path()).await;
    host.greet().await;
    let malformed: [(u8, &[u8]); 3] = [
        (0x10, br#"{"metadata":{"correlation_id":"c1"},"method":7}"#),
        (
            0x11,
            br#"{"correlation_id":"c1","data":"%%%","is_last":true}"#,
        ),
        (0x17, br#"{"correlation_id":"c1","config_version":[]}"#),
    ];
    for (code, payload) in malformed {
        host.frame(code, payload).await;
        let (code, payload) = host.read().await.unwrap();
        assert_eq!(code, 0x20);
        let (id, answer) = decode_response(payload.into(), Encoding::Json).unwrap();
        assert_eq!(&*id, "c1");
        assert!(blocks(&answer, 500), "{answer:?}");
    }
    // Nobody could be answered.
    host.frame(0x10, b"{").await;
    assert_eq!(host.read().await, None);
}

#[tokio::test]
async fn a_frame_of_an_unknown_type_ends_a_connection() {
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    // What was not agreed upon is unknown.
    for code in [0x03, 0x18, 0x50, 0x52, 0xff] {
        let mut host = Raw::dial(served.path()).await;
        host.greet().await;
        host.frame(code, b"{}").await;
        assert_eq!(host.read().await, None);
    }
    let mut host = Raw::dial(served.path()).await;
    host.greet().await;
    host.frame(0x30, b"{}").await;
    host.frame(0x41, b"in the wrong direction, ignored").await;
    assert_eq!(host.read().await.unwrap().0, 0x42);
}

#[tokio::test]
async fn the_longest_frame_is_of_sixteen_mebibytes() {
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    let (mut read, mut write) = {
        let mut host = Raw::dial(served.path()).await;
        host.greet().await;
        host.0.into_split()
    };
    let longest = vec![b'x'; (16 << 20) - 1];
    let sent = longest.clone();
    let writing = tokio::spawn(async move {
        write.write_u32(16 << 20).await.unwrap();
        write.write_u8(0x41).await.unwrap();
        write.write_all(&sent).await.unwrap();
        write
    });
    assert_eq!(read.read_u32().await.unwrap(), 16 << 20);
    assert_eq!(read.read_u8().await.unwrap(), 0x42);
    let mut echoed = vec![0; longest.len()];
    read.read_exact(&mut echoed).await.unwrap();
    assert!(echoed == longest);
    let mut write = writing.await.unwrap();
    write.write_u32((16 << 20) + 1).await.unwrap();
    assert_eq!(read.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_silent_agent_is_given_up() {
    let (listener, path, _dir) = Raw::listen();
    let options = ConnectOptions {
        connect_timeout: Duration::from_millis(50),
        ..ConnectOptions::default()
    };
    let (silent, connected) = tokio::join!(listener.accept(), host::uds::connect(&path, &options));
    assert!(
        matches!(connected, Err(ConnectError::Timeout(_))),
        "{connected:?}"
    );
    drop(silent);
}

#[tokio::test]
async fn a_silent_host_is_given_up() {
    let (told, _seen) = Told::new();
    let options = ServeOptions {
        handshake_timeout: Duration::from_millis(50),
        ..ServeOptions::default()
    };
    let served = Served::new(told, options);
    let mut host = Raw::dial(served.path()).await;
    assert_eq!(host.read().await, None);
}

#[tokio::test]
async fn an_agent_that_is_killed_is_missed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    let mut agent = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "faults::the_agent_of_another_process",
            "--nocapture",
        ])
        .env(AGENT, &path)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = agent.stdout.take().unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"listening\n") {
        line.push(said.read_u8().await.unwrap());
    }
    let options = ConnectOptions::default();
    let connection = host::uds::connect(&path, &options).await.unwrap();
    connection.request(head("c1", "/")).await.unwrap();
    let waiting = connection.request(head("c2", "/wait"));
    connection.ping().await.unwrap();
    let started = Instant::now();
    agent.kill().await.unwrap();
    assert_eq!(waiting.await, Err(RequestError::Closed));
    connection.closed().await;
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(connection.state(), ConnectionState::Closed);
    assert_eq!(connection.in_flight(), 0);
    assert_eq!(
        connection.request(head("c3", "/")).await,
        Err(RequestError::Closed)
    );
    assert_eq!(connection.ping().await, Err(RequestError::Closed));
}

/// Nothing, unless another test has started this program to be an agent.
#[tokio::test]
async fn the_agent_of_another_process() {
    let Some(path) = std::env::var_os(AGENT) else {
        return;
    };
    let listener = agent::uds::UdsListener::bind(path).unwrap();
    println!("listening");
    let (told, _seen) = Told::new();
    let options = ServeOptions::default();
    let serving = agent::uds::serve(Arc::new(told), listener, &options);
    let _ = tokio::time::timeout(LONG, serving).await;
}

#[tokio::test]
async fn a_handler_that_panics_blocks_its_request_and_no_other() {
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    let options = ConnectOptions::default();
    let connection = host::uds::connect(served.path(), &options).await.unwrap();
    let (panics, passes) = tokio::join!(
        connection.request(head("c1", "/panic")),
        connection.request(head("c2", "/"))
    );
    assert!(blocks(&panics.unwrap(), 500));
    assert_eq!(passes, Ok(Response::allow()));
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_an_error_and_no_answer() {
    let (listener, path, _dir) = Raw::listen();
    let options = ConnectOptions::default();
    let agent = async {
        let mut agent = Raw(listener.accept().await.unwrap().0);
        agent.welcome(serde_json::Value::Null).await;
        agent
    };
    let (mut agent, connection) = tokio::join!(agent, host::uds::connect(&path, &options));
    let connection = connection.unwrap();
    let ask = connection.request(head("c1", "/"));
    assert_eq!(agent.read().await.unwrap().0, 0x10);
    // Nobody waits for the first; its answer comes too late.
    let late = br#"{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":"c0"}}}"#;
    agent.frame(0x20, late).await;
    let wrong = br#"{"version":2,"decision":"maybe","audit":{"custom":{"correlation_id":"c1"}}}"#;
    agent.frame(0x20, wrong).await;
    let answer = ask.await;
    assert!(
        matches!(answer, Err(RequestError::Malformed(_))),
        "{answer:?}"
    );
    let ask = connection.request(head("c2", "/"));
    agent
        .frame(0x20, br#"{"version":2,"decision":"allow"}"#)
        .await;
    assert_eq!(ask.await, Err(RequestError::Closed));
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_not_given_to_the_next_event_of_its_request() {
    let (listener, path, _dir) = Raw::listen();
    let options = ConnectOptions::default();
    let agent = async {
        let mut agent = Raw(listener.accept().await.unwrap().0);
        agent.welcome(serde_json::Value::Null).await;
        agent
    };
    let (mut agent, connection) = tokio::join!(agent, host::uds::connect(&path, &options));
    let connection = connection.unwrap();
    let first = connection.request(head("c1", "/"));
    assert_eq!(agent.read().await.unwrap().0, 0x10);
    drop(first);
    assert_eq!(agent.read().await.unwrap().0, 0x40);
    let second = connection.request(head("c1", "/"));
    let late = br#"{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":"c1"}}}"#;
    agent.frame(0x20, late).await;
    assert_eq!(agent.read().await.unwrap().0, 0x10);
    let answer = br#"{"version":2,"decision":{"block":{"status":403}},"audit":{"custom":{"correlation_id":"c1"}}}"#;
    agent.frame(0x20, answer).await;
    assert!(blocks(&second.await.unwrap(), 403));
}

#[tokio::test]
async fn extensions_that_were_not_offered_are_not_spoken() {
    let (listener, path, _dir) = Raw::listen();
    for offered in [true, false] {
        let options = ConnectOptions {
            extensions: offered,
            ..ConnectOptions::default()
        };
        let agent = async {
            let mut agent = Raw(listener.accept().await.unwrap().0);
            let ours = serde_json::json!({"raw_bodies": true, "window": 1});
            let hello = agent.welcome(ours).await;
            assert_eq!(hello.get("x_hailwire").is_some(), offered);
            agent
        };
        let (mut agent, connection) = tokio::join!(agent, host::uds::connect(&path, &options));
        let connection = connection.unwrap();
        drop(connection.request(head("c1", "/")));
        let expected = if offered { 0x50 } else { 0x10 };
        assert_eq!(agent.read().await.unwrap().0, expected);
    }
}

/// A peer without our extensions that takes what comes and answers nothing by itself.
async fn silent(listener: &tokio::net::UnixListener) -> Raw {
    let mut agent = Raw(listener.accept().await.unwrap().0);
    agent
        .welcome(serde_json::json!({"raw_bodies": false, "window": 0}))
        .await;
    agent
}

#[tokio::test]
async fn an_agent_that_owes_an_answer_and_gives_none_loses_its_connection() {
    let (listener, path, _dir) = Raw::listen();
    let options = ConnectOptions {
        late: Duration::from_millis(30),
        ..ConnectOptions::default()
    };
    let (mut agent, connection) =
        tokio::join!(silent(&listener), host::uds::connect(&path, &options));
    let connection = connection.unwrap();
    let (given_up, other) = (
        connection.request(head("given-up", "/")),
        connection.request(head("other", "/")),
    );
    for _ in 0..2 {
        assert_eq!(agent.read().await.unwrap().0, 0x10);
    }
    let begin = std::time::Instant::now();
    drop(given_up);
    // What is asked about the same request waits for the answer that is owed, and so does not leave.
    let next = connection.request(head("given-up", "/"));
    assert_eq!(agent.read().await.unwrap().0, 0x40);
    let (other, next) = tokio::time::timeout(LONG, futures_util::future::join(other, next))
        .await
        .unwrap();
    assert_eq!(
        (other, next),
        (Err(RequestError::Closed), Err(RequestError::Closed))
    );
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert_eq!(agent.read().await, None);
}

#[tokio::test]
async fn an_agent_that_answers_others_keeps_its_connection() {
    let (listener, path, _dir) = Raw::listen();
    let options = ConnectOptions {
        late: Duration::from_millis(50),
        ..ConnectOptions::default()
    };
    let (mut agent, connection) =
        tokio::join!(silent(&listener), host::uds::connect(&path, &options));
    let connection = connection.unwrap();
    drop(connection.request(head("given-up", "/")));
    assert_eq!(agent.read().await.unwrap().0, 0x10);
    assert_eq!(agent.read().await.unwrap().0, 0x40);
    let begin = std::time::Instant::now();
    let mut n = 0;
    while begin.elapsed() < Duration::from_millis(400) {
        n += 1;
        let id = format!("c{n}");
        let asked = connection.request(head(&id, "/"));
        let answers = async {
            assert_eq!(agent.read().await.unwrap().0, 0x10);
            let answer = serde_json::json!({
                "version": 2, "decision": "allow", "audit": {"custom": {"correlation_id": id}},
            });
            agent.frame(0x20, answer.to_string().as_bytes()).await;
        };
        let (answer, ()) = tokio::join!(asked, answers);
        answer.unwrap();
    }
    assert!(n > 2);
}

#[tokio::test]
async fn a_pool_connects_again_where_an_agent_was_given_up_and_the_rule_decides_meanwhile() {
    use hailwire_callout::inspect::{Config, Inspector};
    let (listener, path, _dir) = Raw::listen();
    let text = format!(
        "agents {{ agent \"stuck\" {{ binary-uds {path:?}; timeout-ms 20000; on-error \"block\" 598; \
         on-timeout \"block\" 599; pool {{ connections 1 }} }} }}"
    );
    let config = Config::parse(&text, "callout.kdl".as_ref()).unwrap();
    let reach = |_: &_, _: &_| {
        let path = path.clone();
        let connect = move |options: ConnectOptions| {
            let path = path.clone();
            let options = ConnectOptions {
                late: Duration::from_millis(30),
                ..options
            };
            Box::pin(async move { host::uds::connect(&path, &options).await })
                as futures_util::future::BoxFuture<'static, _>
        };
        let connect = hailwire_callout::pool::connect_with("stuck", connect);
        Some(std::sync::Arc::new(connect) as std::sync::Arc<dyn hailwire_callout::pool::Connector>)
    };
    let inspector = Inspector::from_config(&config, &reach).unwrap();
    let mut agent = silent(&listener).await;
    assert!(inspector.ready(LONG).await);
    let of = |id: &str| match head(id, "/") {
        Event::RequestHeaders(head) => head,
        other => panic!("{other:?}"),
    };
    let (mut one, mut other) = (inspector.exchange(), inspector.exchange());
    {
        let waits = one.request_headers(of("one"));
        let heard = agent.read();
        tokio::pin!(waits);
        tokio::select! {
            _ = &mut waits => panic!("nobody answers"),
            heard = heard => assert_eq!(heard.unwrap().0, 0x10),
        }
    }
    drop(one);
    let verdict = tokio::time::timeout(LONG, other.request_headers(of("other"))).await;
    let Decision::Block { status, .. } = verdict.unwrap().decision else {
        panic!("it passes");
    };
    assert_eq!(
        status, 598,
        "the connection was given up, not the time over"
    );
    // Another connection, and what is asked there is answered.
    let mut agent = silent(&listener).await;
    assert!(inspector.ready(LONG).await);
    let mut again = inspector.exchange();
    let answers = async {
        assert_eq!(agent.read().await.unwrap().0, 0x10);
        let answer =
            r#"{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":"again"}}}"#;
        agent.frame(0x20, answer.as_bytes()).await;
    };
    let (verdict, ()) = tokio::join!(again.request_headers(of("again")), answers);
    assert!(verdict.passes());
}
