//! Turns the `config` section of an agent into JSON.

use hailwire_kdl::{KdlEntry, KdlNode, KdlValue};
use serde_json::Value;

/// What stands in a node, as JSON: its braces are an object, several values a list, nothing is `true`. A name that
/// stands several times has a list of all its values.
pub(super) fn json(node: &KdlNode) -> Value {
    let scalar = |entry: &KdlEntry| match entry.value() {
        KdlValue::String(text) => Value::from(text.as_str()),
        KdlValue::Integer(n) => i64::try_from(*n).map_or(Value::Null, Value::from),
        KdlValue::Float(n) => Value::from(*n),
        KdlValue::Bool(yes) => Value::from(*yes),
        KdlValue::Null => Value::Null,
    };
    let values = node.entries().iter().filter(|entry| entry.name().is_none());
    let values: Vec<Value> = values.map(scalar).collect();
    let mut object = serde_json::Map::new();
    let mut repeated: Vec<String> = Vec::new();
    for entry in node.entries() {
        if let Some(name) = entry.name() {
            object.insert(name.value().to_owned(), scalar(entry));
        }
    }
    for inner in node.iter_children() {
        let (name, value) = (inner.name().value(), json(inner));
        match object.get_mut(name) {
            Some(Value::Array(list)) if repeated.iter().any(|known| known == name) => {
                list.push(value);
            }
            Some(known) => {
                *known = Value::Array(vec![known.take(), value]);
                repeated.push(name.to_owned());
            }
            None => {
                object.insert(name.to_owned(), value);
            }
        }
    }
    match (values.len(), object.is_empty()) {
        (0, true) if node.children().is_none() => Value::Bool(true),
        (0, _) => Value::Object(object),
        (1, true) => values.into_iter().next().unwrap_or_default(),
        (_, true) => Value::Array(values),
        _ => {
            object.insert("values".to_owned(), Value::Array(values));
            Value::Object(object)
        }
    }
}
