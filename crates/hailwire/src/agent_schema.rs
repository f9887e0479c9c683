//! What an agent says of its methods: their names, what they take and answer as JSON Schema, and examples.
//!
//! The members are those of a tool in the Model Context Protocol (`inputSchema`, `outputSchema`, `annotations`), so that one
//! description serves both. A body that is no JSON is a string with a media type, as JSON Schema 2020-12 writes it:
//! `{"type": "string", "contentMediaType": "text/plain"}`.

use std::collections::HashSet;

use hailwire_wire::limits;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// Most methods that one agent may state.
pub const MAX_METHODS: usize = 256;

/// The methods of an agent.
///
/// Members that this version does not know are kept in `other`, here and in [`MethodSchema`], and passed on.
///
/// ```
/// use hailwire::{Agent, AgentSchema};
///
/// let schema = AgentSchema::parse(r#"{"methods": [{"name": "count", "inputSchema": {"type": "string"}}]}"#)?;
/// assert_eq!(schema.methods[0].name, "count");
/// let agent = Agent::new("words")?.schema(&schema);
/// # let _ = agent;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with `methods`")]
pub struct AgentSchema {
    /// At most [`MAX_METHODS`], each of its own name.
    #[serde(default)]
    pub methods: Vec<MethodSchema>,
    /// Members of a later version.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One method of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    expecting = "an object that describes a method"
)]
pub struct MethodSchema {
    /// Its name in a call, at most [`limits::MAX_METHOD`] bytes; empty, the default, where the agent has one method.
    #[serde(default)]
    pub name: String,
    /// A name for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The body of a call: a JSON Schema, which is an object or a boolean; absent where it is not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    /// The body of an answer, likewise. Of an answer that streams it is each of its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Hints such as `readOnlyHint` and `idempotentHint`. Nothing is decided by them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
    /// Calls with their answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<MethodExample>,
    /// Members of a later version.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A call with its answer. A text stands for itself, any other value for its JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `input` and `output`")]
pub struct MethodExample {
    /// The body of the call; null, the default, for none.
    #[serde(default)]
    pub input: Value,
    /// The body of the answer; null, the default, where it is not said.
    #[serde(default)]
    pub output: Value,
}

/// Why a text is no schema of an agent.
#[derive(Debug, Error)]
pub enum SchemaError {
    /// More than [`limits::MAX_SCHEMA`].
    #[error("the schema has {0} bytes, and {most} are the most", most = limits::MAX_SCHEMA)]
    TooLarge(usize),
    /// No JSON, or not of this form; with line and column.
    #[error("the schema cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// More than [`MAX_METHODS`].
    #[error("the schema has {0} methods, and {MAX_METHODS} are the most")]
    TooManyMethods(usize),
    /// Two methods of one name.
    #[error("the schema has two methods with the name `{0}`")]
    Twice(String),
    /// A name beyond [`limits::MAX_METHOD`].
    #[error("the method's name `{0}` is longer than {most} bytes", most = limits::MAX_METHOD)]
    LongName(String),
    /// A schema that is a number, a text, a list or null.
    #[error(
        "`{member}` of the method `{method}` is not a JSON Schema, which is an object, `true` or `false`"
    )]
    NotASchema {
        /// The method's name.
        method: String,
        /// `inputSchema` or `outputSchema`.
        member: &'static str,
    },
}

