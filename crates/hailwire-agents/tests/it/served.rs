//! The two agents served as an operator would, and asked by our host.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hailwire_agents::{
    BoundListeners, ListenAddress,
    rate_limit::{self, RateLimitAgent},
    waf::{self, Waf},
};
use hailwire_callout::{
    Agent, Decision, Event,
    control::{AgentCommand, DrainReason, HealthState, ShutdownReason},
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
    let answer = tokio::time::timeout(Duration::from_secs(20), host.request(head(id, uri))).await;
    answer.expect("an answer in time").unwrap().decision
}

/// Serves an agent and returns its addresses; it ends when the sender is dropped.
async fn serve(
    agent: impl Agent,
    listen: Vec<ListenAddress>,
    token: Option<&str>,
) -> (Vec<ListenAddress>, oneshot::Sender<()>, JoinHandle<()>) {
    let listeners = BoundListeners::bind(listen).await.unwrap();
    let at = listeners.addresses().collect();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let token = token.map(str::to_owned);
    let task = tokio::spawn(async move {
        listeners
            .run(Arc::new(agent), token, shutdown)
            .await
            .unwrap();
    });
    (at, stop, task)
}

const ATTACK: &str = "/?q=%3Cscript%3Ealert(1)%3C/script%3E";

#[tokio::test]
async fn the_firewall_decides_over_a_unix_socket_and_over_grpc_alike() {
    let dir = tempfile::tempdir().unwrap();
    let listen = vec![
        ListenAddress::Unix(dir.path().join("waf.sock")),
        ListenAddress::Grpc("127.0.0.1:0".parse().unwrap()),
    ];
    let waf = Waf::new(waf::WafSettings::default()).unwrap();
    let (at, stop, task) = serve(waf, listen, None).await;
    for at in at {
        let host = match at {
            ListenAddress::Unix(path) => host::uds::connect(path, &ConnectOptions::default()).await,
            ListenAddress::Grpc(address) => {
                let endpoint = host::grpc::GrpcEndpoint::new(&address.to_string()).unwrap();
                host::grpc::connect(&endpoint, &ConnectOptions::default()).await
            }
            ListenAddress::Reverse(_) => unreachable!(),
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
    let mut listener = reverse::ReverseListener::bind(&path, options).unwrap();
    let settings = rate_limit::RateLimitSettings::of(["3/h per client-ip"]).unwrap();
    let (_, stop, task) = serve(
        RateLimitAgent::new(settings),
        vec![ListenAddress::Reverse(path)],
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

#[tokio::test]
async fn whoever_may_connect_cannot_lift_the_operators_limits() {
    let dir = tempfile::tempdir().unwrap();
    let listen = vec![
        ListenAddress::Unix(dir.path().join("limit.sock")),
        ListenAddress::Grpc("127.0.0.1:0".parse().unwrap()),
    ];
    let settings = rate_limit::RateLimitSettings::of(["3/h"]).unwrap();
    let (at, stop, task) = serve(RateLimitAgent::new(settings), listen, None).await;
    let mut passed = 0;
    for (n, at) in at.into_iter().enumerate() {
        // A configuration with the handshake is refused, and so is one later.
        let pushing = ConnectOptions {
            config: Some(serde_json::json!({"limits": []})),
            ..ConnectOptions::default()
        };
        let connect = async |options: &ConnectOptions| match &at {
            ListenAddress::Unix(path) => host::uds::connect(path, options).await,
            ListenAddress::Grpc(address) => {
                let endpoint = host::grpc::GrpcEndpoint::new(&address.to_string()).unwrap();
                host::grpc::connect(&endpoint, options).await
            }
            ListenAddress::Reverse(_) => unreachable!(),
        };
        assert!(connect(&pushing).await.is_err());
        let host = connect(&ConnectOptions::default()).await.unwrap();
        for round in 0..4 {
            let push = Event::Configure(hailwire_callout::event::Configure {
                correlation_id: format!("push-{round}").into(),
                config: serde_json::json!({"limits": ["1000/s"]}),
                config_version: None,
            });
            let answer = tokio::time::timeout(Duration::from_secs(20), host.request(push)).await;
            let answer = answer.expect("an answer in time").unwrap();
            assert!(matches!(
                answer.decision,
                Decision::Block { status: 403, .. }
            ));
            passed +=
                usize::from(ask(&host, &format!("{n}-{round}"), "/").await == Decision::Allow);
        }
        host.close();
    }
    assert_eq!(passed, 3, "over both sockets together");
    drop(stop);
    task.await.unwrap();
}

#[tokio::test]
async fn an_order_of_whoever_may_connect_takes_the_firewall_from_nobody() {
    let listen = vec![ListenAddress::Grpc("127.0.0.1:0".parse().unwrap())];
    let waf = Waf::new(waf::WafSettings::default()).unwrap();
    let (at, stop, task) = serve(waf, listen, None).await;
    let [ListenAddress::Grpc(address)] = at[..] else {
        panic!("{at:?}");
    };
    let endpoint = host::grpc::GrpcEndpoint::new(&address.to_string()).unwrap();
    let options = ConnectOptions::default();
    let host = host::grpc::connect(&endpoint, &options).await.unwrap();
    for order in [
        AgentCommand::Drain {
            within: Duration::from_secs(1),
            reason: DrainReason::Maintenance,
        },
        AgentCommand::Shutdown {
            within: Duration::from_secs(1),
            reason: ShutdownReason::Upgrade,
        },
    ] {
        let health = host::grpc::order(&endpoint, order, &options).await.unwrap();
        assert_eq!(health.state, HealthState::Healthy, "{health:?}");
    }
    let blocked = ask(&host, "1", ATTACK).await;
    assert!(matches!(blocked, Decision::Block { status: 403, .. }));
    assert_eq!(ask(&host, "2", "/").await, Decision::Allow);
    host.close();
    drop(stop);
    task.await.unwrap();
}
