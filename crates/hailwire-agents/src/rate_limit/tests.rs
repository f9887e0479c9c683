use std::time::Duration;

use governor::clock::FakeRelativeClock;
use hailwire_callout::event::Metadata;
use serde_json::json;

use super::*;

fn limiter(limits: &[&str]) -> (RateLimitAgent<FakeRelativeClock>, FakeRelativeClock) {
    let clock = FakeRelativeClock::default();
    let settings = RateLimitSettings::of(limits.iter().copied()).unwrap();
    (RateLimitAgent::with_clock(settings, clock.clone()), clock)
}

fn request(ip: &str, route: Option<&str>, headers: &[(&str, &str)]) -> RequestHeaders {
    let metadata = Metadata {
        correlation_id: "c",
        client_ip: ip,
        route_id: route,
        ..Metadata::default()
    };
    RequestHeaders::new(&metadata, "GET", "/", headers.iter().copied())
}

fn passes(agent: &RateLimitAgent<FakeRelativeClock>, event: &RequestHeaders) -> bool {
    agent.decide(event).decision == Decision::Allow
}

#[test]
fn a_burst_passes_and_then_the_rate_is_kept() {
    let (agent, clock) = limiter(&["10/s burst 3 per client-ip"]);
    let event = request("192.0.2.1", None, &[]);
    let first: Vec<bool> = (0..5).map(|_| passes(&agent, &event)).collect();
    assert_eq!(first, [true, true, true, false, false]);
    for _ in 0..20 {
        clock.advance(Duration::from_millis(100));
        assert!(passes(&agent, &event));
        assert!(!passes(&agent, &event));
    }
    assert_eq!(agent.refused(), 22);
}

#[test]
fn each_client_has_its_own_count_and_an_ipv6_network_is_one_client() {
    let (agent, _) = limiter(&["1/m per client-ip"]);
    let from = |ip| passes(&agent, &request(ip, None, &[]));
    assert!(from("192.0.2.1") && from("192.0.2.2") && !from("192.0.2.1"));
    assert!(!from("::ffff:192.0.2.2"), "a mapped address is the address");
    assert!(from("2001:db8::1") && !from("2001:db8::2") && from("2001:db8:0:1::1"));
}

#[test]
fn header_route_and_global_are_counted_by_what_they_say() {
    let (agent, _) = limiter(&["1/m per header:x-key"]);
    let key = |value| passes(&agent, &request("", None, &[("X-Key", value)]));
    assert!(key("a") && key("b") && !key("a"));
    let without = request("", None, &[]);
    assert!(passes(&agent, &without) && !passes(&agent, &without));

    let (agent, _) = limiter(&["1/m per route"]);
    let route = |name| passes(&agent, &request("", Some(name), &[]));
    assert!(route("a") && route("b") && !route("a"));

    let (agent, _) = limiter(&["1/m per global"]);
    assert!(passes(&agent, &request("192.0.2.1", None, &[])));
    assert!(!passes(&agent, &request("192.0.2.2", Some("x"), &[])));
}

#[test]
fn a_refusal_says_when_to_come_again_and_which_limit_it_was() {
    let (agent, clock) = limiter(&["100/s per global", "2/m per client-ip"]);
    let event = request("192.0.2.1", None, &[]);
    assert!(passes(&agent, &event) && passes(&agent, &event));
    clock.advance(Duration::from_secs(10));
    let response = agent.decide(&event);
    let Decision::Block {
        status, headers, ..
    } = response.decision
    else {
        panic!("{response:?}");
    };
    assert_eq!(status, 429);
    assert_eq!(headers["retry-after"], "20");
    assert_eq!(
        headers["ratelimit"],
        "\"by-global\";r=99;t=1, \"by-client-ip\";r=0;t=20"
    );
    assert_eq!(
        headers["ratelimit-policy"],
        "\"by-global\";q=100;w=1, \"by-client-ip\";q=2;w=60"
    );
    assert_eq!(response.audit.rule_ids, ["by-client-ip"]);
    assert_eq!(response.audit.reason_codes, ["RATE_LIMITED"]);
}

#[test]
fn what_passes_carries_what_is_left() {
    let (agent, _) = limiter(&["3/m per client-ip"]);
    let response = agent.decide(&request("192.0.2.1", None, &[]));
    let set = |name: &str, value: &str| HeaderOp::Set {
        name: name.into(),
        value: value.into(),
    };
    let expected = [
        set("ratelimit", "\"by-client-ip\";r=2;t=20"),
        set("ratelimit-policy", "\"by-client-ip\";q=3;w=60"),
    ];
    assert_eq!(response.response_headers, expected);
}

