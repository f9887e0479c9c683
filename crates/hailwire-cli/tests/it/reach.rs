//! Who reaches whom: a node in each of the networks that people have, and every pair of them; and what becomes of a stream when the
//! network changes.

use std::fs;

use serde_json::Value;

use crate::{lab::possible, test_nodes::TestNodes};

/// One line for each pair; what is wrong is in the message, and the whole table in the output.
#[test]
fn every_pair_of_the_networks_that_people_have_meets_as_theory_says() {
    if !possible() {
        return;
    }
    let nodes = TestNodes::new();
    let out = nodes.path("reach");
    let folder = out.display().to_string();
    let ran = nodes.run(
        "none",
        &["--json", "bench", "reach", "--quick", "--out", &folder],
    );
    println!("{}", ran.stderr);
    if let Some(line) = ran
        .stderr
        .lines()
        .find(|line| line.starts_with("skipped: "))
    {
        hailwire_skip::skipped(line.trim_start_matches("skipped: "));
    }
    let lines = fs::read_to_string(out.join("reach.jsonl")).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let pairs: Vec<Value> = lines
        .filter_map(|mut line: Value| Some(line.get_mut("pair")?.take()))
        .collect();
    // 21 kinds with each other and themselves, and two whose hosts share a router; without the proxy's where it
    // is not installed.
    let with_proxy = pairs.iter().any(|pair| pair["to"] == "http-proxy");
    let kinds = if with_proxy { 21 } else { 20 };
    assert_eq!(pairs.len(), kinds * (kinds + 1) / 2 + 2);
    for pair in &pairs {
        assert_eq!(pair["failed"], Value::Null, "{pair}");
        assert_eq!(pair["path"], pair["expected"], "{pair}");
        // What it is to be within, the benchmark judges: here other tests run at the same time.
        assert!(pair["answered_ms"].as_f64().unwrap() < 10_000.0, "{pair}");
    }
}

#[test]
fn an_unknown_network_is_named() {
    let nodes = TestNodes::new();
    let ran = nodes.run("none", &["bench", "reach", "--only", "nat-hard"]);
    assert_ne!(ran.code, Some(0));
    assert!(
        ran.stderr.contains("no network is called `nat-hard`")
            && ran.stderr.contains("carrier-nat"),
        "{}",
        ran.stderr
    );
}

/// Those changes that are over in a moment; `hail bench changes` has more, which take minutes.
#[test]
fn a_stream_goes_on_when_nats_forget_udp_is_blocked_or_a_host_moves() {
    if !possible() {
        return;
    }
    let nodes = TestNodes::new();
    let folder = nodes.path("changes").display().to_string();
    let only = "rebind-near,rebind-both,udp-blocked,move";
    let args = [
        "--json", "bench", "changes", "--only", only, "--out", &folder,
    ];
    let ran = nodes.run("none", &args);
    println!("{}", ran.stderr);
    let lines = fs::read_to_string(nodes.path("changes").join("changes.jsonl")).unwrap();
    // Each with a direct path and relayed, but for UDP, which no relayed path has.
    assert_eq!(lines.lines().count(), 7);
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&row["broken"], &row["failed"]),
            (&Value::Null, &Value::Null)
        );
        // What each may take, the benchmark judges: here other tests run at the same time.
        for time in ["gap_ms", "new_call_ms"] {
            assert!(row[time].as_f64().unwrap() < 10_000.0, "{line}");
        }
        assert_eq!(
            (&row["lost"], &row["twice"]),
            (&0.into(), &0.into()),
            "{line}"
        );
    }
}
