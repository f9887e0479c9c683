//! Calls that wait for a place in an agent, here and at the far node: the most urgent is next, nobody starves, and who leaves leaves the queue.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hailwire::{
    Agent, Client, Code, Priority, Request, Response, ServeHandle, Status,
    admin::{AgentRow, AgentsQuery, method},
};
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::test_node::{PATIENCE, TestNode};

const NAME: &str = "desk";

/// An agent whose calls end when they are let go, and what they said, in the order in which they began.
struct Gate {
    _serving: ServeHandle,
    open: Arc<Semaphore>,
    begun: Arc<Mutex<Vec<String>>>,
}

impl Gate {
    async fn serve(client: &Client, agent: Agent) -> Self {
        let open = Arc::new(Semaphore::new(0));
        let begun = Arc::<Mutex<Vec<String>>>::default();
        let (gate, notes) = (open.clone(), begun.clone());
        let handler = move |request: Request| {
            let (gate, notes) = (gate.clone(), notes.clone());
            async move {
                let body = request.into_body().bytes(100).await?;
                let text = String::from_utf8_lossy(&body).into_owned();
                notes.lock().unwrap().push(text.clone());
                gate.acquire().await.unwrap().forget();
                Ok(Response::new(text))
            }
        };
        Self {
            _serving: client.serve(agent, handler).await.unwrap(),
            open,
            begun,
        }
    }

    fn begun(&self) -> Vec<String> {
        self.begun.lock().unwrap().clone()
    }
}

fn agent(calls: u32) -> Agent {
    Agent::new(NAME).unwrap().max_concurrency(calls)
}

fn call(
    client: &Client,
    to: &str,
    text: &str,
    priority: Priority,
) -> JoinHandle<Result<String, Status>> {
    let call = client.call(to).body(text.to_owned()).priority(priority);
    tokio::spawn(async move {
        let answer = call.send().await?.bytes(100).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    })
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE);
        tokio::task::yield_now().await;
    }
}

/// Until so many calls wait at the node that has the agent.
async fn waiting(client: &Client, count: u64) {
    until(async || {
        let query = AgentsQuery {
            local_only: true,
            ..AgentsQuery::default()
        };
        let rows: Vec<AgentRow> = client.admin(method::AGENTS, &query).await.unwrap();
        rows.iter()
            .any(|row| row.name == NAME && row.waiting == count)
    })
    .await;
}

