//! The file that states the methods of an agent: `--schema FILE`, and `schema` in `agents.kdl`.

use std::{fs::File, io::Read as _, path::Path};

use hailwire::AgentSchema;
use hailwire_wire::limits;
use serde_json::{Map, Value};

/// Reads the schema of an agent from a file of at most [`limits::MAX_SCHEMA`] bytes.
///
/// # Errors
///
/// Why it cannot be used, with the file's name. A member that nobody knows is taken for a mistake.
pub(crate) fn read(path: &Path) -> Result<AgentSchema, String> {
    let of_file = |why: String| format!("the schema in {}: {why}", path.display());
    let text = text(path).map_err(|error| of_file(error.to_string()))?;
    let schema = AgentSchema::parse(&text).map_err(|error| of_file(error.to_string()))?;
    match unknown(&schema) {
        Some(what) => Err(of_file(what)),
        None => Ok(schema),
    }
}

fn text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let most = limits::MAX_SCHEMA as u64 + 1;
    File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// A member that is known to nobody, which in a file is a slip of the pen.
fn unknown(schema: &AgentSchema) -> Option<String> {
    let first = |members: &Map<String, Value>| members.keys().next().cloned();
    if let Some(member) = first(&schema.other) {
        return Some(format!("`{member}` is unknown; known is `methods`"));
    }
    let method = schema
        .methods
        .iter()
        .find(|method| !method.other.is_empty())?;
    let member = first(&method.other)?;
    Some(format!(
        "`{member}` of the method `{}` is unknown; known are name, title, description, inputSchema, outputSchema, annotations and examples",
        method.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_its_bound_and_its_slips_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.json");
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path).map_err(|why| why.replace(&path.display().to_string(), "FILE"))
        };
        let schema = said(r#"{"methods": [{"name": "count"}]}"#).unwrap();
        assert_eq!(schema.methods[0].name, "count");
        for (text, what) in [
            (
                r#"{"methods": [], "version": 1}"#,
                "the schema in FILE: `version` is unknown; known is `methods`",
            ),
            (
                r#"{"methods": [{"name": "count", "inputschema": {}}]}"#,
                "the schema in FILE: `inputschema` of the method `count` is unknown; \
                 known are name, title, description, inputSchema, outputSchema, annotations and examples",
            ),
            (
                "{",
                "the schema in FILE: the schema cannot be read: EOF while parsing an object at line 1 column 1",
            ),
            (
                &" ".repeat(100_000),
                "the schema in FILE: the schema has 49153 bytes, and 49152 are the most",
            ),
        ] {
            assert_eq!(said(text).unwrap_err(), what);
        }
        let missing = read(&folder.path().join("none.json")).unwrap_err();
        assert!(
            missing.ends_with("none.json: No such file or directory (os error 2)"),
            "{missing}"
        );
    }
}
