//! Agents that dial their host.

use std::{collections::HashMap, sync::Arc, time::Duration};

use hailwire_callout::{
    Event, Response,
    agent::{
        ServeError,
        reverse::{DialOptions, dial},
    },
    control::{FlowControl, HealthState, Notice},
    host::{
        ConnectOptions, ConnectionState,
        reverse::{ReverseListener, ReverseOptions},
    },
};
use tempfile::TempDir;

use crate::support::{Raw, Seen, Told, head, next, piece, until};

fn listen(options: ReverseOptions) -> (ReverseListener, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let listener = ReverseListener::bind(dir.path().join("host"), options).unwrap();
    (listener, dir)
}

fn with_token() -> ReverseOptions {
    ReverseOptions {
        tokens: HashMap::from([("told".to_owned(), "secret".to_owned())]),
        ..ReverseOptions::default()
    }
}

fn showing(token: Option<&str>) -> DialOptions {
    DialOptions {
        token: token.map(str::to_owned),
        least_pause: Duration::from_millis(1),
        ..DialOptions::default()
    }
}

#[tokio::test]
async fn an_agent_that_dials_is_asked_like_any_other() {
    let (mut listener, dir) = listen(with_token());
    let (told, mut seen) = Told::new();
    let path = dir.path().join("host");
    let dialling =
        tokio::spawn(async move { dial(Arc::new(told), path, &showing(Some("secret"))).await });
    let connection = listener.accept().await.unwrap();
    assert_eq!(connection.capabilities().agent_id, "told");
    assert_eq!(
        connection.request(head("c1", "/")).await,
        Ok(Response::allow())
    );
    let data = vec![0xff; 1 << 20];
    let body = Event::RequestBody(piece("c1", 0, data, true));
    connection.request(body).await.unwrap();
    let Seen::Connected(host) = next(&mut seen).await else {
        panic!("first a host connects");
    };
    assert!(host.notify(Notice::Flow(FlowControl::Pause(None))));
    let paused = ConnectionState::Open {
        health: HealthState::Healthy,
        paused: true,
    };
    until("it pauses", || connection.state() == paused).await;
    // It comes again.
    connection.close();
    let connection = listener.accept().await.unwrap();
    connection.request(head("c2", "/")).await.unwrap();
    dialling.abort();
}

#[tokio::test]
async fn an_agent_without_the_token_is_refused() {
    let only_other = ReverseOptions {
        allowed_agents: Some(vec!["other".to_owned()]),
        ..with_token()
    };
    for (options, token) in [
        (with_token(), Some("wrong")),
        (with_token(), None),
        (ReverseOptions::default(), None),
        (ReverseOptions::default(), Some("secret")),
        (only_other, Some("secret")),
    ] {
        let (mut listener, dir) = listen(options);
        let (told, _seen) = Told::new();
        let path = dir.path().join("host");
        let dialled = tokio::select! {
            dialled = async { dial(Arc::new(told), path, &showing(token)).await } => dialled,
            connection = listener.accept() => panic!("{connection:?}"),
        };
        assert!(
            matches!(dialled, Err(ServeError::Refused(_))),
            "{dialled:?}"
        );
    }
}

#[tokio::test]
async fn an_agent_that_says_nothing_keeps_no_other_waiting() {
    let (mut listener, dir) = listen(with_token());
    let path = dir.path().join("host");
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(Raw::dial(&path).await);
    }
    let (told, _seen) = Told::new();
    let dialling =
        tokio::spawn(async move { dial(Arc::new(told), path, &showing(Some("secret"))).await });
    let connection = listener.accept().await.unwrap();
    connection.request(head("c1", "/")).await.unwrap();
    dialling.abort();
}

#[tokio::test]
async fn an_agent_that_is_not_ours_is_asked_in_json() {
    let (mut listener, dir) = listen(ReverseOptions {
        anonymous: true,
        connect: ConnectOptions {
            host_id: "us".to_owned(),
            ..ConnectOptions::default()
        },
        ..ReverseOptions::default()
    });
    let mut agent = Raw::dial(&dir.path().join("host")).await;
    let registration = serde_json::json!({
        "protocol_version": 2, "agent_id": "raw", "auth_token": null, "metadata": null,
        "capabilities": {
            "agent_id": "raw", "name": "raw", "version": "1", "supported_events": [1],
            "features": {
                "streaming_body": true, "websocket": false, "guardrails": false,
                "config_push": false, "metrics_export": false, "concurrent_requests": 0,
                "cancellation": true, "flow_control": true, "health_reporting": true,
            },
            "limits": {
                "max_body_size": 10_000_000, "max_concurrency": 100, "preferred_chunk_size": 65536,
            },
        },
    });
    agent.frame(0x01, registration.to_string().as_bytes()).await;
    let connection = listener.accept().await.unwrap();
    let (code, registered) = agent.read().await.unwrap();
    let registered: serde_json::Value = serde_json::from_slice(&registered).unwrap();
    assert_eq!((code, &registered["success"]), (0x02, &true.into()));
    assert_eq!(registered["proxy_id"], "us");
    assert!(registered.get("x_hailwire").is_none());
    let ask = connection.request(head("c1", "/"));
    let (code, event) = agent.read().await.unwrap();
    let event: serde_json::Value = serde_json::from_slice(&event).unwrap();
    assert_eq!((code, &event["uri"]), (0x10, &"/".into()));
    let answer = br#"{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":"c1"}}}"#;
    agent.frame(0x20, answer).await;
    assert_eq!(ask.await, Ok(Response::allow()));
}