#[tokio::test]
async fn the_most_urgent_call_is_next_here_and_at_the_far_node_and_none_is_refused() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let gate = Gate::serve(&program, agent(1)).await;
    let far = format!("{NAME}@bob");
    // By a program's socket, by the library inside the node, and over the tunnel.
    for (caller, to) in [
        (bob.attach().await, NAME),
        (bob.client(), NAME),
        (alice.client(), far.as_str()),
    ] {
        gate.begun.lock().unwrap().clear();
        let mut calls = vec![call(&caller, to, "first", Priority::Low)];
        until(async || gate.begun().len() == 1).await;
        for (count, priority) in (1..).zip([
            Priority::Low,
            Priority::Low,
            Priority::Medium,
            Priority::High,
            Priority::Critical,
        ]) {
            calls.push(call(&caller, to, priority.name(), priority));
            waiting(&bob.client(), count).await;
        }
        gate.open.add_permits(6);
        for answer in calls {
            answer.await.unwrap().unwrap();
        }
        let expected = ["first", "critical", "high", "medium", "low", "low"];
        assert_eq!(gate.begun(), expected);
        waiting(&bob.client(), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_a_crowd_is_answered_and_low_has_its_part() {
    let (alice, bob) = TestNode::pair().await;
    let gate = Gate::serve(&bob.client(), agent(2)).await;
    let to = format!("{NAME}@bob");
    let mut calls = Vec::new();
    for number in 0..200 {
        let priority = Priority::ALL[number % 4];
        calls.push(call(&alice.client(), &to, priority.name(), priority));
    }
    waiting(&bob.client(), 198).await;
    gate.open.add_permits(200);
    for answer in calls {
        answer.await.unwrap().unwrap();
    }
    // Of the first hundred after those that were there first, low has about three.
    let begun = gate.begun();
    let low = begun[2..102].iter().filter(|text| *text == "low").count();
    assert!((2..=8).contains(&low), "{low} of {begun:?}");
    let critical = begun[2..52]
        .iter()
        .filter(|text| *text == "critical")
        .count();
    assert!(critical >= 25, "{critical} of {begun:?}");
}

#[tokio::test]
async fn who_gives_up_or_is_too_late_leaves_the_queue_and_the_next_has_the_place() {
    let (alice, bob) = TestNode::pair().await;
    let gate = Gate::serve(&bob.attach().await, agent(1)).await;
    let to = format!("{NAME}@bob");
    for (caller, to) in [
        (bob.attach().await, NAME),
        (bob.client(), NAME),
        (alice.client(), to.as_str()),
    ] {
        gate.begun.lock().unwrap().clear();
        let first = call(&caller, to, "first", Priority::Medium);
        until(async || gate.begun().len() == 1).await;
        let gone = call(&caller, to, "gone", Priority::Critical);
        waiting(&bob.client(), 1).await;
        let late = caller
            .call(to)
            .body("late")
            .deadline(Duration::from_millis(200));
        let late = late.send().await.map(drop).unwrap_err();
        assert_eq!(late.code, Code::DeadlineExceeded, "{late}");
        waiting(&bob.client(), 1).await;
        gone.abort();
        waiting(&bob.client(), 0).await;
        let last = call(&caller, to, "last", Priority::Low);
        waiting(&bob.client(), 1).await;
        gate.open.add_permits(2);
        assert_eq!(first.await.unwrap().unwrap(), "first");
        assert_eq!(last.await.unwrap().unwrap(), "last");
        assert_eq!(gate.begun(), ["first", "last"]);
    }
}

#[tokio::test]
async fn as_many_wait_as_may_a_peer_has_half_and_an_urgent_call_displaces_another() {
    let (alice, bob) = TestNode::pair().await;
    let gate = Gate::serve(&bob.client(), agent(1).max_waiting(4)).await;
    let to = format!("{NAME}@bob");
    let first = call(&bob.client(), NAME, "first", Priority::Medium);
    until(async || gate.begun().len() == 1).await;
    let far: Vec<_> = (0..2)
        .map(|_| call(&alice.client(), &to, "far", Priority::Low))
        .collect();
    waiting(&bob.client(), 2).await;
    let more = call(&alice.client(), &to, "more", Priority::Low);
    let more = more.await.unwrap().unwrap_err();
    assert_eq!(more.code, Code::ResourceExhausted, "{more}");
    assert!(more.message.ends_with("2 calls wait already"), "{more}");
    let near: Vec<_> = (0..2)
        .map(|_| call(&bob.client(), NAME, "near", Priority::Low))
        .collect();
    waiting(&bob.client(), 4).await;
    let more = call(&bob.client(), NAME, "more", Priority::Low);
    assert_eq!(
        more.await.unwrap().unwrap_err().code,
        Code::ResourceExhausted
    );
    let urgent = call(&bob.client(), NAME, "urgent", Priority::High);
    let [one, newest] = <[_; 2]>::try_from(near).unwrap();
    let displaced = newest.await.unwrap().unwrap_err();
    assert_eq!(displaced.code, Code::ResourceExhausted, "{displaced}");
    assert!(
        displaced.message.ends_with("more urgent calls wait"),
        "{displaced}"
    );
    gate.open.add_permits(5);
    assert_eq!(urgent.await.unwrap().unwrap(), "urgent");
    for call in [first, one].into_iter().chain(far) {
        call.await.unwrap().unwrap();
    }
    assert_eq!(gate.begun(), ["first", "urgent", "far", "far", "near"]);
}

#[tokio::test]
async fn a_member_that_comes_takes_what_waits_and_a_group_that_goes_ends_it() {
    let bob = TestNode::named("bob").await;
    let client = bob.client();
    let gate = Gate::serve(&client, agent(1)).await;
    let first = call(&client, NAME, "first", Priority::Medium);
    until(async || gate.begun().len() == 1).await;
    let calls: Vec<_> = (0..3)
        .map(|_| call(&client, NAME, "waits", Priority::Medium))
        .collect();
    waiting(&client, 3).await;
    let second = Gate::serve(&client, agent(2)).await;
    until(async || second.begun().len() == 2).await;
    second.open.add_permits(3);
    for answer in calls {
        assert_eq!(answer.await.unwrap().unwrap(), "waits");
    }
    drop(second);
    let last = call(&client, NAME, "last", Priority::Medium);
    waiting(&client, 1).await;
    drop(gate);
    assert_eq!(last.await.unwrap().unwrap_err().code, Code::NotFound);
    drop(first);
}