#[test]
fn idle_keys_are_dropped_and_new_keys_in_a_full_table_are_counted_separately() {
    let clock = FakeRelativeClock::default();
    let settings = RateLimitSettings {
        keys: 64,
        ..RateLimitSettings::of(["1/s burst 2 per header:k"]).unwrap()
    };
    let agent = RateLimitAgent::with_clock(settings, clock.clone());
    let key = |n: u32| passes(&agent, &request("", None, &[("k", &n.to_string())]));
    assert!((0..100).all(key), "every key came once");
    assert!(agent.keys() <= 64);
    for n in 0..100 {
        let more = (0..10).filter(|_| key(n)).count();
        assert!(more <= 1, "{n} had two at once: {more}");
    }
    clock.advance(Duration::from_secs(60));
    assert!(key(1_000_000));
    assert_eq!(agent.keys(), 1);
}

#[test]
fn a_key_in_twenty_spellings_passes_as_often_as_in_one() {
    let spelling = |n: usize| -> Vec<(&str, &str)> {
        [
            vec![("x-key", "Secret One")],
            vec![("X-KEY", "SECRET ONE")],
            vec![("x-key", "  secret   one ")],
            vec![("x-key", "secret one"), ("x-key", "other")],
            vec![("x-key", "other"), ("x-key", "secret one")],
            vec![("x-key", "secret one, x")],
            vec![("x-key", ""), ("x-key", "secret\tone")],
        ][n % 7]
            .clone()
    };
    let (agent, _) = limiter(&["5/h per header:x-key"]);
    let passed = (0..20).filter(|n| passes(&agent, &request("", None, &spelling(*n))));
    assert!(passed.count() <= 5);
    let (agent, _) = limiter(&["5/h per client-ip"]);
    let address = [
        "192.0.2.7",
        "::ffff:192.0.2.7",
        "192.0.2.7:1",
        "[::ffff:c000:207]:2",
    ];
    let passed = (0..20).filter(|n| passes(&agent, &request(address[n % 4], None, &[])));
    assert_eq!(passed.count(), 5);
}

fn push(config: serde_json::Value) -> Configure {
    Configure {
        config,
        ..Configure::default()
    }
}

fn with(limits: &[&str], configure: Option<PushPolicy>) -> RateLimitAgent<FakeRelativeClock> {
    let settings = RateLimitSettings {
        configure,
        ..RateLimitSettings::of(limits.iter().copied()).unwrap()
    };
    RateLimitAgent::with_clock(settings, FakeRelativeClock::default())
}

#[tokio::test]
async fn limits_that_a_host_pushes_are_refused_unless_the_operator_says_otherwise() {
    let event = request("192.0.2.1", None, &[]);
    let agent = with(&["1/m per global"], None);
    assert!(passes(&agent, &event));
    for config in [
        json!({"limits": []}),
        json!({"limits": ["1000/s"]}),
        json!({"limits": "x"}),
    ] {
        let answer = agent.configure(push(config)).await;
        assert!(
            matches!(answer.decision, Decision::Block { .. }),
            "{answer:?}"
        );
        assert_eq!(answer.audit.reason_codes[0], "CONFIGURE_REFUSED");
    }
    // The limits in force, and no limits, change nothing.
    let same = agent
        .configure(push(json!({"limits": ["1/m per global"]})))
        .await;
    assert_eq!(same, Response::allow());
    assert_eq!(agent.configure(push(json!({}))).await, Response::allow());
    assert!(!passes(&agent, &event));
}

#[tokio::test]
async fn pushed_limits_may_tighten_and_lift_nothing_of_the_operators() {
    let event = request("192.0.2.1", None, &[]);
    let agent = with(&["5/m per global"], Some(PushPolicy::Tighten));
    assert_eq!((0..3).filter(|_| passes(&agent, &event)).count(), 3);
    for limits in [
        json!([]),
        json!(["1000/s"]),
        json!(["5/m per global"]),
        json!([]),
    ] {
        let answer = agent.configure(push(json!({ "limits": limits }))).await;
        assert_eq!(answer, Response::allow());
    }
    assert_eq!(
        (0..9).filter(|_| passes(&agent, &event)).count(),
        2,
        "counts go on"
    );
    let many: Vec<String> = (0..32).map(|n| format!("{}/s", n + 1)).collect();
    let answer = agent.configure(push(json!({ "limits": many }))).await;
    assert!(matches!(
        answer.decision,
        Decision::Block { status: 500, .. }
    ));
}

#[tokio::test]
async fn a_host_may_push_other_limits_where_it_is_let_and_wrong_ones_are_refused() {
    let event = request("192.0.2.1", None, &[]);
    for agent in [with(&["1/m"], Some(PushPolicy::Allow)), with(&[], None)] {
        let answer = agent.configure(push(json!({"limits": ["3/m"]}))).await;
        assert_eq!(answer, Response::allow());
        assert_eq!((0..5).filter(|_| passes(&agent, &event)).count(), 3);
        let answer = agent.configure(push(json!({"limits": ["3/moon"]}))).await;
        assert!(matches!(
            answer.decision,
            Decision::Block { status: 500, .. }
        ));
        let again = agent
            .configure(push(json!({"limits": ["3/m", "9/m"]})))
            .await;
        assert_eq!(again, Response::allow());
        assert!(!passes(&agent, &event), "counts go on");
    }
}
