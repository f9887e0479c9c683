//! The two agents served as an operator would, and asked by our host.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hailwire_agents::{
    Listen, Places,
    rate_limit::{self, RateLimit},
    waf::{self, Waf},
};
use hailwire_callout::{
    Agent, Decision, Event,
    event::{Metadata, RequestHeaders},
    host::{self, ConnectOptions, Connection, reverse},
};
use tokio::{sync::oneshot, task::JoinHandle};

fn head(id: &str, uri: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        client_ip: "192.0.2.1",
        ..Metadata::default()
    };
    Event::RequestHeaders(RequestHeaders::new(
        &metadata,
        "GET",
        uri,
        [("host", "example.com")],
    ))
}

async fn ask(host: &Connection, id: &str, uri: &str) -> Decision {
    let answer = tokio::time::timeout(Duration::from_secs(20), host.ask(head(id, uri))).await;
    answer.expect("an answer in time").unwrap().decision
}

/// Serves an agent, and says where; it ends when the sender is dropped.
async fn serve(
    agent: impl Agent,
    listen: Vec<Listen>,
    token: Option<&str>,
) -> (Vec<Listen>, oneshot::Sender<()>, JoinHandle<()>) {
    let places = Places::take(listen).await.unwrap();
    let at = places.at().collect();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let token = token.map(str::to_owned);
    let task = tokio::spawn(async move {
        places.run(Arc::new(agent), token, shutdown).await.unwrap();
    });
    (at, stop, task)
}

const ATTACK: &str = "/?q=%3Cscript%3Ealert(1)%3C/script%3E";

#[tokio::test]
async fn the_firewall_decides_over_a_unix_socket_and_over_grpc_alike() {
    let dir = tempfile::tempdir().unwrap();
    let listen = vec![
        Listen::Unix(dir.path().join("waf.sock")),
        Listen::Grpc("127.0.0.1:0".parse().unwrap()),
    ];
    let waf = Waf::new(waf::Settings::default()).unwrap();
    let (at, stop, task) = serve(waf, listen, None).await;
    for at in at {
        let host = match at {
            Listen::Unix(path) => host::uds::connect(path, &ConnectOptions::default()).await,
            Listen::Grpc(address) => {
                let endpoint = host::grpc::Endpoint::new(&address.to_string()).unwrap();
                host::grpc::connect(&endpoint, &ConnectOptions::default()).await
            }
            Listen::Reverse(_) => unreachable!(),
        }
        .unwrap();
        assert_eq!(ask(&host, "1", "/?q=hello").await, Decision::Allow);
        assert!(matches!(
            ask(&host, "2", ATTACK).await,
            Decision::Block { status: 403, .. }
        ));
        host.close();
    }
    drop(stop);
    task.await.unwrap();
}

#[tokio::test]
async fn the_rate_limiter_dials_its_host_and_refuses_what_is_too_much() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.sock");
    let shared_tokens = vec!["a token of some length".to_owned()];
    let options = reverse::ReverseOptions {
        shared_tokens,
        ..reverse::ReverseOptions::default()
    };
    let mut listener = reverse::Listener::bind(&path, options).unwrap();
    let settings = rate_limit::Settings::of(["3/h per client-ip"]).unwrap();
    let (_, stop, task) = serve(
        RateLimit::new(settings),
        vec![Listen::Reverse(path)],
        Some("a token of some length"),
    )
    .await;
    let host = tokio::time::timeout(Duration::from_secs(20), listener.accept());
    let host = host.await.expect("the agent in time").unwrap();
    assert_eq!(host.capabilities().agent_id, "hailwire-rate-limit");
    let mut decisions = Vec::new();
    for n in 0..5 {
        decisions.push(ask(&host, &n.to_string(), "/").await);
    }
    assert_eq!(
        decisions.iter().filter(|d| **d == Decision::Allow).count(),
        3
    );
    let Decision::Block {
        status, headers, ..
    } = &decisions[4]
    else {
        panic!("{decisions:?}");
    };
    let names: BTreeMap<&str, ()> = headers.keys().map(|name| (name.as_str(), ())).collect();
    assert_eq!(*status, 429);
    assert_eq!(
        names.into_keys().collect::<Vec<_>>(),
        ["ratelimit", "ratelimit-policy", "retry-after"]
    );
    drop(stop);
    task.await.unwrap();
}
