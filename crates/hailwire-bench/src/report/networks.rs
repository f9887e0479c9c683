//! The contents of `network.jsonl` and `environment.json` as text.
//!
//! A check of the lab has a `network`, whether it is `within` its label, and `paths`, each with
//! `from`, `to`, the `label`, what `udp` and `tcp` measured and the `faults`. A check of another
//! shape is shown field by field, so that nothing is lost.

use serde_json::{Map, Value};

use super::figure;

/// One path of a network and what was measured through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedPath {
    /// The network's name, and the path where it has several.
    pub(crate) name: String,
    /// Whether it does what its label says; `None` where the check does not say.
    pub(crate) within: Option<bool>,
    /// What the check holds, by name.
    pub(crate) facts: Vec<(String, String)>,
}

/// The paths of a check.
pub(crate) fn checked(check: &Map<String, Value>) -> Vec<CheckedPath> {
    let name = ["network", "topology", "name"];
    let name = name
        .iter()
        .find(|key| check.get(**key).is_some_and(Value::is_string));
    let title = name.and_then(|key| check.get(*key)?.as_str());
    let title = title.unwrap_or("without a name").to_owned();
    let within = check.get("within").and_then(Value::as_bool);
    let known = |key: &str| key == "within" || key == "paths" || Some(key) == name.copied();
    let own: Vec<(String, String)> = check
        .iter()
        .filter(|(key, _)| !known(key))
        .map(|(key, value)| (key.replace('_', " "), fact(key, value)))
        .collect();
    let paths = check.get("paths").and_then(Value::as_array);
    let paths: Vec<&Map<String, Value>> = paths
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .collect();
    if paths.is_empty() {
        let facts = own;
        return vec![CheckedPath {
            name: title,
            within,
            facts,
        }];
    }
    let one = |path: &&Map<String, Value>| {
        let end = |key: &str| path.get(key).and_then(Value::as_str).unwrap_or("?");
        let faults = path.get("faults").and_then(Value::as_array);
        let mut facts = own.clone();
        let shown = ["label", "udp", "tcp", "faults"];
        facts.extend(shown.iter().filter_map(|key| {
            let value = path.get(*key).filter(|value| !value.is_null())?;
            Some(((*key).to_owned(), fact(key, value)))
        }));
        CheckedPath {
            name: format!("{title}, {} to {}", end("from"), end("to")),
            within: faults.map(Vec::is_empty).or(within),
            facts,
        }
    };
    paths.iter().map(one).collect()
}

/// A named value, formatted for people.
pub(crate) fn fact(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.into(),
        Value::Number(number) => {
            let value = number.as_f64().unwrap_or_default();
            match name.split('_').next() {
                Some("loss") => figure::text("loss_share", value),
                Some("rate") => figure::text("megabits_per_s", value / 1e6),
                _ if number.is_u64() || number.is_i64() => whole(name, value, number),
                _ => figure::text(name, value),
            }
        }
        Value::Array(values) if values.is_empty() => "none".into(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| fact(name, value)).collect();
            values.join(", ")
        }
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| format!("{}: {}", word(name), fact(name, value)))
            .collect::<Vec<_>>()
            .join("; "),
    }
}

/// A whole number: with its unit where its name has one, else as it stands.
fn whole(name: &str, value: f64, number: &serde_json::Number) -> String {
    if figure::has_unit(name) {
        figure::text(name, value)
    } else {
        number.to_string()
    }
}

fn word(name: &str) -> String {
    if figure::has_unit(name) {
        figure::label(name)
    } else {
        name.replace('_', " ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(check: &Value) -> Vec<CheckedPath> {
        checked(check.as_object().unwrap())
    }

    #[test]
    fn each_path_of_a_check_is_a_row_with_label_and_measurement() {
        let check = json!({
            "network": "wan-50ms-loss1", "within": false, "paths": [{
                "from": "a", "to": "b",
                "label": {"rtt_ms": 50.0, "loss_out": 0.01, "rate": 100_000_000, "mtu": 1500},
                "udp": {"sent": 1000, "rtt_ms": 50.41, "loss_out": 0.0123},
                "tcp": null, "udp_expected": true, "faults": ["TCP: no connection"]
            }]
        });
        let rows = of(&check);
        assert_eq!(rows[0].name, "wan-50ms-loss1, a to b");
        assert_eq!(rows[0].within, Some(false));
        let fact = |name: &str| {
            rows[0]
                .facts
                .iter()
                .find(|(of, _)| of == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(
            fact("label"),
            Some("loss out: 1.00 %; mtu: 1500; rate: 100 Mbit/s; rtt: 50.0 ms")
        );
        assert_eq!(
            fact("udp"),
            Some("loss out: 1.23 %; rtt: 50.4 ms; sent: 1000")
        );
        assert_eq!(fact("tcp"), None);
        assert_eq!(fact("faults"), Some("TCP: no connection"));
    }

    #[test]
    fn a_check_of_another_shape_is_shown_field_by_field() {
        let rows = of(&json!({ "name": "x", "rtt_ms": 1.5, "odd": [1, 2] }));
        assert_eq!(rows.len(), 1);
        assert_eq!(
            rows[0].facts,
            [("odd", "1, 2"), ("rtt ms", "1.50 ms")].map(|(a, b)| (a.into(), b.into()))
        );
    }
}
