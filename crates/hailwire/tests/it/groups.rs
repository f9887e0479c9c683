//! Groups over nodes and through restarts: who gets how many calls, and that no call is lost while members come and go.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use hailwire::{
    Agent, Client, Code, Request, Response, ServeHandle, Status,
    admin::{AgentMember, AgentRow, AgentsQuery, method},
};
use tokio::sync::Semaphore;

use crate::test_node::{self, PATIENCE, TestNode};

const GROUP: &str = "shard";

/// A member that answers with its own name.
async fn member(client: &Client, agent: Agent, whose: &'static str) -> ServeHandle {
    let answer = move |_: Request| async move { Ok(Response::new(whose)) };
    client.serve(agent, answer).await.unwrap()
}

fn agent() -> Agent {
    Agent::new(GROUP).unwrap()
}

async fn call(client: &Client) -> Result<String, Status> {
    let bytes = test_node::call(client, GROUP, "").await?;
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

/// How many of so many calls, one after the other, each member gets.
async fn shares(client: &Client, calls: u32) -> HashMap<String, u32> {
    let mut shares = HashMap::new();
    for _ in 0..calls {
        *shares.entry(call(client).await.unwrap()).or_default() += 1;
    }
    shares
}

/// Waits until a node knows what is awaited of the group at another.
async fn known(at: &TestNode, of: &TestNode, is_so: impl Fn(&AgentRow) -> bool) {
    let find = async {
        loop {
            let query = AgentsQuery::default();
            let rows: Vec<AgentRow> = at.client().admin(method::AGENTS, &query).await.unwrap();
            let mut of_it = rows.iter().filter(|row| row.node == of.node.id());
            if of_it.any(|row| row.name == GROUP && is_so(row)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, find).await.unwrap();
}

#[tokio::test]
async fn a_node_with_more_members_gets_as_many_more_calls_and_fewer_when_they_leave() {
    let (alice, bob) = TestNode::pair().await;
    let carol = TestNode::named("carol").await;
    alice.befriend(&carol).await;
    let mut of_bob = Vec::new();
    for _ in 0..3 {
        of_bob.push(member(&bob.client(), agent(), "bob").await);
    }
    let _of_carol = member(&carol.client(), agent(), "carol").await;
    known(&alice, &bob, |row| row.members == 3).await;
    known(&alice, &carol, |_| true).await;
    let got = shares(&alice.client(), 200).await;
    assert!((140..=160).contains(&got["bob"]), "{got:?}");
    of_bob.truncate(1);
    known(&alice, &bob, |row| row.members == 1).await;
    let got = shares(&alice.client(), 200).await;
    assert!((95..=105).contains(&got["bob"]), "{got:?}");
}

#[tokio::test]
async fn a_standby_on_another_node_is_called_when_the_first_ones_are_gone() {
    let (alice, bob) = TestNode::pair().await;
    let _standby = member(&alice.client(), agent().priority(1), "standby").await;
    let first = member(&bob.client(), agent(), "first").await;
    known(&alice, &bob, |_| true).await;
    // It is nearer, and called all the same only where the other cannot be.
    assert_eq!(shares(&alice.client(), 20).await["first"], 20);
    first.drain().await;
    let all_there = async {
        while call(&alice.client()).await.unwrap() != "standby" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_there).await.unwrap();
}

#[tokio::test]
async fn an_overflow_node_takes_calls_once_the_others_have_so_many() {
    let (alice, bob) = TestNode::pair().await;
    let (release, running) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (released, counted) = (release.clone(), running.clone());
    let busy = move |_: Request| {
        let (released, counted) = (released.clone(), counted.clone());
        async move {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = released.acquire().await;
            Ok(Response::new("regular"))
        }
    };
    let _regular = alice.client().serve(agent(), busy).await.unwrap();
    let _overflow = member(&bob.client(), agent().overflow(2), "overflow").await;
    let said = |row: &AgentRow| row.group.iter().any(|member| member.policy == "overflow 2");
    known(&alice, &bob, said).await;
    let client = alice.client();
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { call(&client).await })
        })
        .collect();
    let both_run = async {
        while running.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, both_run).await.unwrap();
    assert_eq!(call(&client).await.unwrap(), "overflow");
    release.close();
    for call in slow {
        assert_eq!(call.await.unwrap().unwrap(), "regular");
    }
    assert_eq!(call(&client).await.unwrap(), "regular");
}

