//! Time that is over, agents that fail, and those that are away.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use hailwire_callout::{
    EventKind,
    control::{AgentHealth, HealthState, Notice},
    event::Configure,
    host::{ConnectOptions, ConnectionState, RequestError},
    pool::{AgentPool, Backoff, PoolConfig, PoolError, Timeouts, connect_with},
};
use hailwire_pool::{BreakerConfig, BreakerState};

use crate::system::{LONG, PoolFixture, Probe, asked, head, request_body, response_head};

const SOON: Duration = Duration::from_millis(20);

fn eager() -> PoolConfig {
    PoolConfig {
        reconnect: Backoff {
            first: Duration::from_millis(1),
            most: Duration::from_millis(2),
        },
        breaker: BreakerConfig {
            failures: 255,
            ..BreakerConfig::default()
        },
        ..PoolConfig::default()
    }
}

#[tokio::test]
async fn a_passed_timeout_leaves_nothing_in_flight_and_the_agent_hears_of_it() {
    let fixture = PoolFixture::new(2, eager()).await;
    fixture.hold(true);
    for request in 0..20 {
        let asked = fixture
            .pool
            .request(head(&format!("r{request}")), SOON)
            .await;
        assert_eq!(asked, Err(PoolError::Timeout));
    }
    assert_eq!(fixture.pool.in_flight(), 0);
    let cancelled = |agent: &Arc<Probe>| agent.cancelled.load(Ordering::SeqCst);
    let all_heard = |agents: &[Arc<Probe>]| agents.iter().map(cancelled).sum::<u32>() == 20;
    fixture.agents_have(all_heard).await;
    // Each took half of them, so the counts were right all the time.
    assert!(fixture.agents.iter().all(|agent| cancelled(agent) > 0));
    let timeouts = &fixture
        .pool
        .metrics()
        .phase(EventKind::RequestHeaders)
        .failures[0];
    assert_eq!(timeouts.value(), 20);
}

#[tokio::test]
async fn a_dropped_ask_leaves_nothing_in_flight_and_the_agent_hears_of_it() {
    let fixture = PoolFixture::new(1, eager()).await;
    fixture.hold(true);
    let asking = fixture.begin(head("r")).await;
    assert_eq!(fixture.pool.in_flight(), 1);
    asking.abort();
    let hears = |agents: &[Arc<Probe>]| agents[0].cancelled.load(Ordering::SeqCst) == 1;
    fixture.agents_have(hears).await;
    assert_eq!(fixture.pool.in_flight(), 0);
    let phase = fixture.pool.metrics().phase(EventKind::RequestHeaders);
    assert_eq!(phase.abandoned.value(), 1);
}

#[tokio::test]
async fn a_phase_has_its_own_timeout_and_the_lesser_one_counts() {
    let timeouts = Timeouts::all(LONG).with(EventKind::ResponseHeaders, SOON);
    let fixture = PoolFixture::new(
        1,
        PoolConfig {
            timeouts,
            ..eager()
        },
    )
    .await;
    fixture.hold(true);
    let started = Instant::now();
    assert_eq!(
        fixture.request(response_head("r")).await,
        Err(PoolError::Timeout)
    );
    let asked = fixture.pool.request(head("r"), SOON).await;
    assert_eq!(asked, Err(PoolError::Timeout));
    assert!(started.elapsed() < LONG);
}

#[tokio::test]
async fn a_degraded_agent_stretches_its_time_as_far_as_it_may() {
    let degraded = |by| {
        Notice::Health(AgentHealth {
            state: HealthState::Degraded,
            timeout_multiplier: Some(by),
            ..AgentHealth::default()
        })
    };
    let health_of = |fixture: &PoolFixture| match fixture.pool.connections()[0].map(|of| of.state) {
        Some(ConnectionState::Open { health, .. }) => Some(health),
        _ => None,
    };
    // What it says; how far it may; what is less than what an ask takes, and more.
    for (says, stretch, least, most) in [
        (1000.0, 1.0, SOON, SOON * 500),
        (1000.0, 5.0, SOON * 5, SOON * 500),
        (3.0, 10.0, SOON * 3, SOON * 500),
        (f32::NAN, 10.0, SOON, SOON * 500),
        (0.01, 10.0, SOON, SOON * 500),
    ] {
        let config = PoolConfig { stretch, ..eager() };
        let fixture = PoolFixture::new(1, config).await;
        fixture.agents[0].tell(&degraded(says));
        fixture
            .pool_has(|_| health_of(&fixture) == Some(HealthState::Degraded))
            .await;
        fixture.hold(true);
        let started = Instant::now();
        let asked = fixture.pool.request(head("r"), SOON).await;
        assert_eq!(asked, Err(PoolError::Timeout));
        let took = started.elapsed();
        assert!(took >= least && took < most, "{says} {stretch}: {took:?}");
        // It is well again.
        fixture.agents[0].tell(&Notice::Health(AgentHealth::default()));
        fixture
            .pool_has(|_| health_of(&fixture) == Some(HealthState::Healthy))
            .await;
        let started = Instant::now();
        let asked = fixture.pool.request(head("s"), SOON).await;
        assert_eq!(asked, Err(PoolError::Timeout));
        assert!(started.elapsed() < SOON * 500);
    }
}

