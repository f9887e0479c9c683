//! The firewall against the OWASP Core Rule Set's own tests: with the built-in rules, and with CRS itself.
//!
//! `HAILWIRE_CRS` names a directory with CRS's `REQUEST-*.conf` and `*.data`, `HAILWIRE_CRS_TESTS` a JSON file with its
//! regression tests, a list of objects: `rule`, `test`, `paranoia`, `hostile`, `method`, `uri`, `version`, `headers`, `data`.
//! Neither is part of this repository; without them the test is skipped.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use hailwire_agents::waf::{Waf, WafSettings};
use hailwire_callout::{
    Decision,
    event::{BodyChunk, Metadata, RequestHeaders},
};
use serde_json::Value;

fn decide(waf: &Waf, test: &Value) -> (bool, Vec<String>) {
    let text = |name: &str| test[name].as_str().unwrap_or_default();
    let metadata = Metadata {
        correlation_id: "c",
        client_ip: "127.0.0.1",
        protocol: text("version"),
        ..Metadata::default()
    };
    let headers = test["headers"].as_object().unwrap().iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default()));
    let head = RequestHeaders::new(&metadata, text("method"), text("uri"), headers);
    let now = Instant::now();
    let mut response = waf.head(&head, now);
    if let Some(data) = test["data"].as_str()
        && response.decision == Decision::Allow
    {
        let chunk = BodyChunk {
            correlation_id: "c".into(),
            data: data.as_bytes().to_vec().into(),
            is_last: true,
            total_size: None,
            index: 0,
            transferred: 0,
        };
        response = waf.chunk(&chunk, now);
    }
    let _ = waf.chunk(
        &BodyChunk {
            correlation_id: "c".into(),
            data: bytes::Bytes::new(),
            is_last: true,
            total_size: None,
            index: 0,
            transferred: 0,
        },
        now,
    );
    (
        response.decision != Decision::Allow,
        response.audit.rule_ids,
    )
}

#[test]
fn crs_tests_are_decided_as_the_report_says() {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let (Some(rules), Some(tests)) = (named("HAILWIRE_CRS"), named("HAILWIRE_CRS_TESTS")) else {
        hailwire_skip::skipped("HAILWIRE_CRS and HAILWIRE_CRS_TESTS name no copy of CRS");
        return;
    };
    let tests: Vec<Value> = serde_json::from_slice(&std::fs::read(tests).unwrap()).unwrap();
    for paranoia in [1, 2] {
        for rules in [None, Some(rules.clone())] {
            let waf = Waf::new(WafSettings {
                rules: rules.clone(),
                paranoia,
                ..WafSettings::default()
            })
            .unwrap();
            let plain = Waf::new(WafSettings {
                rules: rules.clone(),
                paranoia,
                ..WafSettings::default()
            });
            let plain = plain.unwrap().without_shortcuts();
            let report = waf.report();
            let name = if rules.is_some() { "CRS" } else { "built-in" };
            println!(
                "{name}, paranoia {paranoia}: {} rules used, {} above, {} skipped {:?}",
                report.used,
                report.above_paranoia,
                report.skipped.len(),
                report.reasons()
            );
            for (_, skipped) in &report.skipped {
                let id = skipped.id.unwrap_or_default();
                if !skipped.reason.starts_with("it decides nothing") {
                    println!("  skipped {id}: {}", skipped.reason);
                }
            }
            let mut families: BTreeMap<u64, [usize; 4]> = BTreeMap::new();
            let (mut exact, mut exact_of) = (0, 0);
            let mut list = Vec::new();
            for test in &tests {
                if test["paranoia"].as_u64().unwrap() > paranoia.into() {
                    continue;
                }
                let (blocked, ids) = decide(&waf, test);
                let sorted = |mut ids: Vec<String>| {
                    ids.sort();
                    ids
                };
                let (also, others) = decide(&plain, test);
                assert_eq!(
                    (blocked, sorted(ids.clone())),
                    (also, sorted(others)),
                    "shortcuts change nothing: {test}"
                );
                let rule = test["rule"].as_u64().unwrap();
                let hostile = test["hostile"] == true;
                let family = families.entry(rule / 1_000).or_default();
                let at = if hostile { 0 } else { 2 };
                family[at] += usize::from(blocked);
                family[at + 1] += 1;
                let named = ids.contains(&rule.to_string());
                exact += usize::from(named == hostile);
                exact_of += 1;
                if hostile != blocked {
                    list.push(format!(
                        "{rule}-{} {} {:?} {:?}",
                        test["test"], test["uri"], test["data"], ids
                    ));
                }
            }
            println!("  by family [hostile blocked, of, harmless blocked, of]: {families:?}");
            println!("  the test's own rule as expected: {exact} of {exact_of}");
            if std::env::var_os("HAILWIRE_CRS_LIST").is_some() {
                println!("{}", list.join("\n"));
            }
        }
    }
}
