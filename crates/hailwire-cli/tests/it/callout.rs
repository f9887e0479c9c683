//! Inspection agents: served, attached, reloaded and tried out.

mod attached;
mod envoy;
mod reload;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use hailwire_callout::{
    Agent, Response, agent,
    event::{BodyChunk, Guardrail, RequestHeaders},
    guardrail::Findings,
};
use serde_json::Value;

use crate::test_nodes::{TestNodes, first_line};

/// A small firewall: it knows the probes, and looks at bodies across pieces.
#[derive(Default)]
struct Wall(std::sync::Mutex<std::collections::HashMap<String, String>>);

fn bad(text: &str) -> bool {
    let text = text.to_lowercase();
    let signs = [
        "union",
        "<script",
        "%3cscript",
        "../",
        "${jndi",
        "/etc/passwd",
        "+or+",
    ];
    signs.iter().any(|sign| text.contains(sign))
}

fn judged(is_bad: bool) -> Response {
    match is_bad {
        true => Response::block(403),
        false => Response::allow(),
    }
}

impl Agent for Wall {
    fn name(&self) -> &str {
        "wall"
    }

    fn limits(&self) -> hailwire_callout::capabilities::AgentLimits {
        hailwire_callout::capabilities::AgentLimits {
            max_body_size: 1 << 30,
            ..Default::default()
        }
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        let mut values = event.headers().iter().map(|(_, value)| value);
        judged(bad(event.uri()) || values.any(bad))
    }

    async fn request_body(&self, event: BodyChunk) -> Response {
        let mut ends = self.0.lock().unwrap();
        let end = ends.entry(event.correlation_id.to_string()).or_default();
        end.push_str(&String::from_utf8_lossy(&event.data));
        let found = bad(end);
        let keep = end.len().saturating_sub(64);
        end.drain(..keep);
        if event.is_last {
            ends.remove(&*event.correlation_id);
        }
        judged(found)
    }
}

/// A guardrail: it takes numbers out of texts, and finds one instruction.
struct Texts;

impl Agent for Texts {
    fn name(&self) -> &str {
        "texts"
    }

    async fn guardrail(&self, event: Guardrail) -> Response {
        let numbers = event.content.contains("4111");
        let redacted = numbers.then(|| event.content.replace(char::is_numeric, "*"));
        Findings {
            detected: numbers || event.content.contains("Ignore all"),
            redacted,
            ..Findings::default()
        }
        .answer()
    }
}

/// Serves the firewall at a socket for as long as the test runs.
fn wall(socket: &Path) {
    served(Wall::default(), socket);
}

fn served(agent: impl Agent, socket: &Path) {
    let socket = socket.to_owned();
    let (ready, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = agent::uds::UdsListener::bind(&socket).unwrap();
            ready.send(()).unwrap();
            let options = agent::ServeOptions::default();
            let _ = agent::uds::serve(Arc::new(agent), listener, &options).await;
        });
    });
    wait.recv().unwrap();
}

