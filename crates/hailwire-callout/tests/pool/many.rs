//! Ten thousand connections, between two processes.

use std::{env, fmt::Write as _, fs, time::Duration};

use futures_util::{StreamExt as _, future::join_all, stream};
use hailwire_callout::{
    Event, Response,
    event::{Metadata, RequestHeaders},
    host::{self, ConnectOptions},
    response::Decision,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    process::{self, Process},
    system::head,
};

const MANY: u64 = 10_000;

/// What a connection may cost on either side, without buffers of the kernel, in a build without optimisation.
const MOST: u64 = 16 << 10;

const AGENT: &str = "HAILWIRE_TEST_AGENT";
const REPORT: &str = "HAILWIRE_TEST_REPORT";

/// Bytes of memory that a process has.
fn resident(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse::<u64>().unwrap() * 1024
}

/// Lets this process, and those that it starts, open as many files as the system allows it; whether that is enough.
fn may_open() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    let most = getrlimit(Resource::Nofile).current;
    most.is_none_or(|most| most > MANY + 100)
}

#[tokio::test]
async fn ten_thousand_connections_between_two_processes_are_each_asked_and_answered() {
    if !may_open() {
        return hailwire_skip::skipped("a process may open too few files");
    }
    let folder = tempfile::tempdir().unwrap();
    let (socket, report) = (folder.path().join("agent"), folder.path().join("report"));
    let mut agent = Process::agent(&socket);
    agent.has_said(process::LISTENING);
    let more = [
        (AGENT, &*agent.id().to_string()),
        (REPORT, report.to_str().unwrap()),
    ];
    let host = Process::start("many::the_host", &socket, &more);
    let ended = tokio::task::spawn_blocking(|| host.ended()).await.unwrap();
    assert!(ended, "the host ends well");
    let report = fs::read_to_string(report).unwrap();
    println!("{MANY} connections, bytes of memory for each: {report}");
    let costs: Vec<u64> = report
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert_eq!(costs.len(), 2, "{report}");
    assert!(
        costs.iter().all(|cost| (1..MOST).contains(cost)),
        "{report}"
    );
}

/// Not a test, but the host's process: it opens the connections, asks on all of them at once, and tells what they cost.
#[tokio::test]
#[ignore = "the other test starts it"]
async fn the_host() {
    let (Some(socket), Ok(agent), Ok(report)) =
        (process::socket(), env::var(AGENT), env::var(REPORT))
    else {
        return;
    };
    let options = ConnectOptions {
        connect_timeout: Duration::from_secs(60),
        ..ConnectOptions::default()
    };
    let connect = || async { host::uds::connect(&socket, &options).await.unwrap() };
    let first = connect().await;
    assert!(first.request(head("first")).await.is_ok());
    let before = [resident("self"), resident(&agent)];
    let mut connections: Vec<_> = stream::iter(1..MANY)
        .map(|_| connect())
        .buffer_unordered(64)
        .collect()
        .await;
    connections.push(first);
    let asks = connections.iter().enumerate().map(|(n, connection)| {
        let bad = n % 2 == 1;
        async move {
            let answer = connection.request(request(&format!("c{n}"), bad)).await;
            match answer.unwrap().decision {
                Decision::Allow => assert!(!bad),
                decision => assert!(bad && decision == Response::block(403).decision),
            }
        }
    });
    assert_eq!(join_all(asks).await.len() as u64, MANY);
    let after = [resident("self"), resident(&agent)];
    let mut text = String::new();
    for ((side, before), after) in ["host", "agent"].into_iter().zip(before).zip(after) {
        let each = after.saturating_sub(before) / MANY;
        write!(text, "{side} {each} ").unwrap();
    }
    fs::write(report, text).unwrap();
}

fn request(id: &str, bad: bool) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        ..Metadata::default()
    };
    let uri = if bad { "/bad" } else { "/" };
    Event::RequestHeaders(RequestHeaders::new(&metadata, "GET", uri, [("host", "a")]))
}
