use std::time::Duration;

use super::*;

fn mistake(text: &str) -> (usize, usize, String, String) {
    match Config::parse(text, Path::new("hail.kdl")) {
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

fn good(text: &str) -> Config {
    Config::parse(text, Path::new("hail.kdl")).unwrap()
}

#[test]
fn a_missing_file_is_the_default() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        Config::load(&folder.path().join(FILE_NAME)).unwrap(),
        Config::default()
    );
    assert_eq!(good(""), Config::default());
}

#[test]
fn every_setting_is_read() {
    let config = good(
        "node { name \"desk\" }\nlisten { udp \"0.0.0.0:4242\" \"[::]:4242\"; port-mapping #false }\n\
         hub \"https://hub.example.org\"\nhub \"http://127.0.0.1:8470\"\n\
         pool \"rule\"\nlimits { max-tunnels 7; grace \"1m30s\"; spin \"0s\" }\n\
         messages { attempts 9; pause \"20ms\"; longest-pause \"2h\"; keep \"3h\"; sender-quota messages=7; \
         agent-quota bytes=\"1TiB\"; total-quota messages=9 bytes=\"6GiB\" }\nlog { level \"debug\" }\n",
    );
    assert_eq!(config.node.name.unwrap().as_str(), "desk");
    assert_eq!(
        config.listen.udp,
        ["0.0.0.0:4242", "[::]:4242"].map(|a| a.parse().unwrap())
    );
    assert!(!config.listen.port_mapping && good("").listen.port_mapping);
    let hubs: Vec<String> = config.hubs.iter().map(ToString::to_string).collect();
    assert_eq!(
        hubs,
        ["https://hub.example.org:443", "http://127.0.0.1:8470"]
    );
    assert_eq!(config.pool, TunnelPool::Rule);
    assert_eq!(good("pool 4").pool, TunnelPool::Fixed(4));
    assert_eq!(config.limits.max_tunnels, 7);
    assert_eq!(config.limits.grace, Duration::from_secs(90));
    assert_eq!(config.limits.spin, Duration::ZERO);
    let messages = &config.messages;
    assert_eq!(
        (
            messages.attempts,
            messages.pause.as_millis(),
            messages.longest_pause.as_secs()
        ),
        (9, 20, 7200)
    );
    assert_eq!(messages.keep, Duration::from_secs(3 * 3600));
    let quotas = [
        messages.sender_quota,
        messages.agent_quota,
        messages.peer_quota,
        messages.total_quota,
    ];
    assert_eq!(
        quotas.map(|quota| quota.to_string()),
        [
            "messages=7 bytes=\"512MiB\"",
            "messages=100000 bytes=\"1TiB\"",
            "messages=100000 bytes=\"1GiB\"",
            "messages=9 bytes=\"6GiB\"",
        ]
    );
    assert_eq!(mistake("messages { attempts 0 }").0, 1);
    assert_eq!(mistake("messages { pause \"1ms\" }").0, 1);
    assert_eq!(config.log.level, LogLevel::Debug);
}

#[test]
fn a_peer_is_spoken_to_as_its_lines_say() {
    let key = hailwire_wire::NodeId::from_bytes([7; 32]).to_string();
    let config = good(&format!(
        "connection-attempt-delay \"100ms\"\npeer \"laptop\" {{ carrier \"h2\" }}\npeer \"{key}\" {{ carrier \"quic\" }}"
    ));
    assert_eq!(config.connection_attempt_delay, Duration::from_millis(100));
    let rules: Vec<String> = config
        .peers
        .iter()
        .map(|peer| format!("{} {}", peer.who, peer.carrier.name()))
        .collect();
    assert_eq!(rules, ["laptop h2".to_owned(), format!("{key} quic")]);
    assert_eq!(good(&config.to_kdl()), config);

    let what = |text: &str| mistake(text).2;
    assert_eq!(what("peer \"a\""), "`peer` says nothing about it");
    assert_eq!(
        what("peer { carrier \"h2\" }"),
        "`peer` takes a key or an alias"
    );
    let twice = "peer \"a\" { carrier \"h2\" }\npeer \"a\" { carrier \"ws\" }";
    assert_eq!(what(twice), "`peer` is set twice for a");
    assert!(what("peer \"a\" { carrier \"tcp\" }").contains("expected auto, quic, h2 or ws"));
    assert!(what("peer \"A B\" { carrier \"h2\" }").contains("`peer`"));
    assert!(what("peer \"a\" { streams 5 }").contains("not a setting of `peer`"));
    let many: String = (0..=Config::MAX_PEERS)
        .map(|n| format!("peer \"p{n}\" {{ carrier \"h2\" }}\n"))
        .collect();
    assert_eq!(what(&many), "more than 64 peers");
    for wrong in ["5ms", "3s"] {
        let text = format!("connection-attempt-delay \"{wrong}\"");
        assert_eq!(
            what(&text),
            "`connection-attempt-delay` must be from \"10ms\" to \"2s\""
        );
    }
}