impl AgentSchema {
    /// Reads a schema of at most [`limits::MAX_SCHEMA`] bytes. A JSON Schema by itself, which is an object without `methods`, says what the only
    /// method of an agent takes.
    ///
    /// The schemas within it are not checked against the rules of JSON Schema.
    ///
    /// # Errors
    ///
    /// The text breaks a bound, is no JSON, or not of this form.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        if text.len() > limits::MAX_SCHEMA {
            return Err(SchemaError::TooLarge(text.len()));
        }
        let is_json_schema = serde_json::from_str::<Map<String, Value>>(text)
            .is_ok_and(|members| !members.contains_key("methods"));
        let schema = match is_json_schema {
            true => Self {
                methods: vec![MethodSchema {
                    input_schema: Some(serde_json::from_str(text)?),
                    ..MethodSchema::default()
                }],
                other: Map::new(),
            },
            false => serde_json::from_str(text)?,
        };
        schema.check()?;
        Ok(schema)
    }

    /// The text that goes to the node; empty for no methods.
    pub(crate) fn to_text(&self) -> String {
        match self.methods.is_empty() {
            true => String::new(),
            false => serde_json::to_string(self).unwrap_or_default(),
        }
    }

    fn check(&self) -> Result<(), SchemaError> {
        if self.methods.len() > MAX_METHODS {
            return Err(SchemaError::TooManyMethods(self.methods.len()));
        }
        let mut names = HashSet::new();
        for method in &self.methods {
            if method.name.len() > limits::MAX_METHOD {
                return Err(SchemaError::LongName(method.name.clone()));
            }
            if !names.insert(&method.name) {
                return Err(SchemaError::Twice(method.name.clone()));
            }
            let stated = [
                ("inputSchema", &method.input_schema),
                ("outputSchema", &method.output_schema),
            ];
            for (member, schema) in stated {
                if let Some(schema) = schema
                    && !(schema.is_object() || schema.is_boolean())
                {
                    let method = method.name.clone();
                    return Err(SchemaError::NotASchema { method, member });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_keeps_what_it_does_not_know_and_leaves_out_what_is_not_said() {
        let text = json!({
            "methods": [{
                "name": "count",
                "inputSchema": {"type": "string"},
                "annotations": {"readOnlyHint": true},
                "examples": [{"input": "a b", "output": 2}],
                "icons": [],
            }],
            "later": 1,
        });
        let schema = AgentSchema::parse(&text.to_string()).unwrap();
        assert_eq!(schema.methods[0].name, "count");
        assert_eq!(serde_json::to_value(&schema).unwrap(), text);
        assert_eq!(AgentSchema::parse(&schema.to_text()).unwrap(), schema);
        assert_eq!(AgentSchema::default().to_text(), "");
    }

    #[test]
    fn a_json_schema_by_itself_is_what_the_only_method_takes() {
        let text = r#"{"type": "object", "properties": {"text": {"type": "string"}}}"#;
        let schema = AgentSchema::parse(text).unwrap();
        let [method] = &schema.methods[..] else {
            panic!("{schema:?}");
        };
        assert_eq!(method.name, "");
        assert_eq!(
            method.input_schema,
            Some(serde_json::from_str(text).unwrap())
        );
        assert_eq!(method.output_schema, None);
    }

    #[test]
    fn what_is_no_schema_is_refused_with_what_is_wrong() {
        let many: Vec<_> = (0..=MAX_METHODS)
            .map(|n| json!({"name": n.to_string()}))
            .collect();
        let deep = format!(
            "{{\"methods\": [{{\"inputSchema\": {}",
            "{\"not\":".repeat(5000)
        );
        let long = "m".repeat(limits::MAX_METHOD + 1);
        for (text, what) in [
            (
                " ".repeat(limits::MAX_SCHEMA + 1),
                "the schema has 49153 bytes, and 49152 are the most",
            ),
            (
                String::new(),
                "the schema cannot be read: EOF while parsing a value at line 1 column 0",
            ),
            (
                "{\"methods\": [\n{]}".to_owned(),
                "the schema cannot be read: key must be a string at line 2 column 2",
            ),
            (
                deep,
                "the schema cannot be read: recursion limit exceeded at line 1 column 898",
            ),
            (
                json!({"methods": many}).to_string(),
                "the schema has 257 methods, and 256 are the most",
            ),
            (
                json!({"methods": [{"name": "a"}, {"name": "a"}]}).to_string(),
                "the schema has two methods with the name `a`",
            ),
            (
                json!({"methods": [{"name": long}]}).to_string(),
                &format!("the method's name `{long}` is longer than 128 bytes"),
            ),
            (
                json!({"methods": [{"name": "a", "inputSchema": "string"}]}).to_string(),
                "`inputSchema` of the method `a` is not a JSON Schema, which is an object, `true` or `false`",
            ),
            (
                json!({"methods": [{"name": "a", "outputSchema": ["string"]}]}).to_string(),
                "`outputSchema` of the method `a` is not a JSON Schema, which is an object, `true` or `false`",
            ),
        ] {
            let error = AgentSchema::parse(&text).unwrap_err().to_string();
            assert_eq!(error, what);
        }
    }
}
