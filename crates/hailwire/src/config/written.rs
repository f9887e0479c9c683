//! Writes what flags chose into the text of `hail.kdl`, so that the next start needs none of them.
//!
//! Only the settings that change are touched: comments, order and layout of the rest stay as somebody wrote them. So the text
//! is changed at the places that the parser names, and not printed anew from what was parsed.

use std::ops::Range;

use hailwire_kdl::{KdlDocument, KdlNode, TextMistake, document, span_of, span_of_values};

use super::{Config, ValueOrigin, parse::parse};

/// How far settings are indented in a section that is written anew.
const INDENT: &str = "    ";

/// The text of a file with the settings that flags chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSettings {
    /// The new text of the file.
    pub text: String,
    /// Paths of the settings that changed, for example `node.name`; never empty.
    pub changed: Vec<&'static str>,
}

impl Config {
    /// Writes the settings whose origin is [`ValueOrigin::Flag`] into `text`, which is what `hail.kdl` holds now (empty for a file
    /// that does not exist). `None` where the file says so already. A `hub` is added; every other setting is replaced.
    ///
    /// # Errors
    ///
    /// The first mistake of `text`.
    pub fn write_flags(&self, text: &str) -> Result<Option<WrittenSettings>, TextMistake> {
        let before = parse(text)?.values();
        let mut text = text.to_owned();
        let mut changed = Vec::new();
        for (path, value) in self.values() {
            let said = before.iter().any(|known| *known == (path, value.clone()));
            if said || self.origins.of(path) != ValueOrigin::Flag {
                continue;
            }
            text = write_setting(&text, path, &value)?;
            if !changed.contains(&path) {
                changed.push(path);
            }
        }
        if changed.is_empty() {
            return Ok(None);
        }
        // What was written is read back, so that no file is replaced by one that does not parse.
        parse(&text)?;
        Ok(Some(WrittenSettings { text, changed }))
    }
}

/// The text with one setting, in its section where it has one.
fn write_setting(text: &str, path: &str, value: &str) -> Result<String, TextMistake> {
    let file = document(text)?;
    let Some((section, name)) = path.split_once('.') else {
        let known = file.get(path).filter(|_| path != "hub");
        return Ok(match known {
            Some(node) => replaced(text, node, value),
            None => appended(text, &format!("{path} {value}\n")),
        });
    };
    let block = format!("{section} {{\n{INDENT}{name} {value}\n}}");
    let Some(outer) = file.get(section) else {
        return Ok(appended(text, &(block + "\n")));
    };
    let settings = outer.children().map(KdlDocument::nodes).unwrap_or_default();
    if let Some(node) = settings.iter().find(|node| node.name().value() == name) {
        return Ok(replaced(text, node, value));
    }
    Ok(match settings.last() {
        Some(last) => inserted_after(text, last, &format!("{name} {value}")),
        None => spliced(text, span_of(outer), &block),
    })
}

/// The text with other values of a setting.
fn replaced(text: &str, node: &KdlNode, value: &str) -> String {
    spliced(text, span_of_values(node), value)
}

/// The text with a setting after the last one of a section: on a line of its own, unless something follows on that line.
fn inserted_after(text: &str, last: &KdlNode, setting: &str) -> String {
    let end = span_of_values(last).end;
    let rest = text.get(end..).unwrap_or_default();
    let rest = rest.split('\n').next().unwrap_or_default();
    if !rest.trim().is_empty() && !rest.trim_start().starts_with("//") {
        return spliced(text, end..end, &format!("; {setting}"));
    }
    let begin = span_of(last).start;
    let before = text.get(..begin).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
    let end = end + rest.len();
    spliced(text, end..end, &format!("\n{indent}{setting}"))
}

/// The text with a line at its end.
fn appended(text: &str, line: &str) -> String {
    let newline = match text.is_empty() || text.ends_with('\n') {
        true => "",
        false => "\n",
    };
    format!("{text}{newline}{line}")
}

fn spliced(text: &str, range: Range<usize>, new: &str) -> String {
    let (before, after) = (text.get(..range.start), text.get(range.end..));
    [before.unwrap_or_default(), new, after.unwrap_or_default()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file becomes with `node.name "desk"`, `listen.tcp` and a hub by flags.
    fn written(text: &str) -> Option<WrittenSettings> {
        let mut config = Config {
            hubs: vec!["https://hub.example.org".parse().unwrap()],
            ..Config::default()
        };
        config.node.name = Some("desk".parse().unwrap());
        config.limits.grace = std::time::Duration::from_secs(3);
        for path in ["node.name", "limits.grace", "hub"] {
            config.origins.note(path, ValueOrigin::Flag);
        }
        let written = config.write_flags(text).unwrap();
        if let Some(written) = &written {
            let read = parse(&written.text).unwrap();
            assert_eq!(read.node.name, config.node.name, "{}", written.text);
            assert_eq!(read.limits.grace, config.limits.grace, "{}", written.text);
            assert!(read.hubs.contains(&config.hubs[0]), "{}", written.text);
        }
        written
    }

    #[test]
    fn flags_are_written_into_an_empty_file_and_a_second_time_nothing_changes() {
        let first = written("").unwrap();
        assert_eq!(
            first.text,
            "node {\n    name \"desk\"\n}\nhub \"https://hub.example.org:443\"\nlimits {\n    \
             grace \"3s\"\n}\n"
        );
        assert_eq!(first.changed, ["node.name", "hub", "limits.grace"]);
        assert_eq!(written(&first.text), None);
    }

    #[test]
    fn what_somebody_wrote_stays_with_its_comments() {
        let text = "// Ours.\nhub \"https://a.example\" // the first\n\nnode { name \"old\" } // here\n\
                    limits { max-tunnels 7 }\nlog { level \"warn\" }";
        let text = written(text).unwrap().text;
        assert_eq!(
            text,
            "// Ours.\nhub \"https://a.example\" // the first\n\nnode { name \"desk\" } // here\n\
             limits { max-tunnels 7; grace \"3s\" }\nlog { level \"warn\" }\n\
             hub \"https://hub.example.org:443\"\n"
        );
    }

    #[test]
    fn a_section_of_several_lines_gets_a_line() {
        let text = "limits {\n  max-tunnels 7 // few\n}\nnode {}\n";
        let text = written(text).unwrap().text;
        assert!(
            text.starts_with("limits {\n  max-tunnels 7 // few\n  grace \"3s\"\n}\n"),
            "{text}"
        );
    }

    #[test]
    fn a_file_with_a_mistake_is_left_alone() {
        assert!(Config::default().write_flags("nod { }").is_err());
    }
}
