use std::time::Duration;

use serde_json::json;

use super::*;
use crate::{
    EventKind,
    inspect::{AgentFault, BodyMode, FallbackAction},
};

fn good(text: &str) -> Config {
    Config::parse(text, Path::new("callout.kdl")).unwrap()
}

fn mistake(text: &str) -> (usize, usize, String, String) {
    match Config::parse(text, Path::new("callout.kdl")) {
        Err(ConfigError::Invalid {
            line,
            column,
            what,
            hint,
            ..
        }) => (line, column, what, hint),
        other => panic!("{text:?} gave {other:?}"),
    }
}

/// An agent with one setting more.
fn with(setting: &str) -> AgentConfig {
    let text = format!("agents {{ agent \"a\" {{ binary-uds \"/a\"; {setting} }} }}");
    good(&text).agents.swap_remove(0)
}

#[test]
fn what_operators_write_is_read() {
    let config = good(
        "agents { agent \"waf\" type=\"waf\" { binary-uds \"/run/hail/waf.sock\"; \
         events \"request_headers\" \"request_body\"; buffer-size 65536; timeout-ms 50; on-timeout \"block\" } }",
    );
    let agent = &config.agents[0];
    assert_eq!(agent.name, "waf");
    assert_eq!(agent.kind.as_deref(), Some("waf"));
    assert_eq!(
        agent.endpoints,
        [AgentEndpoint::BinaryUds("/run/hail/waf.sock".into())]
    );
    let events: Vec<EventKind> = agent.rule.events.unwrap().iter().collect();
    assert_eq!(events, [EventKind::RequestHeaders, EventKind::RequestBody]);
    for kind in EventKind::ALL {
        assert_eq!(agent.rule.phase(kind).timeout, Duration::from_millis(50));
        assert_eq!(
            agent.rule.on(kind, AgentFault::Timeout),
            FallbackAction::Block(504)
        );
    }
}

fn grpc(address: &str) -> AgentEndpoint {
    AgentEndpoint::Grpc {
        address: address.to_owned(),
        tls: None,
    }
}