#[tokio::test]
async fn the_breaker_opens_lets_one_probe_in_and_closes() {
    let breaker = BreakerConfig {
        open: Duration::from_millis(200),
        ..BreakerConfig::default()
    };
    let fixture = PoolFixture::new(1, PoolConfig { breaker, ..eager() }).await;
    fixture.hold(true);
    for request in 0..5 {
        let asked = fixture
            .pool
            .request(head(&format!("r{request}")), SOON)
            .await;
        assert_eq!(asked, Err(PoolError::Timeout));
    }
    assert_eq!(fixture.request(head("open")).await, Err(PoolError::Down));
    assert_eq!(fixture.asked(), 5, "nothing reaches the agent");

    let probe = loop {
        let pool = Arc::clone(&fixture.pool);
        let mut asking = tokio::spawn(async move { pool.request(head("probe"), LONG).await });
        tokio::select! {
            refused = &mut asking => assert_eq!(refused.unwrap(), Err(PoolError::Down)),
            () = fixture.agents_have(|agents| asked(agents) == 6) => break asking,
        }
    };
    assert_eq!(fixture.pool.breaker(), BreakerState::HalfOpen);
    assert_eq!(fixture.request(head("second")).await, Err(PoolError::Down));
    fixture.hold(false);
    assert!(probe.await.unwrap().is_ok());
    assert_eq!(fixture.request(head("third")).await, Ok(0));
    assert_eq!(fixture.pool.breaker(), BreakerState::Closed);
}

#[tokio::test]
async fn a_body_does_not_change_its_connection_in_the_middle() {
    let fixture = PoolFixture::new(2, eager()).await;
    let slot = fixture.request(head("r")).await.unwrap();
    assert_eq!(fixture.request(request_body("r", 0)).await, Ok(slot));
    let ended = fixture.pool.metrics().disconnected.value();
    fixture.agents[slot].hang_up();
    fixture
        .pool_has(|pool| pool.metrics().disconnected.value() > ended && pool.available() == 2)
        .await;
    // There are two connections again, one of them in the same slot, and neither has seen the beginning.
    let lost = Err(PoolError::Failed(RequestError::Closed));
    assert_eq!(fixture.request(request_body("r", 1)).await, lost);
    // The next phase begins anew, and stays where it begins.
    let next = fixture.request(response_head("r")).await.unwrap();
    assert_eq!(fixture.request(response_head("r")).await, Ok(next));
    assert_eq!(fixture.pool.metrics().displaced.value(), 1);
}

#[tokio::test]
async fn whoever_waits_when_a_connection_ends_hears_it_at_once() {
    let fixture = PoolFixture::new(1, eager()).await;
    fixture.hold(true);
    let asking = fixture.begin(head("r")).await;
    fixture.agents[0].hang_up();
    let lost = Err(PoolError::Failed(RequestError::Closed));
    assert_eq!(asking.await.unwrap(), lost);
    fixture.hold(false);
    fixture.has_available(1).await;
    assert_eq!(fixture.request(head("s")).await, Ok(0));
}

#[tokio::test]
async fn an_agent_that_is_away_is_tried_for_ever() {
    let fixture = PoolFixture::away(eager());
    assert_eq!(fixture.request(head("r")).await, Err(PoolError::Down));
    fixture
        .pool_has(|_| fixture.attempts.load(Ordering::SeqCst) > 50)
        .await;
    fixture.away.store(false, Ordering::SeqCst);
    assert!(fixture.pool.ready(LONG).await);
    assert_eq!(fixture.request(head("r")).await, Ok(0));
}

#[tokio::test]
async fn the_first_ask_waits_for_the_first_connection() {
    let fixture = PoolFixture::away(eager());
    fixture.away.store(false, Ordering::SeqCst);
    // The keepers have not run yet: nothing was awaited.
    assert_eq!(fixture.pool.available(), 0);
    assert_eq!(fixture.request(head("r")).await, Ok(0));
}

#[tokio::test]
async fn an_agent_that_never_answers_the_handshake_is_given_up() {
    let connect = connect_with("nowhere", |_| Box::pin(std::future::pending()));
    let config = PoolConfig {
        connect: ConnectOptions {
            connect_timeout: Duration::ZERO,
            ..ConnectOptions::default()
        },
        ..eager()
    };
    let pool = AgentPool::new("silent", Arc::new(connect), config);
    let asked = pool.request(head("r"), Duration::from_secs(10)).await;
    assert!(matches!(asked, Err(PoolError::Down | PoolError::Timeout)));
    let failed_twice = pool.wait_until(|pool| pool.metrics().connect_failed.value() >= 2);
    tokio::time::timeout(LONG, failed_twice).await.unwrap();
}

#[tokio::test]
async fn a_configuration_is_told_on_every_connection_and_a_refusal_is_said() {
    let fixture = PoolFixture::new(3, eager()).await;
    let push = |accept: bool| Configure {
        correlation_id: "c1".into(),
        config: serde_json::json!({ "accept": accept }),
        config_version: None,
    };
    assert_eq!(fixture.pool.configure(push(true)).await, Ok(()));
    for agent in &fixture.agents {
        assert_eq!(agent.configured.load(Ordering::SeqCst), 1);
    }
    let refused = fixture.pool.configure(push(false)).await;
    assert!(matches!(
        refused,
        Err(PoolError::Failed(RequestError::Refused(_)))
    ));
}

#[tokio::test]
async fn connections_end_with_the_pool() {
    let mut fixture = PoolFixture::new(2, eager()).await;
    fixture.end_pool();
    fixture.agents_are_alone().await;
}