#[tokio::test]
async fn of_pinned_members_one_gets_all_calls_and_the_next_when_it_leaves() {
    let alice = TestNode::named("alice").await;
    let pinned = || agent().pinned(Duration::from_secs(3600));
    let mut members = HashMap::new();
    for whose in ["one", "two"] {
        members.insert(whose, member(&alice.client(), pinned(), whose).await);
    }
    let got = shares(&alice.client(), 30).await;
    let (who, calls) = got.iter().next().unwrap();
    assert_eq!((got.len(), *calls), (1, 30), "{got:?}");
    members.remove(who.as_str()).unwrap().drain().await;
    let next = shares(&alice.client(), 30).await;
    assert!(next.len() == 1 && !next.contains_key(who), "{next:?}");
}

#[tokio::test]
async fn a_member_has_one_policy_and_times_have_a_bound() {
    let alice = TestNode::named("alice").await;
    let hour = Duration::from_secs(3600);
    for wrong in [
        agent().priority(1).overflow(1),
        agent().overflow(1).pinned(hour),
        agent().pinned(hour + Duration::from_millis(1)),
        agent().slow_start(hour + Duration::from_nanos(1)),
    ] {
        let answer = |_: Request| async { Ok(Response::default()) };
        let refused = alice.client().serve(wrong, answer).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    }
}

