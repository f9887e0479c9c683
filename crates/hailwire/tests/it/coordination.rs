//! The patterns of coordination, with agents of an embedded node: what is in flight, what is cancelled, what comes out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hailwire::{
    Agent, Client, Code, Request, Response, ServeHandle, Status,
    coordination::{MapLimits, Stage, gather, map, pipeline},
};
use tokio::{sync::Semaphore, time::timeout};

use crate::test_node::{PATIENCE, TestNode};

/// How many calls an agent has at once, at most had, and saw dropped before their end.
#[derive(Debug, Default)]
struct Seen {
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
    dropped: AtomicUsize,
}

struct Working(Arc<Seen>, bool);

impl Working {
    fn begin(seen: &Arc<Seen>) -> Self {
        seen.all.fetch_add(1, Ordering::SeqCst);
        let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.most.fetch_max(now, Ordering::SeqCst);
        Self(seen.clone(), false)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        if !self.1 {
            self.0.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// An agent that adds its letter to a text, once `gate` lets it.
async fn letter(client: &Client, name: &str, gate: &Arc<Semaphore>) -> (Arc<Seen>, ServeHandle) {
    let seen = Arc::new(Seen::default());
    let (gate, letter) = (gate.clone(), name.to_owned());
    let of_handler = seen.clone();
    let handler = move |mut request: Request| {
        let (gate, letter, seen) = (gate.clone(), letter.clone(), of_handler.clone());
        async move {
            let mut working = Working::begin(&seen);
            let text = request.body_mut().bytes(1 << 16).await?;
            gate.acquire()
                .await
                .map_err(|_| Status::new(Code::Aborted, "the gate is shut"))?
                .forget();
            working.1 = true;
            if text.as_ref() == b"bad" {
                return Err(Status::new(Code::InvalidArgument, "bad"));
            }
            let mut text = text.to_vec();
            text.extend_from_slice(letter.as_bytes());
            Ok(Response::new(text))
        }
    };
    let serving = client
        .serve(Agent::new(name).unwrap(), handler)
        .await
        .unwrap();
    (seen, serving)
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

fn open() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(Semaphore::MAX_PERMITS / 2))
}

fn shut() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

#[tokio::test]
async fn all_answers_come_in_the_order_of_the_calls_and_a_failure_is_one_of_them() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let (_, _a) = letter(&client, "a", &open()).await;
    let (_, _b) = letter(&client, "b", &open()).await;
    let calls = ["a", "nobody", "b"].map(|to| client.call(to).body("x"));
    let all = in_time(gather(calls).all()).await;
    let outcome = |i: usize| all[i].outcome.clone().map_err(|status| status.code);
    assert_eq!(outcome(0), Ok(Bytes::from("xa")));
    assert_eq!(outcome(1), Err(Code::NotFound));
    assert_eq!(outcome(2), Ok(Bytes::from("xb")));
    assert_eq!(
        all.iter().map(|r| &r.to[..]).collect::<Vec<_>>(),
        ["a", "nobody", "b"]
    );
}

#[tokio::test]
async fn a_quorum_ends_as_soon_as_it_is_reached_and_who_is_late_is_cancelled_or_read() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let late_gate = shut();
    let (_, _a) = letter(&client, "a", &open()).await;
    let (_, _b) = letter(&client, "b", &open()).await;
    let (late, _late) = letter(&client, "late", &late_gate).await;
    let calls = || ["a", "late", "b"].map(|to| client.call(to).body("x"));

    let agreed = in_time(gather(calls()).quorum(2)).await.unwrap();
    assert_eq!((agreed.agreed.len(), agreed.failed.len()), (2, 0));
    let mut rest = agreed.rest;
    late_gate.add_permits(1);
    let last = in_time(rest.next()).await.unwrap();
    assert_eq!(
        (&last.to[..], last.outcome),
        ("late", Ok(Bytes::from("xlate")))
    );
    assert!(in_time(rest.next()).await.is_none());

