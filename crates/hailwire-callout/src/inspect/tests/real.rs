//! With real agents: what they cost, and what becomes of a configuration that changes.

use std::path::Path;

use super::*;
use crate::{Agent, agent, event};

/// Long enough for any step of a test on a busy machine; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// An agent that adds its name to what passes.
struct Named(&'static str);

impl Agent for Named {
    fn name(&self) -> &str {
        self.0
    }

    async fn request_headers(&self, _: event::RequestHeaders) -> Response {
        Response {
            request_headers: vec![set("x-agent", self.0)],
            ..Response::allow()
        }
    }
}

fn served(name: &'static str, socket: &Path) -> tokio::task::JoinHandle<()> {
    let listener = agent::uds::UdsListener::bind(socket).unwrap();
    tokio::spawn(async move {
        let options = agent::ServeOptions::default();
        let _ = agent::uds::serve(Arc::new(Named(name)), listener, &options).await;
    })
}

fn configured(text: &str) -> Config {
    Config::parse(text, Path::new("callout.kdl")).unwrap()
}

async fn asked(inspector: &Inspector, id: &str) -> Vec<String> {
    let verdict = inspector.exchange().request_headers(head(id)).await;
    assert!(verdict.passes(), "{verdict:?}");
    let values = verdict.request_headers.iter().map(|op| match op {
        HeaderOp::Set { value, .. } => value.clone(),
        other => panic!("{other:?}"),
    });
    values.collect()
}

#[tokio::test]
async fn a_reload_under_load_drops_no_request_and_keeps_pools_that_did_not_change() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let _served = (served("one", &one), served("two", &two));
    let agents = |names: &[(&str, &Path, u32)]| {
        let agents: String = names
            .iter()
            .map(|(name, socket, timeout)| {
                format!("agent {name:?} {{ binary-uds {socket:?}; timeout-ms {timeout} }}\n")
            })
            .collect();
        configured(&format!("agents {{ {agents} }}"))
    };
    let first = agents(&[("a", &one, 10_000)]);
    let inspector = Arc::new(Inspector::from_config(&first, &|_, _| None).unwrap());
    assert!(inspector.ready(PATIENCE).await);
    let asking = Arc::clone(&inspector);
    let load = tokio::spawn(async move {
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..2_000 {
            seen.insert(asked(&asking, &format!("load-{n}")).await);
        }
        seen
    });
    for n in 0..20_u32 {
        let (timeout, both) = (10_000 + n, n % 2 == 0);
        let second = agents(&[("a", &one, timeout), ("b", &two, timeout)]);
        let config = match both {
            true => second,
            false => agents(&[("a", &one, timeout)]),
        };
        let kept = Arc::clone(&inspector.pools.lock().unwrap()[0]);
        inspector.reload(&config, &|_, _| None).unwrap();
        let now = Arc::clone(&inspector.pools.lock().unwrap()[0]);
        assert!(Arc::ptr_eq(&kept, &now), "what did not change");
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    let seen = load.await.unwrap();
    assert!(seen.len() <= 2, "{seen:?}");
    for agent in ["a", "b"] {
        let Some(tally) = inspector.counters(agent) else {
            continue;
        };
        for fault in AgentFault::ALL {
            assert_eq!(
                tally.blocked(EventKind::RequestHeaders, fault),
                0,
                "{agent}"
            );
        }
    }
    let elsewhere = agents(&[("a", &two, 10_000)]);
    inspector.reload(&elsewhere, &|_, _| None).unwrap();
    assert_eq!(asked(&inspector, "later").await, ["two"]);
}

#[tokio::test]
async fn a_place_that_cannot_be_reached_is_told_and_changes_nothing() {
    let far = configured("agents { agent \"a\" { hail \"waf@edge-2\" } }");
    let inspector = Inspector::from_config(&Config::default(), &|_, _| None).unwrap();
    let error = inspector.reload(&far, &|_, _| None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "agent `a`: endpoint cannot be reached from here: hail waf@edge-2"
    );
    assert!(inspector.exchange().points_are_empty());
}

#[tokio::test]
async fn agents_that_connect_by_themselves_are_asked_as_many_as_are_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("arrivals");
    let config = configured(&format!(
        "agents {{ agent \"dials\" {{ reverse; timeout-ms 10000; pool {{ connections 2 }} }} }}\n\
         listen {{ reverse {socket:?} }}"
    ));
    let arrivals = ReverseRegistry::default();
    let reach = |_: &config::AgentConfig, endpoint: &config::AgentEndpoint| match endpoint {
        config::AgentEndpoint::Reverse(id) => Some(arrivals.of(id)),
        _ => None,
    };
    let inspector = Inspector::from_config(&config, &reach).unwrap();
    let (listens, at) = (arrivals.clone(), socket.clone());
    let _listening = tokio::spawn(async move {
        let options = crate::host::reverse::ReverseOptions {
            shared_tokens: vec!["sesame-open".to_owned()],
            ..Default::default()
        };
        let socket = agent::uds::UdsListener::bind(at).unwrap();
        listens.listen(&socket, options).await
    });
    let dial = |token: &str| {
        let options = agent::reverse::DialOptions {
            token: Some(token.to_owned()),
            least_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(20),
            ..Default::default()
        };
        let socket = socket.clone();
        tokio::spawn(async move {
            let _ = agent::reverse::dial(Arc::new(Named("dials")), socket, &options).await;
        })
    };
    let _wrong = dial("sesame-shut");
    assert!(!inspector.ready(Duration::from_millis(200)).await);
    let _dialled = (
        dial("sesame-open"),
        dial("sesame-open"),
        dial("sesame-open"),
    );
    assert!(inspector.ready(PATIENCE).await);
    assert_eq!(asked(&inspector, "c").await, ["dials"]);
}