fn written(nodes: &TestNodes, name: &str, text: &str) -> String {
    let path = nodes.path(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// `hail callout serve`, and what it says first.
fn serving(nodes: &mut TestNodes, node: &str, config: &str) -> Value {
    let mut command = nodes.hail(node, &["--json", "callout", "serve", "--config", config]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let line = first_line(&mut child);
    nodes.keep(child);
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_configuration_with_a_firewall_passes_its_test_and_one_that_forbids_too_little_does_not_hide_it()
 {
    let nodes = TestNodes::new();
    let socket = nodes.path("wall.sock");
    wall(&socket);
    let guarded = written(
        &nodes,
        "guarded.kdl",
        &format!(
            "agents {{ agent \"waf\" type=\"waf\" {{ binary-uds {socket:?}; timeout-ms 1500; \
             events \"request_headers\" \"request_body\"\n\
             phase \"request_body\" {{ on-error \"allow\" }} }} }}"
        ),
    );
    let args = ["callout", "test", "--json", "--config", guarded.as_str()];
    let report = nodes.run("a", &args).ok().json();
    assert_eq!(
        (&report["ready"], &report["forbidden"]),
        (&true.into(), &0.into())
    );
    assert_eq!(report["unexpected"], 0, "{report:#}");
    let rows = report["rows"].as_array().unwrap();
    let row = |probe: &str, at: &str| {
        let found = rows
            .iter()
            .find(|row| row["probe"] == probe && row["at"] == at);
        found.unwrap_or_else(|| panic!("{probe} {at}: {report:#}"))
    };
    let outcome = |probe, at| row(probe, at)["outcome"].as_str().unwrap().to_owned();
    assert_eq!(outcome("a harmless request", ""), "passed");
    assert_eq!(outcome("SQL in the query", ""), "blocked 403");
    assert_eq!(
        outcome("SQL across two chunks of the body", ""),
        "blocked 403"
    );
    assert_eq!(outcome("a body of 10 MB", ""), "passed");
    assert_eq!(outcome("a body of 100 MB", ""), "passed");
    assert_eq!(outcome("SQL at the end of 10 MB", ""), "blocked 403");
    assert_eq!(outcome("slow agent", "request_headers"), "blocked 504");
    assert_eq!(
        outcome("slow agent", "request_body_chunk, mid-body"),
        "blocked 504"
    );
    assert_eq!(outcome("crashing agent", "request_headers"), "blocked 503");
    for wrong in ["crashing agent", "lying agent", "garbling agent"] {
        let at = "request_body_chunk, mid-body";
        assert_eq!(outcome(wrong, at), "passed", "{wrong}");
        assert_eq!(row(wrong, at)["forbidden"], false);
    }
    let took = row("a body of 100 MB", "")["took"].as_array().unwrap();
    assert_eq!(took[1][0], "request_body_chunk");
    assert!(took[1][1].as_u64().unwrap() > 0);

    // An agent that is not there, and is let be: hostile requests pass a firewall.
    let open = written(
        &nodes,
        "open.kdl",
        "agents { agent \"waf\" type=\"waf\" { binary-uds \"/nonexistent/a.sock\"; timeout-ms 50; failure-mode \"open\" } }",
    );
    let ran = nodes.run(
        "a",
        &["callout", "test", "--small", "--json", "--config", &open],
    );
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    let report = ran.json();
    assert_eq!(report["ready"], false);
    assert!(report["forbidden"].as_u64().unwrap() >= 5 && report["bypasses"].as_u64().unwrap() > 0);

    // One that is not there, and without which nothing passes: what is harmless is blocked, and that is a failure too.
    let closed = written(
        &nodes,
        "closed.kdl",
        "agents { agent \"waf\" type=\"waf\" { binary-uds \"/nonexistent/a.sock\"; timeout-ms 50 } }",
    );
    let args = ["callout", "test", "--small", "--json", "--config", &closed];
    let ran = nodes.run("a", &args);
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    let report = ran.json();
    assert_eq!(
        (&report["ready"], &report["forbidden"]),
        (&false.into(), &0.into())
    );
    assert!(report["unexpected"].as_u64().unwrap() > 0, "{report:#}");
    assert!(
        ran.stderr.contains("not every agent is connected, and "),
        "{ran:#?}"
    );
}

/// The rows of `hail callout test` by what was tried and where: their outcome and what was expected.
fn tried(report: &Value) -> BTreeMap<(&str, &str), (&str, &str)> {
    fn text<'a>(row: &'a Value, field: &str) -> &'a str {
        row[field].as_str().unwrap()
    }
    let row = |row| {
        let at = (text(row, "probe"), text(row, "at"));
        (at, (text(row, "outcome"), text(row, "expected")))
    };
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_guardrail_is_tried_with_texts_and_where_it_goes_wrong() {
    let nodes = TestNodes::new();
    let socket = nodes.path("texts.sock");
    served(Texts, &socket);
    let path = written(
        &nodes,
        "texts.kdl",
        &format!(
            "agents {{ agent \"texts\" type=\"guardrail\" {{ binary-uds {socket:?}; timeout-ms 1500\n\
             events \"guardrail\"; phase \"guardrail\" {{ on-timeout \"allow\"; on-error \"block\" 418 }} }} }}"
        ),
    );
    let args = ["callout", "test", "--small", "--json", "--config", &path];
    let report = nodes.run("a", &args).ok().json();
    let rows = tried(&report);
    let expected = [
        ("a harmless text for a model", "", "passed", "passed"),
        (
            "instructions in a text for a model",
            "",
            "blocked 403",
            "blocked or redacted",
        ),
        (
            "personal data in a text from a model",
            "",
            "redacted",
            "blocked or redacted",
        ),
        ("slow agent", "guardrail_inspect", "passed", "passed"),
        (
            "lying agent",
            "guardrail_inspect",
            "blocked 418",
            "blocked 418",
        ),
        (
            "crashing agent",
            "guardrail_inspect",
            "blocked 418",
            "blocked 418",
        ),
    ];
    for (probe, at, outcome, expected) in expected {
        assert_eq!(rows[&(probe, at)], (outcome, expected), "{probe}");
    }
    assert_eq!(report["forbidden"], 0);
}

#[test]
fn an_agent_that_is_full_or_has_paused_is_decided_on_as_configured() {
    let nodes = TestNodes::new();
    let socket = nodes.path("wall.sock");
    wall(&socket);
    let config = |preset: &str| {
        format!(
            "agents {{ agent \"wall\" {{ binary-uds {socket:?}; timeout-ms 1500; pool {{ preset {preset:?} }}\n\
             events \"request_headers\" \"request_body\" \"response_headers\"\n\
             on-overload \"block\" 429; phase \"response_headers\" {{ on-overload \"allow\" }} }} }}"
        )
    };
    // What is new is refused at once; pieces of a body that has begun wait, as everything does with some presets.
    let at_once = [
        ("full agent", "request_headers", "blocked 429"),
        ("full agent", "request_body_chunk", "blocked 504"),
        ("full agent", "request_body_chunk, mid-body", "blocked 504"),
        ("full agent", "response_headers", "passed"),
        ("paused agent", "request_headers", "blocked 429"),
    ];
    let waiting = [
        ("full agent", "request_headers", "blocked 429"),
        ("full agent", "request_body_chunk", "blocked 504"),
        ("full agent", "response_headers", "blocked 504"),
        ("paused agent", "request_headers", "blocked 504"),
    ];
    for (preset, expected) in [("default", &at_once[..]), ("high_throughput", &waiting)] {
        let path = written(&nodes, "full.kdl", &config(preset));
        let args = ["callout", "test", "--small", "--json", "--config", &path];
        let report = nodes.run("a", &args).ok().json();
        let rows = tried(&report);
        for (probe, at, outcome) in expected {
            assert_eq!(
                rows[&(*probe, *at)],
                (*outcome, *outcome),
                "{preset}: {probe} {at}"
            );
        }
        let paused = rows.keys().filter(|(probe, _)| *probe == "paused agent");
        assert_eq!((paused.count(), &report["forbidden"]), (1, &0.into()));
        let args = ["callout", "test", "--small", "--config", &path];
        let table = nodes.run("a", &args).ok().stdout;
        let last = table.lines().last().unwrap();
        let healthy = last.starts_with("all ") && last.contains(" probes behaved as configured: ");
        assert!(healthy, "{table}");
        let line = table.lines().find(|line| line.contains("full agent"));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        let said = "- wall full agent request_headers blocked 429 blocked 429 request_headers";
        assert!(words.join(" ").starts_with(said), "{table}");
    }
}

#[test]
fn a_mistake_in_the_configuration_has_its_place_and_a_hint() {
    let nodes = TestNodes::new();
    let path = written(
        &nodes,
        "bad.kdl",
        "agents {\n  agent \"a\" { timout-ms 5 }\n}\n",
    );
    for command in ["serve", "test"] {
        let ran = nodes.run("a", &["callout", command, "--config", &path]);
        assert_eq!(ran.code, Some(67), "{ran:#?}");
        assert!(ran.stderr.contains("bad.kdl:2:15: `timout-ms`"), "{ran:#?}");
        assert!(
            ran.stderr.contains("hint: did you mean `timeout-ms`?"),
            "{ran:#?}"
        );
    }
}

/// What a front's counters say.
fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed().as_secs() < 20, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_configuration_is_read_anew_when_the_file_changes_and_a_mistake_changes_nothing() {
    let mut nodes = TestNodes::new();
    let socket = nodes.path("wall.sock");
    wall(&socket);
    let text = |name: &str| {
        format!(
            "agents {{ agent {name:?} {{ binary-uds {socket:?} }} }}\n\
             listen {{ ext-proc \"127.0.0.1:0\"; spoe \"127.0.0.1:0\"; metrics \"127.0.0.1:0\" }}\n"
        )
    };
    let path = written(&nodes, "callout.kdl", &text("first"));
    let at = serving(&mut nodes, "a", &path);
    assert_eq!(at["agents"], serde_json::json!(["first"]));
    let metrics = at["metrics"].as_str().unwrap().to_owned();
    for front in ["ext_proc", "spoe"] {
        TcpStream::connect(at[front][0].as_str().unwrap()).unwrap();
    }
    assert!(scrape(&metrics).contains("agent=\"first\""));
    fs::write(&path, "agents { agent }").unwrap();
    fs::write(&path, text("second-agent")).unwrap();
    until("the new agent is there", || {
        scrape(&metrics).contains("agent=\"second-agent\"")
    });
}

#[test]
fn an_attached_agent_is_asked_from_another_node() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("edge-2", "edge-1");
    let socket = nodes.path("wall.sock");
    wall(&socket);
    let args = ["--json", "callout", "agent", "--name", "waf", "--uds"];
    let mut command = nodes.hail("edge-2", &args);
    let mut child: Child = command.arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
    assert!(first_line(&mut child).contains("\"attached\":\"waf\""));
    nodes.keep(child);
    let path = written(
        &nodes,
        "far.kdl",
        "agents { agent \"waf\" type=\"waf\" { hail \"waf@edge-2\"; timeout-ms 5000; events \"request_headers\" \"request_body\" } }",
    );
    let ran = nodes.run(
        "edge-1",
        &["callout", "test", "--small", "--json", "--config", &path],
    );
    let report = ran.ok().json();
    assert_eq!(
        (&report["ready"], &report["forbidden"]),
        (&true.into(), &0.into())
    );
    assert_eq!(report["unexpected"], 0, "{report:#}");
    let rows = report["rows"].as_array().unwrap();
    let sql = rows
        .iter()
        .find(|row| row["probe"] == "SQL in the query")
        .unwrap();
    assert_eq!(sql["outcome"], "blocked 403");
}

#[test]
fn a_program_that_is_attached_is_told_its_socket() {
    let mut nodes = TestNodes::new();
    nodes.up("edge-2");
    let told = nodes.path("told");
    let script = format!("printf %s \"$HAIL_SOCKET\" > {}; sleep 60", told.display());
    let args = ["callout", "agent", "--name", "waf", "--exec", &script];
    let mut command: Command = nodes.hail("edge-2", &args);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    until("the program runs", || {
        fs::read_to_string(&told).is_ok_and(|socket| socket.ends_with("agent.sock"))
    });
    let socket = fs::read_to_string(&told).unwrap();
    wall(Path::new(&socket));
    let agents = || nodes.run("edge-2", &["agents", "--json"]).ok().stdout;
    until("it is attached", || agents().contains("\"waf\""));
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    let mut rest = String::new();
    let _ = stderr.read_line(&mut rest);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
}