#[test]
fn every_quic_setting_is_read() {
    let config = good(
        "quic { congestion \"bbr\"; streams 200; uni-streams 0; stream-window \"4MiB\"; window \"64MiB\"\n\
         send-window \"16MiB\"; initial-window \"0B\"; idle-timeout \"1m\"; path-silence \"2s\"; keep-alive \"2s\"\n\
         socket-buffer \"1MiB\"; cipher \"aes-256-gcm\"; ack-frequency #false\n\
         ack-delay \"5ms\"; ack-every 4; gso #false; mtu-discovery #false; mtu-max 9000\n\
         max-paths 12; zero-rtt #false; sessions 1024 }",
    );
    let quic = &config.quic;
    let default = QuicSettings::default();
    for ((path, value), (_, default)) in quic.values().into_iter().zip(default.values()) {
        assert_ne!(value, default, "{path}");
    }
    assert_eq!(good(&config.to_kdl()), config);
}

#[test]
fn a_value_says_where_it_comes_from() {
    let mut config = good("carrier \"h2\"\npool 4\nquic { streams 200 }\nhub \"https://a.b\"");
    config.origins.note("limits.grace", ValueOrigin::Flag);
    let rows = config.in_force();
    let row = |setting: &str| {
        let row = rows.iter().find(|row| row.setting == setting).unwrap();
        format!("{} {}", row.value, row.why)
    };
    assert_eq!(row("carrier"), "\"h2\" file");
    assert_eq!(row("pool"), "4 file");
    assert_eq!(row("quic.streams"), "200 file");
    assert_eq!(row("quic.window"), "\"128MiB\" default");
    assert_eq!(row("limits.grace"), "\"10s\" flag");
    assert_eq!(row("node.name"), "none default");
    assert_eq!(row("hub"), "\"https://a.b:443\" file");
    assert!(row("quic.migration").contains("engine"));
    for setting in SETTINGS {
        assert!(
            rows.iter().any(|row| row.setting == setting.path),
            "{}",
            setting.path
        );
    }
}

#[test]
fn what_is_written_reads_back_the_same() {
    for text in [
        "",
        "pool 4",
        "node { name \"desk\" }\npool \"rule\"\nhub \"https://a.b\"\nlimits { grace \"1h30m\" }",
    ] {
        let config = good(text);
        assert_eq!(good(&config.to_kdl()), config);
    }
}

#[test]
fn an_unknown_setting_is_answered_with_its_place_and_the_nearest_one() {
    let (line, column, what, hint) = mistake("node {\n    nmae \"desk\"\n}");
    assert_eq!((line, column), (2, 5));
    assert_eq!(what, "`nmae` is not a setting of `node`");
    assert_eq!(hint, "did you mean `name`?");
    assert_eq!(mistake("hubs \"https://x\"").3, "did you mean `hub`?");
    assert!(mistake("zzz").3.starts_with("known here: node, listen"));
}

#[test]
fn the_place_counts_characters_and_not_bytes() {
    let (line, column, ..) = mistake("// öäü\n/* é */ zzz");
    assert_eq!((line, column), (2, 9));
}

