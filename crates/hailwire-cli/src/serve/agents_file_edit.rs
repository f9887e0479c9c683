//! Changes one agent in the text of `agents.kdl`, and not a byte beside it: comments and the layout that a person chose stay.

use std::fmt::Write as _;

use hailwire_kdl::{KdlNode, TextMistake};
use hailwire_wire::AgentName;

use super::agent_spec::{AgentSpec, DEFAULT_GRACE, DEFAULT_IDLE, RestartDelays, default_max};

/// The text with this agent, in the place of one of the same name or at the end.
///
/// # Errors
///
/// The text is not KDL, or a word of the command is not text.
pub(crate) fn with_agent(text: &str, spec: &AgentSpec) -> Result<String, TextMistake> {
    let written = written(spec)?;
    if let Some((start, end)) = place(text, &spec.name)? {
        let (before, after) = (text.get(..start), text.get(end..));
        return Ok([
            before.unwrap_or_default(),
            &written,
            after.unwrap_or_default(),
        ]
        .concat());
    }
    let mut out = text.to_owned();
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out.push_str(&written);
    out.push('\n');
    Ok(out)
}

/// The text without the agent of this name; `None` if it has none.
///
/// # Errors
///
/// The text is not KDL.
pub(crate) fn without_agent(text: &str, name: &AgentName) -> Result<Option<String>, TextMistake> {
    let Some((start, end)) = place(text, name)? else {
        return Ok(None);
    };
    let before = text.get(..start).unwrap_or_default();
    let after = text.get(end..).unwrap_or_default();
    // The end of its line goes with it, unless something else stands there.
    let rest = after.trim_start_matches([' ', '\t', ';']);
    let rest = rest
        .strip_prefix('\n')
        .or_else(|| rest.strip_prefix("\r\n"));
    let alone = before.is_empty() || before.ends_with('\n');
    let after = rest.filter(|_| alone).unwrap_or(after);
    Ok(Some([before, after].concat()))
}

/// Where the node of an agent begins and ends in the text, in bytes.
fn place(text: &str, name: &AgentName) -> Result<Option<(usize, usize)>, TextMistake> {
    let document = hailwire_kdl::document(text)?;
    let is_it = |node: &&KdlNode| {
        let own = node
            .entries()
            .first()
            .and_then(|entry| entry.value().as_string());
        node.name().value() == "agent" && own == Some(name.as_str())
    };
    let Some(node) = document.nodes().iter().find(is_it) else {
        return Ok(None);
    };
    let start = node.name().span().offset();
    let span = node.span();
    let whole = text
        .get(start..span.offset() + span.len())
        .unwrap_or_default();
    let end = start + whole.trim_end_matches([' ', '\t', '\r', '\n', ';']).len();
    Ok(Some((start, end)))
}

/// An agent as the file has it. What is the default is left out.
fn written(spec: &AgentSpec) -> Result<String, TextMistake> {
    let mut out = format!("agent {} {{\n", quoted(spec.name.as_str()));
    let mut setting = |name: &str, value: String| {
        let _ = writeln!(out, "    {name} {value}");
    };
    let mut words = Vec::new();
    for word in [&spec.program].into_iter().chain(&spec.args) {
        let Some(word) = word.to_str() else {
            let what = format!("`{}` is not UTF-8 text", word.to_string_lossy());
            return Err(TextMistake::at(0, what));
        };
        words.push(quoted(word));
    }
    setting("command", words.join(" "));
    if !spec.description.is_empty() {
        setting("describe", quoted(&spec.description));
    }
    if !spec.tags.is_empty() {
        let tags: Vec<String> = spec.tags.iter().map(|tag| quoted(tag)).collect();
        setting("tag", tags.join(" "));
    }
    if !spec.version.is_empty() {
        setting("version", quoted(&spec.version));
    }
    if let Some(schema) = spec.schema.as_ref().and_then(|path| path.to_str()) {
        setting("schema", quoted(schema));
    }
    if spec.max != default_max(spec.lines, spec.on_message.is_some()) {
        setting("max", spec.max.to_string());
    }
    if let Some(calls) = spec.queue {
        setting("queue", calls.to_string());
    }
    if spec.place.priority > 0 {
        setting("group-priority", spec.place.priority.to_string());
    }
    if spec.place.overflow > 0 {
        setting("overflow", spec.place.overflow.to_string());
    }
    for (name, said) in [
        ("pinned", spec.place.pinned),
        ("slow-start", spec.place.slow_start),
    ] {
        if let Some(said) = said {
            setting(name, quoted(&hailwire_kdl::written_time(&said)));
        }
    }
    if spec.lines {
        setting("lines", "#true".to_owned());
    }
    if spec.keys {
        setting("keys", "#true".to_owned());
    }
    let time = |time| quoted(&hailwire_kdl::written_time(time));
    if let Some(on_message) = &spec.on_message {
        setting("on-message", "#true".to_owned());
        if on_message.idle != DEFAULT_IDLE {
            setting("idle", time(&on_message.idle));
        }
    }
    if spec.grace != DEFAULT_GRACE {
        setting("grace", time(&spec.grace));
    }
    if spec.restart != RestartDelays::default() {
        let (min, max) = (time(&spec.restart.min), time(&spec.restart.max));
        setting("restart", format!("min={min} max={max}"));
    }
    if let Some(folder) = spec.folder.as_ref().and_then(|folder| folder.to_str()) {
        setting("folder", quoted(folder));
    }
    if !spec.environment.is_empty() {
        let variable = |(name, value): &(String, String)| {
            format!("        {} {}\n", quoted(name), quoted(value))
        };
        let variables: String = spec.environment.iter().map(variable).collect();
        setting("env", format!("{{\n{variables}    }}"));
    }
    if let Some(user) = &spec.user {
        setting("user", quoted(user));
    }
    out.push('}');
    Ok(out)
}

