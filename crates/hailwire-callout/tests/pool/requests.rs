//! Which connection a request goes to.

use std::{collections::HashSet, sync::atomic::Ordering, time::Duration};

use hailwire_callout::{
    Response,
    capabilities::AgentLimits,
    pool::{AgentPools, PoolConfig, PoolError, metrics::DECISIONS},
};
use hailwire_pool::Strategy;

use crate::system::{PoolFixture, complete, head, request_body, response_body, response_head};

fn round_robin() -> PoolConfig {
    PoolConfig {
        strategy: Strategy::RoundRobin,
        ..PoolConfig::default()
    }
}

#[tokio::test]
async fn all_phases_of_a_request_go_to_one_connection() {
    let fixture = PoolFixture::new(3, round_robin()).await;
    let mut used = HashSet::new();
    for request in 0..30 {
        let id = format!("r{request}");
        let first = fixture.request(head(&id)).await.unwrap();
        used.insert(first);
        for index in 0..3 {
            assert_eq!(fixture.request(request_body(&id, index)).await, Ok(first));
        }
        assert_eq!(fixture.request(response_head(&id)).await, Ok(first));
        for index in 0..3 {
            assert_eq!(fixture.request(response_body(&id, index)).await, Ok(first));
        }
        assert_eq!(fixture.request(complete(&id)).await, Ok(first));
    }
    assert_eq!(used.len(), 3, "different requests share the work");
    assert!(
        fixture
            .pool
            .to_openmetrics()
            .contains("requests_bound{agent=\"probe\"} 0\n")
    );
}

#[tokio::test]
async fn requests_that_overlap_keep_their_connections_apart() {
    let fixture = PoolFixture::new(3, round_robin()).await;
    let mut slots = Vec::new();
    for request in 0..60 {
        slots.push(fixture.request(head(&format!("r{request}"))).await.unwrap());
    }
    for (request, slot) in slots.iter().enumerate().rev() {
        assert_eq!(
            fixture.request(response_head(&format!("r{request}"))).await,
            Ok(*slot)
        );
    }
}

#[tokio::test]
async fn sessions_stick_to_a_connection_until_it_is_gone() {
    let fixture = PoolFixture::new(3, round_robin()).await;
    let mut slots = Vec::new();
    for session in ["a", "b", "c"] {
        let first = fixture
            .request_in_session(session, &format!("{session}0"))
            .await
            .unwrap();
        for request in 1..5 {
            let id = format!("{session}{request}");
            assert_eq!(fixture.request_in_session(session, &id).await, Ok(first));
        }
        slots.push(first);
    }
    assert_eq!(HashSet::<_>::from_iter(&slots).len(), 3);

    fixture.away.store(true, Ordering::SeqCst);
    fixture.agents[slots[0]].hang_up();
    fixture.has_available(2).await;
    let moved = fixture.request_in_session("a", "x1").await.unwrap();
    assert_ne!(moved, slots[0]);
    assert_eq!(fixture.request_in_session("a", "x2").await, Ok(moved));
}

#[tokio::test]
async fn the_least_loaded_connection_takes_the_next_request() {
    let fixture = PoolFixture::new(3, PoolConfig::default()).await;
    fixture.hold(true);
    let mut asking = Vec::new();
    for request in 0..9 {
        asking.push(fixture.begin(head(&format!("r{request}"))).await);
    }
    let loads: Vec<_> = fixture.pool.connections().into_iter().flatten().collect();
    assert_eq!(
        loads.iter().map(|c| c.in_flight).collect::<Vec<_>>(),
        [3, 3, 3]
    );
    fixture.hold(false);
    for asking in asking {
        assert!(asking.await.unwrap().is_ok());
    }
    assert_eq!(fixture.pool.in_flight(), 0);
}

#[tokio::test]
async fn what_is_new_is_refused_where_no_place_is_left_and_what_was_begun_goes_on() {
    let config = PoolConfig {
        max_concurrent: 2,
        ..PoolConfig::default()
    };
    let fixture = PoolFixture::new(1, config).await;
    assert_eq!(fixture.request(head("begun")).await, Ok(0));
    fixture.hold(true);
    let one = fixture.begin(head("one")).await;
    let two = fixture.begin(head("two")).await;
    assert_eq!(
        fixture.request(head("three")).await,
        Err(PoolError::Overload)
    );
    let body = fixture.begin(request_body("begun", 0)).await;
    fixture.hold(false);
    for asking in [one, two, body] {
        assert_eq!(asking.await.unwrap(), Ok(0));
    }
    assert_eq!(fixture.request(head("three")).await, Ok(0));
}

#[tokio::test]
async fn a_body_larger_than_the_agent_takes_is_refused_as_that() {
    let limits = AgentLimits {
        max_body_size: 6,
        ..AgentLimits::default()
    };
    let fixture = PoolFixture::with_limits(1, PoolConfig::default(), limits).await;
    assert_eq!(fixture.request(head("r")).await, Ok(0));
    assert_eq!(fixture.request(request_body("r", 0)).await, Ok(0));
    assert_eq!(
        fixture.request(request_body("r", 1)).await,
        Err(PoolError::TooLarge)
    );
    assert!(matches!(
        fixture.pool.breaker(),
        hailwire_pool::BreakerState::Closed
    ));
}

#[tokio::test]
async fn a_reader_sees_agents_come_change_and_go() {
    let (first, second) = (
        PoolFixture::new(1, round_robin()).await,
        PoolFixture::new(1, round_robin()).await,
    );
    let agents = AgentPools::new();
    let mut reader = agents.reader();
    let name = first.pool.name();
    assert!(reader.named(name).is_none());
    agents.insert(&first.pool);
    assert!(std::ptr::eq(reader.named(name).unwrap(), &*first.pool));
    agents.insert(&second.pool);
    assert!(std::ptr::eq(reader.named(name).unwrap(), &*second.pool));
    agents.remove(name);
    assert!(reader.named(name).is_none());
}

#[tokio::test]
async fn a_caller_that_sends_for_itself_leaves_a_place_and_a_count() {
    let fixture = PoolFixture::new(1, round_robin()).await;
    let event = head("r");
    let call = fixture.pool.select(None, &event).unwrap();
    assert_eq!(fixture.pool.in_flight(), 1);
    call.answered(&Response::block(403), Duration::from_micros(7));
    assert_eq!(fixture.pool.in_flight(), 0);
    drop(fixture.pool.select(None, &event).unwrap());
    assert_eq!(fixture.pool.in_flight(), 0);
    let phase = fixture.pool.metrics().phase(event.kind());
    let counts = phase.answers.each_ref().map(|answers| answers.count());
    assert_eq!((DECISIONS[1], counts), ("block", [0, 1, 0, 0]));
    assert_eq!(phase.answers[1].quantile(1.0), Some(7));
    assert_eq!(phase.abandoned.value(), 1);
}
