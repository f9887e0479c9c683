//! What the agent says of itself, and what the pool makes of it.

use std::{collections::BTreeMap, time::Duration};

use hailwire_callout::{
    control::{AgentHealth, FlowControl, HealthState, Metric, MetricsReport, Notice},
    pool::{AgentPool, ConnectionStatus, PausedPolicy, PoolConfig, PoolError},
};
use hailwire_pool::{Availability, Strategy};

use crate::system::{LONG, PoolFixture, complete, head, request_body, response_head};

fn round_robin() -> PoolConfig {
    PoolConfig {
        strategy: Strategy::RoundRobin,
        ..PoolConfig::default()
    }
}

fn health(state: HealthState) -> Notice {
    Notice::Health(AgentHealth {
        state,
        ..AgentHealth::default()
    })
}

#[tokio::test]
async fn an_agent_that_drains_finishes_its_requests_and_gets_no_new_ones() {
    for state in [HealthState::Draining, HealthState::Unhealthy] {
        let fixture = PoolFixture::new(3, round_robin()).await;
        let slot = fixture.request(head("begun")).await.unwrap();
        fixture.agents[slot].tell(&health(state));
        fixture.has_available(2).await;
        for request in 0..12 {
            let other = fixture.request(head(&format!("r{request}"))).await.unwrap();
            assert_ne!(other, slot);
        }
        assert_eq!(fixture.request(request_body("begun", 0)).await, Ok(slot));
        assert_eq!(fixture.request(response_head("begun")).await, Ok(slot));

        fixture.agents[slot].tell(&health(HealthState::Healthy));
        fixture.has_available(3).await;
        let mut asked = Vec::new();
        for request in 0..3 {
            asked.push(fixture.request(head(&format!("s{request}"))).await.unwrap());
        }
        assert!(asked.contains(&slot), "it takes its turns again");
    }
}

#[tokio::test]
async fn a_degraded_agent_serves_only_where_no_other_can() {
    let fixture = PoolFixture::new(
        2,
        PoolConfig {
            max_concurrent: 1,
            ..round_robin()
        },
    )
    .await;
    fixture.agents[0].tell(&health(HealthState::Degraded));
    let is_fair = |status: &ConnectionStatus| status.availability == Availability::Degraded;
    fixture
        .pool_has(|pool| pool.connections().iter().flatten().any(is_fair))
        .await;
    for request in 0..6 {
        assert_eq!(fixture.request(head(&format!("r{request}"))).await, Ok(1));
    }
    fixture.hold(true);
    let first = fixture.begin(head("first")).await;
    let second = fixture.begin(head("second")).await;
    fixture.hold(false);
    assert_eq!(
        (first.await.unwrap(), second.await.unwrap()),
        (Ok(1), Ok(0))
    );
}

#[tokio::test]
async fn a_pause_on_every_connection_fails_new_requests_where_so_configured() {
    let fixture = PoolFixture::new(2, round_robin()).await;
    fixture.agents[0].tell(&Notice::Flow(FlowControl::Pause(None)));
    fixture.has_available(1).await;
    assert_eq!(fixture.request(head("r0")).await, Ok(1));
    assert_eq!(fixture.request(head("r1")).await, Ok(1));
    fixture.agents[1].tell(&Notice::Flow(FlowControl::Pause(None)));
    fixture.has_available(0).await;
    assert_eq!(fixture.request(head("r2")).await, Err(PoolError::Overload));
    fixture.agents[0].tell(&Notice::Flow(FlowControl::Resume(None)));
    assert!(fixture.pool.ready(LONG).await);
    assert_eq!(fixture.request(head("r3")).await, Ok(0));
    assert_eq!(fixture.pool.metrics().paused.value(), 2);
    assert_eq!(fixture.pool.metrics().resumed.value(), 1);
}

#[tokio::test]
async fn a_pause_holds_new_requests_back_where_so_configured() {
    let paused = PausedPolicy::Wait;
    let fixture = PoolFixture::new(
        1,
        PoolConfig {
            paused,
            ..round_robin()
        },
    )
    .await;
    fixture.agents[0].tell(&Notice::Flow(FlowControl::Pause(None)));
    fixture.has_available(0).await;
    let soon = Duration::from_millis(20);
    assert_eq!(
        fixture.pool.request(head("r0"), soon).await,
        Err(PoolError::Timeout)
    );
    assert_eq!(fixture.asked(), 0);

    let pool = std::sync::Arc::clone(&fixture.pool);
    let asking = tokio::spawn(async move { pool.request(head("r1"), LONG).await });
    tokio::task::yield_now().await;
    assert_eq!(fixture.pool.in_flight(), 1);
    fixture.agents[0].tell(&Notice::Flow(FlowControl::Resume(None)));
    assert!(asking.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_drain_lets_what_was_begun_end_and_takes_nothing_new() {
    let fixture = PoolFixture::new(2, round_robin()).await;
    let slot = fixture.request(head("begun")).await.unwrap();
    fixture.hold(true);
    let asking = fixture.begin(head("asking")).await;
    let pool = std::sync::Arc::clone(&fixture.pool);
    let draining = tokio::spawn(async move { pool.drain(LONG).await });
    let refused = async {
        while fixture.pool.select(None, &head("new")).is_ok() {
            fixture.pool.done("new");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, refused).await.unwrap();
    assert_eq!(fixture.request(head("new")).await, Err(PoolError::Down));

    fixture.hold(false);
    assert!(asking.await.unwrap().is_ok());
    fixture.pool.done("asking");
    assert_eq!(fixture.request(request_body("begun", 0)).await, Ok(slot));
    assert!(!draining.is_finished());
    assert_eq!(fixture.request(complete("begun")).await, Ok(slot));
    assert!(draining.await.unwrap());
    fixture.agents_are_alone().await;
}

#[tokio::test]
async fn a_drain_does_not_wait_for_ever() {
    let fixture = PoolFixture::new(1, round_robin()).await;
    assert_eq!(fixture.request(head("never-ends")).await, Ok(0));
    assert!(!fixture.pool.drain(Duration::from_millis(20)).await);
    assert_eq!(fixture.request(head("r")).await, Err(PoolError::Down));
    fixture.agents_are_alone().await;
}

#[tokio::test]
async fn what_the_agent_counts_is_exported_beside_what_the_pool_counts() {
    let fixture = PoolFixture::new(1, round_robin()).await;
    fixture.agents[0].tell(&Notice::Metrics(MetricsReport {
        counters: vec![Metric {
            name: "waf_rules_matched_total".to_owned(),
            labels: BTreeMap::from([("rule".to_owned(), "942100".to_owned())]),
            value: 7,
            ..Metric::default()
        }],
        ..MetricsReport::default()
    }));
    assert_eq!(fixture.request(head("r")).await, Ok(0));
    let expected = [
        r#"waf_rules_matched_total{agent="probe",rule="942100"} 7"#,
        r#"hailwire_callout_answers_total{agent="probe",phase="request_headers",decision="allow"} 1"#,
        r#"hailwire_callout_connections{agent="probe"} 1"#,
        r#"hailwire_callout_requests_bound{agent="probe"} 1"#,
    ];
    let exported = |pool: &AgentPool| {
        let text = pool.to_openmetrics();
        expected
            .iter()
            .all(|line| text.lines().any(|found| found == *line))
    };
    fixture.pool_has(exported).await;
}