#[test]
fn grpc_is_plain_or_has_what_tls_needs() {
    let endpoint = |text: &str| {
        let text = format!("agents {{ agent \"a\" {{ {text} }} }}");
        Config::parse(&text, Path::new("callout.kdl")).map(|mut config| {
            let mut agent = config.agents.swap_remove(0);
            agent.endpoints.swap_remove(0)
        })
    };
    assert_eq!(endpoint("grpc \"h:1\"").unwrap(), grpc("h:1"));
    let all =
        "grpc \"h:1\" { ca-cert \"/a\"; client-cert \"/b\"; client-key \"/c\"; server-name \"d\" }";
    assert_eq!(
        endpoint(all).unwrap(),
        AgentEndpoint::Grpc {
            address: "h:1".to_owned(),
            tls: Some(TlsFiles {
                ca: "/a".into(),
                identity: Some(("/b".into(), "/c".into())),
                name: Some("d".to_owned()),
            }),
        }
    );
    for (text, part) in [
        ("grpc \"h:1\" {}", "lacks `ca-cert`"),
        (
            "grpc \"h:1\" { ca-cert \"/a\"; client-key \"/b\" }",
            "lacks `client-cert`",
        ),
        ("grpc \"h:1\" { tls-insecure }", "not a setting of `grpc`"),
        (
            "binary-uds \"/a\" { ca-cert \"/a\" }",
            "no settings of its own",
        ),
    ] {
        let error = endpoint(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn an_agent_can_be_in_several_places() {
    let config = good(
        "agents { agent \"a\" { unix-socket path=\"/a\"; binary-uds \"/b\"; grpc address=\"http://h:1\"\n\
         grpc \"[::1]:2\"; reverse; reverse \"b\"; hail \"waf@edge-2\" } }\nlisten { reverse \"/r\" }",
    );
    assert_eq!(
        config.agents[0].endpoints,
        [
            AgentEndpoint::UnixSocket("/a".into()),
            AgentEndpoint::BinaryUds("/b".into()),
            grpc("h:1"),
            grpc("[::1]:2"),
            AgentEndpoint::Reverse("a".into()),
            AgentEndpoint::Reverse("b".into()),
            AgentEndpoint::Hail {
                agent: "waf".into(),
                node: "edge-2".into()
            },
        ]
    );
}

#[test]
fn a_phase_has_its_own_rule_wherever_it_stands() {
    let agent = with(
        "phase \"request_body\" { timeout-ms 7; on-error \"allow\" }; timeout-ms 50; on-error \"block\" 500; \
         chunk-timeout-ms 9; on-overload \"allow\"",
    );
    let body = agent.rule.phase(EventKind::RequestBody);
    assert_eq!(body.timeout, Duration::from_millis(7));
    let on = |kind, fault| agent.rule.on(kind, fault);
    assert_eq!(
        on(EventKind::RequestBody, AgentFault::Error),
        FallbackAction::Allow
    );
    assert_eq!(
        on(EventKind::RequestHeaders, AgentFault::Error),
        FallbackAction::Block(500)
    );
    assert_eq!(
        on(EventKind::RequestBody, AgentFault::Overload),
        FallbackAction::Allow
    );
    let timeout = |kind| agent.rule.phase(kind).timeout.as_millis();
    assert_eq!(timeout(EventKind::ResponseBody), 9);
    assert_eq!(timeout(EventKind::RequestHeaders), 50);

    let open = with("on-error \"block\"; failure-mode \"open\"");
    assert_eq!(
        open.rule.on(EventKind::RequestBody, AgentFault::Timeout),
        FallbackAction::Allow
    );
    assert_eq!(
        open.rule.on(EventKind::RequestBody, AgentFault::Error),
        FallbackAction::Block(503)
    );
}

#[test]
fn bodies_pools_and_breakers_are_read() {
    let agent = with(
        "request-body-mode \"buffer\"; max-request-body-bytes 7; max-response-body-bytes 8589934592\n\
         mode \"observe\"; dialect \"v1\"; connect-timeout-ms 9; max-concurrent-calls 12\n\
         pool { preset \"low_latency\"; strategy \"two_choices\"; connections 3; drain-timeout-ms 5; max-timeout-multiplier 6 }\n\
         circuit-breaker { failure-threshold 1; success-threshold 2; timeout-seconds 3; half-open-max-requests 4 }",
    );
    assert_eq!(agent.rule.request_body.mode, BodyMode::Buffer);
    assert_eq!(agent.rule.response_body.mode, BodyMode::Stream);
    assert_eq!(agent.rule.request_body.max, Some(7));
    assert_eq!(agent.rule.response_body.max, Some(8 << 30));
    assert!(agent.rule.observe);
    assert_eq!(agent.dialect, Some(Dialect::V1));
    assert_eq!(agent.connect_timeout, Duration::from_millis(9));
    assert_eq!(
        agent.pool,
        PoolSettings {
            preset: Preset::LowLatency,
            strategy: Some(Strategy::TwoChoices),
            connections: Some(3),
            max_in_flight: Some(12),
            stretch: Some(6),
            drain_timeout: Some(Duration::from_millis(5)),
        }
    );
    assert_eq!(
        agent.breaker,
        BreakerSettings {
            failures: Some(1),
            successes: Some(2),
            open_for: Some(Duration::from_secs(3)),
            trials: Some(4),
        }
    );
}

#[test]
fn the_configuration_of_an_agent_becomes_json() {
    let agent = with(
        "config { level 2; paranoid; ratio 0.5; off #false; names \"a\" \"b\"; rule \"x\" { id 1 }\n\
         rule \"y\"; rule \"z\"; limits key=\"ip\" { rate 5 } }",
    );
    assert_eq!(
        agent.config.unwrap(),
        json!({
            "level": 2, "paranoid": true, "ratio": 0.5, "off": false, "names": ["a", "b"],
            "rule": [{"id": 1, "values": ["x"]}, "y", "z"],
            "limits": {"key": "ip", "rate": 5},
        })
    );
}

#[test]
fn listeners_are_read_and_tokens_are_not_shown() {
    let config = good(
        "listen { ext-proc \"127.0.0.1:0\" \"[::1]:0\"; spoe \"127.0.0.1:1\" \"unix:/s\"; reverse \"/r\"\n\
         token \"sesame-open\"; on-unseen-body \"allow\"; metrics \"127.0.0.1:2\" }",
    );
    let spoe = config.listen.spoe.iter().map(ListenAddress::to_string);
    assert_eq!(spoe.collect::<Vec<_>>(), ["127.0.0.1:1", "unix:/s"]);
    assert_eq!(config.listen.ext_proc.len(), 2);
    assert_eq!(config.listen.tokens[0].secret(), "sesame-open");
    assert_eq!(config.listen.unseen_body, Some(FallbackAction::Allow));
    assert!(!format!("{config:?}").contains("sesame"));
}

#[test]
fn mistakes_have_their_place_and_a_hint() {
    let unknown = "agents {\n  agent \"a\" {\n    timout-ms 5\n  }\n}";
    let (line, column, what, hint) = mistake(unknown);
    assert_eq!((line, column), (3, 5));
    assert_eq!(what, "`timout-ms` is not a setting of `agent`");
    assert_eq!(hint, "did you mean `timeout-ms`?");
    for (text, part) in [
        ("agent \"a\"", "not a setting"),
        ("agents { agent \"a\" }", "agent `a` has no endpoint"),
        (
            "agents { agent \"a b\" { grpc \"h:1\" } }",
            "1 to 64 letters",
        ),
        ("agents { agent { grpc \"h:1\" } }", "exactly one value"),
        (
            "agents { agent \"a\" kind=\"x\" { grpc \"h:1\" } }",
            "no such property",
        ),
        (
            "agents { agent \"a\" { grpc \"h\" } }",
            "invalid address; use HOST:PORT",
        ),
        (
            "agents { agent \"a\" { hail \"h\" } }",
            "invalid address; use AGENT@NODE",
        ),
        (
            "agents { agent \"a\" { binary-uds \"\" } }",
            "1 to 107 bytes",
        ),
        (
            "agents { agent \"a\" { reverse } }",
            "`listen.reverse` is not set",
        ),
        (
            "agents { agent \"a\" { grpc \"h:1\" }; agent \"a\" { grpc \"h:1\" } }",
            "two agents",
        ),
        ("listen {}\nlisten {}", "set twice"),
        ("listen { token \"short\" }", "8 to 512 bytes"),
        ("listen { spoe \"here\" }", "use IP:PORT or unix:PATH"),
        ("listen { ext-proc \"unix:here\" }", "an absolute path"),
        ("agents {", "not KDL"),
    ] {
        let (_, _, what, _) = mistake(text);
        assert!(what.contains(part), "{text}: {what}");
    }
    for (setting, part) in [
        ("timeout-ms 0", "from 1 to 600000"),
        ("timeout-ms 5; timeout-ms 6", "set twice"),
        ("on-timeout \"pass\"", "\"allow\" or \"block\""),
        ("on-timeout \"block\" 200", "400 to 599"),
        ("on-timeout \"allow\" 503", "\"allow\" or \"block\""),
        ("mode \"shadow\"", "enforce or observe"),
        ("events", "at least one"),
        ("events \"request\"", "not an event"),
        ("events \"configure\"", "not an event"),
        (
            "phase \"log\" { on-luck \"allow\" }",
            "not a setting of `phase`",
        ),
        ("phase \"log\" {}; phase \"log\" {}", "set twice"),
        ("pool { strategy \"best\" }", "`strategy` is round_robin"),
        ("pool 4", "in braces"),
        ("dialect \"v3\"", "`dialect` is auto or crate"),
        ("buffer-size 9000000", "to 8388608"),
        ("circuit-breaker { failures 3 }", "not a setting"),
    ] {
        let text = format!("agents {{ agent \"a\" {{ grpc \"h:1\"; {setting} }} }}");
        let (_, _, what, _) = mistake(&text);
        assert!(what.contains(part), "{text}: {what}");
    }
}

#[test]
fn what_can_grow_has_a_bound() {
    let agents = |n: usize| -> String {
        let agents: String = (0..n)
            .map(|n| format!("agent \"a{n}\" {{ grpc \"h:1\" }}\n"))
            .collect();
        format!("agents {{ {agents} }}")
    };
    assert_eq!(good(&agents(Config::MAX_AGENTS)).agents.len(), 64);
    assert!(
        mistake(&agents(Config::MAX_AGENTS + 1))
            .2
            .contains("more than 64")
    );
    let endpoints = "grpc \"h:1\"\n".repeat(Config::MAX_ENDPOINTS);
    let text = format!("agents {{ agent \"a\" {{ grpc \"h:1\"; {endpoints} }} }}");
    assert!(mistake(&text).2.contains("more than 8 endpoints"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("callout.kdl");
    std::fs::write(&path, " ".repeat(MAX_FILE as usize + 1)).unwrap();
    assert!(matches!(Config::load(&path), Err(ConfigError::Read { .. })));
}

#[test]
fn the_reference_lists_every_setting_with_its_default() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/callout.md"
    );
    let text = std::fs::read_to_string(path).unwrap();
    for SettingRow {
        path,
        value,
        default,
        about,
    } in SETTINGS
    {
        let row = format!("| `{path}` | {value} | {default} | {about} |");
        assert!(text.contains(&row), "{row} is missing");
    }
}

#[test]
fn every_setting_that_is_read_is_in_the_list() {
    let listed = |path: &str| SETTINGS.iter().any(|setting| setting.path == path);
    let section = |name: &str| ["pool", "circuit-breaker"].contains(&name);
    for (section, name) in parse::names().filter(|(_, name)| !section(name)) {
        let path = format!("{section}.{name}");
        assert!(listed(&path), "{path}");
    }
}
