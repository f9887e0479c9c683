//! `hail describe`.

use std::fmt::Write as _;

use hailwire::{
    admin::{AgentDescription, DescribeRequest, method},
    agent_schema::{MethodExample, MethodSchema},
};
use hailwire_terminal::failure::CommandFailure;
use hailwire_wire::Address;
use serde_json::Value;

use super::{CommandContext, connect, schema_summary};

/// Examples of a method that are shown; `--json` has all of them.
const SHOWN_EXAMPLES: usize = 3;

pub(super) async fn run(run: &CommandContext, who: &Address) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let request = DescribeRequest {
        who: who.to_string(),
    };
    let agent: AgentDescription = client.admin(method::DESCRIBE, &request).await?;
    run.output.value(&agent, |agent| page(agent, who))
}

fn page(agent: &AgentDescription, who: &Address) -> String {
    let mut page = agent.name.clone();
    if !agent.version.is_empty() {
        let _ = write!(page, " {}", agent.version);
    }
    let node = match agent.node_name.is_empty() {
        true => agent.node.short(),
        false => agent.node_name.clone(),
    };
    let members = match agent.members {
        0 | 1 => String::new(),
        many => format!(", {many} members"),
    };
    let _ = writeln!(page, "  on {node}{members}");
    if !agent.description.is_empty() {
        let _ = writeln!(page, "{}", agent.description);
    }
    if !agent.tags.is_empty() {
        let _ = writeln!(page, "tags: {}", agent.tags.join(", "));
    }
    if agent.schema.methods.is_empty() {
        page.push_str("\nIt does not say what methods it has.\n");
    }
    for method in &agent.schema.methods {
        page.push('\n');
        page.push_str(&entry(method, who));
    }
    page
}

/// A method as people read it: what it takes and answers, how to call it, and what came of calls before.
fn entry(method: &MethodSchema, who: &Address) -> String {
    let mut entry = match method.name.as_str() {
        "" => "the only method".to_owned(),
        name => name.to_owned(),
    };
    let about = [&method.title, &method.description];
    let about: Vec<&str> = about
        .into_iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty())
        .collect();
    if !about.is_empty() {
        let _ = write!(entry, ": {}", about.join(". "));
    }
    entry.push('\n');
    for (label, schema) in [
        ("takes", &method.input_schema),
        ("answers", &method.output_schema),
    ] {
        if let Some(schema) = schema {
            let _ = writeln!(entry, "  {label:8}{}", schema_summary::summary(schema));
        }
    }
    let hints: Vec<&str> = method
        .annotations
        .iter()
        .filter(|(_, value)| **value == Value::Bool(true))
        .map(|(name, _)| name.trim_end_matches("Hint"))
        .collect();
    if !hints.is_empty() {
        let _ = writeln!(entry, "  {:8}{}", "is", hints.join(", "));
    }
    for example in method.examples.iter().take(SHOWN_EXAMPLES) {
        let _ = writeln!(entry, "  $ {}", command(method, example, who));
        if !example.output.is_null() {
            let _ = writeln!(entry, "  {}", body(&example.output));
        }
    }
    entry
}

/// The call of an example, as it is typed.
fn command(method: &MethodSchema, example: &MethodExample, who: &Address) -> String {
    let mut command = format!("hail call {who}");
    if !method.name.is_empty() {
        let _ = write!(command, " -m {}", quoted(&method.name));
    }
    if !example.input.is_null() {
        let text = body(&example.input);
        // A body that begins with @ is a file's name.
        let text = match text.starts_with('@') {
            true => format!("@{text}"),
            false => text,
        };
        let _ = write!(command, " {}", quoted(&text));
    }
    command
}

/// A text stands for itself, any other value for its JSON.
fn body(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=+,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use hailwire::AgentSchema;
    use hailwire_wire::NodeId;

    use super::*;

    fn agent(schema: &str) -> AgentDescription {
        AgentDescription {
            name: "words".to_owned(),
            node: NodeId::from_bytes([7; 32]),
            node_name: "desk".to_owned(),
            description: "works on texts".to_owned(),
            tags: vec!["text".to_owned(), "english".to_owned()],
            version: "1.2".to_owned(),
            members: 2,
            schema: AgentSchema::parse(schema).unwrap(),
        }
    }

    #[test]
    fn a_page_says_what_each_method_takes_and_how_it_is_called() {
        let agent = agent(
            r#"{"methods": [
                {
                    "name": "count",
                    "title": "Count",
                    "description": "Counts words",
                    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
                    "outputSchema": {"type": "integer"},
                    "annotations": {"readOnlyHint": true, "destructiveHint": false},
                    "examples": [{"input": {"text": "it's me"}, "output": 2}]
                },
                {"name": "shout", "examples": [{"input": "@home", "output": "@HOME"}]}
            ]}"#,
        );
        let page = page(&agent, &"words@desk".parse().unwrap());
        let expected = r#"words 1.2  on desk, 2 members
works on texts
tags: text, english

count: Count. Counts words
  takes   { text: string }
  answers integer
  is      readOnly
  $ hail call words@desk -m count '{"text":"it'\''s me"}'
  2

shout
  $ hail call words@desk -m shout '@@home'
  @HOME
"#;
        assert_eq!(page, expected);
    }

    #[test]
    fn an_agent_that_says_nothing_of_itself_is_described_by_its_name() {
        let mut agent = agent(r#"{"methods": []}"#);
        agent.version = String::new();
        agent.description = String::new();
        agent.tags = Vec::new();
        agent.members = 1;
        let page = page(&agent, &"words".parse().unwrap());
        assert_eq!(
            page,
            "words  on desk\n\nIt does not say what methods it has.\n"
        );
    }

    #[test]
    fn a_json_schema_alone_is_the_only_method() {
        let agent = agent(r#"{"type": "string", "contentMediaType": "text/plain"}"#);
        let page = page(&agent, &"words".parse().unwrap());
        assert!(
            page.ends_with("\nthe only method\n  takes   text/plain\n"),
            "{page}"
        );
    }
}