#[test]
fn wrong_values_say_what_was_expected() {
    for (text, part) in [
        ("node { name \"Big Desk\" }", "not a node name"),
        ("node { name 7 }", "`name` takes a string"),
        ("node \"desk\"", "takes its settings in braces"),
        ("listen { udp \"here\" }", "`udp`"),
        ("listen { udp }", "takes 1 to 8 values"),
        ("hub \"ftp://x\"", "URL is expected"),
        ("hub \"http://hub.example.org\"", "for loopback only"),
        ("hub", "exactly one value"),
        ("limits { max-tunnels 0 }", "at least 1"),
        ("limits { grace \"10\" }", "with its unit"),
        ("limits { grace \"1s\"; grace \"2s\" }", "set twice"),
        ("log { level \"loud\" }", "expected error, warn"),
        ("log { level a=\"info\" }", "no properties"),
        ("log {}\nlog {}", "set twice"),
        ("node {", "not KDL"),
        ("carrier \"tcp\"", "expected auto, quic, h2 or ws"),
        ("pool 0", "\"rule\" or a whole number from 1 to 1024"),
        ("pool 1025", "\"rule\" or a whole number from 1 to 1024"),
        ("pool \"many\"", "expected \"rule\" or a number"),
        ("pool #true", "\"rule\" or a whole number"),
        ("pool 2 3", "exactly one value"),
        ("listen { tcp 4242 }", "`tcp` takes a string"),
        (
            "quic { congestion \"reno\" }",
            "expected auto, cubic or bbr",
        ),
        ("quic { streams 99 }", "from 100 to 65536"),
        ("quic { window \"32\" }", "with its unit"),
        ("quic { window \"1MiB\" }", "from \"8MiB\" to \"1GiB\""),
        ("quic { window \"99999GiB\" }", "from \"8MiB\" to \"1GiB\""),
        ("quic { window \"99999999999GiB\" }", "with its unit"),
        ("messages { agent-quota 5 }", "is messages=, a whole number"),
        ("messages { agent-quota }", "and bytes=, a size"),
        ("messages { peer-quota messages=0 }", "at least 1"),
        (
            "messages { peer-quota bytes=\"1B\" }",
            "from \"1KiB\" to \"1TiB\"",
        ),
        (
            "messages { total-quota rows=5 }",
            "is messages=, a whole number",
        ),
        ("quic { stream-window \"64MiB\" }", "less than four times"),
        ("quic { ack-delay \"26ms\" }", "from \"1ms\" to \"25ms\""),
        ("quic { keep-alive \"6s\" }", "to \"5s\""),
        ("quic { path-silence \"16s\" }", "from \"1s\" to \"15s\""),
        ("quic { max-paths 4 }", "from 8 to 64"),
        ("quic { gso \"yes\" }", "#true or #false"),
    ] {
        let (_, _, what, _) = mistake(text);
        assert!(what.contains(part), "{text}: {what}");
    }
}

#[test]
fn more_than_eight_hubs_are_refused() {
    let text = "hub \"https://a.b\"\n".repeat(Config::MAX_HUBS + 1);
    assert_eq!(mistake(&text).0, Config::MAX_HUBS + 1);
}

#[test]
fn a_file_past_its_bound_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    std::fs::write(&path, " ".repeat(MAX_FILE as usize + 1)).unwrap();
    assert!(matches!(Config::load(&path), Err(ConfigError::Read { .. })));
}

#[test]
fn the_list_of_settings_states_the_true_defaults() {
    let text = Config::default().to_kdl();
    for setting in SETTINGS.iter().filter(|s| s.default != "none") {
        let name = setting.path.rsplit('.').next().unwrap();
        let indent = if setting.path.contains('.') {
            "    "
        } else {
            ""
        };
        let line = format!("{indent}{name} {}\n", setting.default);
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}

#[test]
fn the_reference_lists_every_setting_with_its_default() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/config.md"
    );
    let text = std::fs::read_to_string(path).unwrap();
    for SettingRow {
        path,
        value,
        default,
        about,
    } in SETTINGS
    {
        let row = format!("| `{path}` | {value} | `{default}` | {about} |");
        assert!(text.contains(&row), "{row} is missing");
    }
}