#[tokio::test]
async fn members_that_are_restarted_one_after_the_other_lose_no_call() {
    let (alice, bob) = TestNode::pair().await;
    let mut programs = Vec::new();
    for _ in 0..3 {
        let program = bob.attach().await;
        let serving = slow_member(&program).await;
        programs.push((program, serving));
    }
    known(&alice, &bob, |row| row.members == 3).await;
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = [alice.client(), bob.client(), bob.attach().await]
        .into_iter()
        .flat_map(|client| std::iter::repeat_n(client, 4))
        .map(|client| {
            let over = over.clone();
            tokio::spawn(async move {
                let mut calls = 0;
                while !over.load(Ordering::Relaxed) {
                    call(&client).await.unwrap();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for _ in 0..4 {
        for (program, serving) in &mut programs {
            let fresh = bob.attach().await;
            let new = slow_member(&fresh).await;
            std::mem::replace(serving, new).drain().await;
            // The program ends, as one that was told to.
            *program = fresh;
        }
    }
    over.store(true, Ordering::Relaxed);
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.unwrap();
    }
    assert!(calls > 100, "{calls}");
}

/// A member that takes a moment, so that calls are under way whenever it leaves.
async fn slow_member(client: &Client) -> ServeHandle {
    let answer = |_: Request| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(Response::new("done"))
    };
    client.serve(agent(), answer).await.unwrap()
}

#[tokio::test]
async fn who_drains_waits_for_its_calls_and_gets_no_new_one() {
    let alice = TestNode::named("alice").await;
    let program = alice.attach().await;
    for client in [alice.client(), program.clone()] {
        let (begun, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (begins, released) = (begun.clone(), release.clone());
        let first = Arc::new(AtomicBool::new(true));
        let handler = move |_: Request| {
            let (begins, released) = (begins.clone(), released.clone());
            let waits = first.swap(false, Ordering::Relaxed);
            async move {
                if waits {
                    begins.add_permits(1);
                    let _ = released.acquire().await;
                }
                Ok(Response::new("whole"))
            }
        };
        let serving = client.serve(agent(), handler).await.unwrap();
        let caller = alice.client();
        let running = tokio::spawn(async move { call(&caller).await });
        begun.acquire().await.unwrap().forget();
        let drained = tokio::spawn(serving.drain());
        let none_left = async {
            while call(&alice.client()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, none_left).await.unwrap();
        assert!(!drained.is_finished(), "its call runs");
        release.close();
        assert_eq!(running.await.unwrap().unwrap(), "whole");
        tokio::time::timeout(PATIENCE, drained)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn a_list_of_agents_shows_how_members_fare() {
    let alice = TestNode::named("alice").await;
    let failing =
        |_: Request| async { Err::<Response, _>(Status::new(Code::Unavailable, "it is broken")) };
    let _broken = alice.client().serve(agent(), failing).await.unwrap();
    let new = agent().slow_start(Duration::from_secs(3600));
    let _new = member(&alice.client(), new, "new").await;
    let standby = agent().priority(3);
    let _standby = member(&alice.client(), standby, "standby").await;
    for _ in 0..40 {
        let _ = call(&alice.client()).await;
    }
    let rows: Vec<AgentRow> = alice
        .client()
        .admin(method::AGENTS, &AgentsQuery::default())
        .await
        .unwrap();
    let said: Vec<(&str, &str)> = rows[0]
        .group
        .iter()
        .map(|AgentMember { state, policy, .. }| (state.as_str(), policy.as_str()))
        .collect();
    let expected = [
        ("suspect", ""),
        ("slow start", ""),
        ("healthy", "priority 3"),
    ];
    assert_eq!(said, expected);
}

/// An agent that has `say` answer its n-th call, counted from 1.
async fn counting(
    at: &TestNode,
    say: impl Fn(u32) -> Result<&'static str, Code> + Send + Sync + 'static,
) -> (ServeHandle, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, say) = (calls.clone(), Arc::new(say));
    let handler = move |_: Request| {
        let result = say(counted.fetch_add(1, Ordering::Relaxed) + 1);
        async move {
            match result {
                Ok(text) => Ok(Response::new(text)),
                Err(code) => Err(Status::new(code, "not now")),
            }
        }
    };
    let serving = at.client().serve(agent(), handler).await.unwrap();
    (serving, calls)
}

#[tokio::test]
async fn a_call_that_may_be_made_again_is_until_it_works_or_its_time_is_over() {
    let (alice, bob) = TestNode::pair().await;
    let third = |call| match call {
        3 => Ok("third"),
        _ => Err(Code::Unavailable),
    };
    let (serving, calls) = counting(&bob, third).await;
    let prepared = || alice.client().call("shard@bob").body("x");
    let mut answer = prepared()
        .idempotency_key("one")
        .retries(2)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.bytes(64).await.unwrap(), "third");
    let once = prepared().idempotency_key("two").send().await;
    assert_eq!(once.unwrap_err().code, Code::Unavailable);
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    // Within the deadline, and no more often than was asked.
    let begun = tokio::time::Instant::now();
    let left = Duration::from_millis(300);
    let failed = prepared()
        .idempotency_key("three")
        .retries(10)
        .deadline(left);
    assert_eq!(failed.send().await.unwrap_err().code, Code::Unavailable);
    assert!(begun.elapsed() < left);
    // What would end the same again is made once.
    drop(serving);
    let (_serving, calls) = counting(&alice, |_| Err(Code::InvalidArgument)).await;
    let wrong = alice.client().call("shard@alice").idempotency_key("four");
    let wrong = wrong.retries(9).send().await.unwrap_err();
    assert_eq!(wrong.code, Code::InvalidArgument);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn further_attempts_stay_within_the_budget_that_all_clones_of_a_client_share() {
    let alice = TestNode::named("alice").await;
    let (_serving, calls) = counting(&alice, |_| Err(Code::Aborted)).await;
    let client = alice.client();
    for number in 0..20 {
        let call = client
            .clone()
            .call(GROUP)
            .idempotency_key(number.to_string());
        assert_eq!(
            call.retries(3).send().await.unwrap_err().code,
            Code::Aborted
        );
    }
    assert_eq!(calls.load(Ordering::Relaxed), 20 + 10 + 20 / 5);
}

#[tokio::test]
async fn a_slow_member_is_hedged_by_another_and_its_call_is_cancelled() {
    struct Dropped(Option<tokio::sync::oneshot::Sender<()>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().map(|told| told.send(()));
        }
    }
    let (alice, bob) = TestNode::pair().await;
    let (told, cancelled) = tokio::sync::oneshot::channel();
    let told = std::sync::Mutex::new(Some(told));
    let stuck = move |_: Request| {
        let dropped = Dropped(told.lock().unwrap().take());
        async move {
            let _dropped = dropped;
            std::future::pending().await
        }
    };
    let _stuck = bob.client().serve(agent(), stuck).await.unwrap();
    let _quick = member(&bob.client(), agent(), "quick").await;
    // They take turns, so one of the two is asked first and never answers.
    for number in 0..2 {
        let prepared = alice.client().call("shard@bob");
        let prepared = prepared.idempotency_key(number.to_string());
        let hedged = prepared.hedge_after(Duration::from_millis(20)).send();
        let hedged = tokio::time::timeout(PATIENCE, hedged).await.unwrap();
        assert_eq!(hedged.unwrap().bytes(64).await.unwrap(), "quick");
    }
    tokio::time::timeout(PATIENCE, cancelled)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn what_cannot_be_made_twice_is_refused_with_the_reason() {
    let alice = TestNode::named("alice").await;
    let (_serving, calls) = counting(&alice, |_| Ok("done")).await;
    let client = alice.client();
    let prepared = || client.call(GROUP).retries(1);
    let without_key = prepared().send().await.unwrap_err();
    let (_sender, stream) = hailwire::Body::channel(1);
    let streamed = prepared().idempotency_key("k").body(stream).send().await;
    let durable = prepared().idempotency_key("k").durable(true, false).await;
    let refused = [without_key, streamed.unwrap_err(), durable.unwrap_err()];
    for (status, why) in refused
        .iter()
        .zip(["idempotency key", "a stream", "durable"])
    {
        assert_eq!(status.code, Code::InvalidArgument);
        assert!(status.message.contains(why), "{status}");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}