    let again = in_time(gather(calls()).quorum(2)).await.unwrap();
    in_time(async {
        while late.all.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(again);
    in_time(async {
        while late.dropped.load(Ordering::SeqCst) < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_quorum_is_given_up_as_soon_as_too_few_can_agree() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let (never, _never) = letter(&client, "never", &shut()).await;
    let (_, _a) = letter(&client, "a", &open()).await;
    let calls = ["a", "never", "nobody", "nobody2"].map(|to| client.call(to).body("x"));
    let missed = in_time(gather(calls).quorum(3)).await.unwrap_err();
    assert_eq!((missed.needed, missed.voters), (3, 4));
    assert_eq!(missed.failed.len(), 2);
    assert!(missed.agreed.len() <= 1);
    in_time(async {
        while never.now.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_map_takes_no_call_before_there_is_a_place_for_it() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let gate = open();
    let (seen, _a) = letter(&client, "a", &gate).await;
    for ordered in [true, false] {
        let taken = Arc::new(AtomicUsize::new(0));
        let (counter, caller) = (taken.clone(), client.clone());
        let calls = stream::iter(0..40).map(move |i| {
            counter.fetch_add(1, Ordering::SeqCst);
            caller.call("a").body(format!("{i}"))
        });
        let limits = MapLimits {
            in_flight: 4,
            ordered,
            ..MapLimits::default()
        };
        let mut replies = map(calls, limits);
        let mut read = Vec::new();
        while let Some(reply) = in_time(replies.next()).await {
            read.push(reply.index);
            assert!(taken.load(Ordering::SeqCst) <= read.len() + 3);
            assert_eq!(reply.outcome, Ok(Bytes::from(format!("{}a", reply.index))));
        }
        if !ordered {
            read.sort_unstable();
        }
        assert_eq!(read, (0..40).collect::<Vec<_>>());
    }
    assert!(seen.most.load(Ordering::SeqCst) <= 4);
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_answer_past_the_bound_is_refused_and_the_others_go_on() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let (_, _a) = letter(&client, "a", &open()).await;
    let limits = MapLimits {
        max_answer: 4,
        ..MapLimits::default()
    };
    let calls = ["xxx", "xxxx", "x"].map(|text| client.call("a").body(text));
    let replies: Vec<_> = in_time(map(stream::iter(calls), limits).collect()).await;
    let codes = replies.iter().map(|reply| match &reply.outcome {
        Ok(_) => Code::Ok,
        Err(status) => status.code,
    });
    let codes: Vec<_> = codes.collect();
    assert_eq!(codes, [Code::Ok, Code::ResourceExhausted, Code::Ok]);
}

#[tokio::test]
async fn a_pipeline_keeps_the_order_and_what_fails_in_a_stage_is_not_seen_by_the_next() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let (_, _a) = letter(&client, "a", &open()).await;
    let (second, _b) = letter(&client, "b", &open()).await;
    let stages = ["a", "b"].map(|to| {
        let client = client.clone();
        Stage::new(move |text| client.call(to).body(text))
    });
    let inputs = stream::iter(["1", "bad", "3"].map(Bytes::from));
    let items: Vec<_> = in_time(pipeline(inputs, stages).collect()).await;
    assert_eq!(items[0].outcome, Ok(Bytes::from("1ab")));
    let failed = items[1].outcome.clone().unwrap_err();
    assert_eq!(
        (failed.stage, failed.status.code),
        (0, Code::InvalidArgument)
    );
    assert_eq!(items[2].outcome, Ok(Bytes::from("3ab")));
    assert_eq!(second.all.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_slow_stage_holds_back_those_before_it_and_the_inputs() {
    let node = TestNode::named("alone").await;
    let client = node.client();
    let gate = shut();
    let (_, _a) = letter(&client, "a", &open()).await;
    let (slow, _b) = letter(&client, "b", &gate).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = taken.clone();
    let inputs = stream::iter(0..100).map(move |i| {
        counter.fetch_add(1, Ordering::SeqCst);
        Bytes::from(format!("{i}"))
    });
    let stages = [("a", 3), ("b", 2)].map(|(to, most)| {
        let client = client.clone();
        Stage::new(move |text| client.call(to).body(text)).in_flight(most)
    });
    let mut piped = pipeline(inputs, stages);
    // Nothing comes out while the second stage is shut.
    let none = timeout(Duration::from_millis(300), piped.next()).await;
    assert!(none.is_err());
    assert_eq!(slow.now.load(Ordering::SeqCst), 2);
    assert!(taken.load(Ordering::SeqCst) <= 5);
    gate.add_permits(100);
    let mut out = 0;
    while let Some(item) = in_time(piped.next()).await {
        assert_eq!(item.outcome, Ok(Bytes::from(format!("{out}ab"))));
        out += 1;
        assert!(taken.load(Ordering::SeqCst) <= out + 5);
    }
    assert_eq!(out, 100);
    assert_eq!(slow.most.load(Ordering::SeqCst), 2);
}
