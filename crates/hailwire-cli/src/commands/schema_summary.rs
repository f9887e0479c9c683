//! A JSON Schema in one line for people, such as `{ text: string, limit?: integer }`.
//!
//! It says types and names, and leaves out bounds and patterns; `--json` has all of it.

use serde_json::{Map, Value};

/// How deep a summary looks into objects and lists.
const MAX_DEPTH: usize = 4;

/// Members of an object and alternatives that are named.
const MAX_NAMED: usize = 12;

/// A schema in one line.
pub(super) fn summary(schema: &Value) -> String {
    within(schema, MAX_DEPTH)
}

fn within(schema: &Value, depth: usize) -> String {
    let Some(members) = schema.as_object() else {
        return match schema {
            Value::Bool(false) => "nothing".to_owned(),
            _ => "anything".to_owned(),
        };
    };
    if depth == 0 {
        return "…".to_owned();
    }
    if let Some(constant) = members.get("const") {
        return constant.to_string();
    }
    if let Some(Value::Array(values)) = members.get("enum") {
        return alternatives(values, Value::to_string);
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(Value::Array(schemas)) = members.get(word) {
            return alternatives(schemas, |schema| within(schema, depth - 1));
        }
    }
    if let Some(Value::String(reference)) = members.get("$ref") {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    if let Some(Value::String(media_type)) = members.get("contentMediaType") {
        return media_type.clone();
    }
    match members.get("type") {
        Some(Value::String(name)) => of_type(name, members, depth),
        Some(Value::Array(names)) => alternatives(names, |name| {
            name.as_str().map_or_else(
                || "anything".to_owned(),
                |name| of_type(name, members, depth),
            )
        }),
        _ if members.contains_key("properties") => of_type("object", members, depth),
        _ => "anything".to_owned(),
    }
}

fn of_type(name: &str, members: &Map<String, Value>, depth: usize) -> String {
    match name {
        "object" => object(members, depth),
        "array" => match members.get("items") {
            Some(items) => format!("list of {}", within(items, depth - 1)),
            None => "list".to_owned(),
        },
        "string" => match members.get("format").and_then(Value::as_str) {
            Some(format) => format!("string ({format})"),
            None => "string".to_owned(),
        },
        other => other.to_owned(),
    }
}

/// `{ name: type, other?: type }`: a question mark where it may be left out.
fn object(members: &Map<String, Value>, depth: usize) -> String {
    let Some(Value::Object(properties)) = members.get("properties") else {
        return "object".to_owned();
    };
    let required = members.get("required").and_then(Value::as_array);
    let is_required = |name: &str| {
        required.is_some_and(|names| names.iter().any(|other| other.as_str() == Some(name)))
    };
    let property = |(name, schema): (&String, &Value)| {
        let mark = if is_required(name) { "" } else { "?" };
        format!("{name}{mark}: {}", within(schema, depth - 1))
    };
    let mut named: Vec<String> = properties.iter().take(MAX_NAMED).map(property).collect();
    if properties.len() > MAX_NAMED {
        named.push("…".to_owned());
    }
    match named.is_empty() {
        true => "{}".to_owned(),
        false => format!("{{ {} }}", named.join(", ")),
    }
}

fn alternatives(values: &[Value], shown: impl Fn(&Value) -> String) -> String {
    let mut named: Vec<String> = values.iter().take(MAX_NAMED).map(shown).collect();
    if values.len() > MAX_NAMED {
        named.push("…".to_owned());
    }
    named.join(" | ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_told_as_their_types_and_names() {
        let deep = json!({"type": "array", "items": {"type": "array", "items": {"type": "array",
            "items": {"type": "array", "items": {"type": "string"}}}}});
        let many: Vec<usize> = (0..20).collect();
        for (schema, line) in [
            (json!(true), "anything"),
            (json!(false), "nothing"),
            (json!({}), "anything"),
            (
                json!({"type": "string", "contentMediaType": "text/plain"}),
                "text/plain",
            ),
            (json!({"type": "string", "format": "date"}), "string (date)"),
            (json!({"type": ["string", "null"]}), "string | null"),
            (json!({"enum": ["a", 1]}), "\"a\" | 1"),
            (json!({"const": 2}), "2"),
            (
                json!({"anyOf": [{"type": "integer"}, {"type": "array"}]}),
                "integer | list",
            ),
            (json!({"$ref": "#/$defs/Place"}), "Place"),
            (json!({"type": "object"}), "object"),
            (json!({"properties": {}}), "{}"),
            (
                json!({"type": "object", "required": ["a"], "properties": {
                    "a": {"type": "array", "items": {"type": "number"}}, "b": {"type": "boolean"}}}),
                "{ a: list of number, b?: boolean }",
            ),
            (deep, "list of list of list of list of …"),
            (
                json!({"enum": many}),
                "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | …",
            ),
        ] {
            assert_eq!(summary(&schema), line, "{schema}");
        }
    }
}