/// A string of KDL.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Line ends, marks that turn text around, and what KDL forbids in a text.
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}') =>
            {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::serve::{agent_spec::GroupPlace, agents_file::AgentsFile};

    fn spec(name: &str, command: &[&str]) -> AgentSpec {
        let args = command[1..].iter().map(Into::into).collect();
        let mut spec = AgentSpec::new(name.parse().unwrap(), command[0].into(), args);
        spec.folder = Some("/srv".into());
        spec
    }

    fn read(text: &str) -> Vec<AgentSpec> {
        let file = AgentsFile::parse(text, Path::new("/srv")).unwrap();
        file.agents.into_iter().map(|agent| agent.spec).collect()
    }

    const BY_HAND: &str = "// mine\n\nagent \"a\" { command \"cat\"  } // first\n  /* odd */ agent   \"b\"  {\n\tcommand \"tac\" // why\n}\n\n// the end";

    #[test]
    fn whatever_is_written_is_read_as_it_was_meant() {
        let odd = "a\"b\\c\n\r\t\u{1b}\u{202e}\u{2028}ü{}#true;//";
        let whole = AgentSpec {
            description: odd.to_owned(),
            tags: vec!["x".to_owned(), "y z".to_owned()],
            version: "1".to_owned(),
            schema: Some("/srv/a schema.json".into()),
            max: 3,
            queue: Some(0),
            place: GroupPlace {
                overflow: 7,
                slow_start: Some(Duration::from_secs(30)),
                ..GroupPlace::default()
            },
            lines: true,
            keys: true,
            grace: Duration::from_millis(1500),
            restart: RestartDelays {
                min: Duration::from_secs(1),
                max: Duration::from_secs(90),
            },
            environment: vec![("A B".to_owned(), odd.to_owned())],
            user: Some("www".to_owned()),
            ..spec("whole", &["/bin/sh", "-c", odd])
        };
        let pinned = AgentSpec {
            place: GroupPlace {
                pinned: Some(Duration::from_secs(90)),
                ..GroupPlace::default()
            },
            ..spec("pinned", &["cat"])
        };
        let standby = AgentSpec {
            place: GroupPlace {
                priority: 2,
                ..GroupPlace::default()
            },
            ..spec("standby", &["cat"])
        };
        for spec in [whole, pinned, standby, spec("small", &["cat"])] {
            let text = with_agent("", &spec).unwrap();
            assert_eq!(read(&text), [spec], "{text}");
        }
    }

    #[test]
    fn a_new_agent_stands_at_the_end_and_nothing_else_changes() {
        let text = with_agent(BY_HAND, &spec("c", &["wc"])).unwrap();
        let rest = text.strip_prefix(BY_HAND).unwrap();
        assert!(rest.starts_with("\nagent \"c\" {\n"), "{rest}");
        assert_eq!(read(&text).len(), 3);
        let again = without_agent(&text, &"c".parse().unwrap()).unwrap();
        assert_eq!(again.unwrap(), format!("{BY_HAND}\n"));
    }

    #[test]
    fn an_agent_is_changed_in_its_place_and_comments_stay() {
        for name in ["a", "b"] {
            let text = with_agent(BY_HAND, &spec(name, &["wc"])).unwrap();
            let specs = read(&text);
            assert_eq!(specs.len(), 2);
            let changed = specs.iter().find(|spec| spec.name.as_str() == name);
            assert_eq!(changed.unwrap().program, "wc");
            for comment in ["// mine", "// first", "/* odd */", "// the end"] {
                assert!(text.contains(comment), "{comment}: {text}");
            }
        }
    }

    #[test]
    fn an_agent_is_taken_out_and_comments_stay() {
        for (name, other) in [("a", "b"), ("b", "a")] {
            let text = without_agent(BY_HAND, &name.parse().unwrap());
            let text = text.unwrap().unwrap();
            let specs = read(&text);
            assert_eq!(specs.len(), 1, "{text}");
            assert_eq!(specs[0].name.as_str(), other);
            for comment in ["// mine", "// first", "/* odd */", "// the end"] {
                assert!(text.contains(comment), "{comment}: {text}");
            }
        }
        assert_eq!(without_agent(BY_HAND, &"c".parse().unwrap()), Ok(None));
        assert!(without_agent("a {", &"c".parse().unwrap()).is_err());
    }
}
