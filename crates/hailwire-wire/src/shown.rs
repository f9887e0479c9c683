//! Foreign text, made fit to be shown.
//!
//! Names, descriptions and messages come from others and end in terminals, logs, pages and scripts. Some characters do
//! not stand for themselves there: controls move the cursor or begin a command (ECMA-48, both C0 and C1), bidirectional
//! controls change the order of what stands around them (Unicode UAX 9), others cannot be seen at all, so that two names look
//! alike. Where text is shown these are replaced; in JSON they are written as escapes, which leaves the value
//! as it is. What they are is decided here and nowhere else.

use std::fmt::Write as _;

/// What is shown in place of a character that does not stand for itself.
pub const REPLACEMENT: char = '\u{fffd}';

/// Whether a character does something else than show itself: a control, a change of direction, an end of a
/// line, or nothing that can be seen.
#[must_use]
pub fn is_unfit(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    matches!(c,
        // C1 controls, among them NEL; soft hyphen.
        '\u{80}'..='\u{9f}' | '\u{ad}'
        // Combining grapheme joiner, Arabic letter mark, Hangul and Khmer fillers, Mongolian vowel separator.
        | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        // Of no width, marks of direction; ends of line and paragraph; embeddings and overrides.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        // Word joiner, invisible operators, isolates, deprecated controls.
        | '\u{2060}'..='\u{206f}'
        // Hangul fillers, byte order mark, interlinear annotation.
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        // Shorthand and musical controls, tags and supplementary selectors.
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether a character ends a line or is blank, so that a blank stands for it.
fn is_blank(c: char) -> bool {
    matches!(c, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn fit(c: char) -> char {
    match (is_unfit(c), is_blank(c)) {
        (false, _) => c,
        (true, true) => ' ',
        (true, false) => REPLACEMENT,
    }
}

/// A text on one line: a blank for each end of a line and each tab, [`REPLACEMENT`] for each other unfit character.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.chars().map(fit).collect()
}

/// A text of several lines: the same, but `\n` stays.
#[must_use]
pub fn lines(text: &str) -> String {
    let keep = |c| if c == '\n' { c } else { fit(c) };
    text.chars().map(keep).collect()
}

/// A text of several lines in which [`BOLD`], [`BOLD_RED`] and [`PLAIN`] stay, too: what this program itself has coloured.
#[must_use]
pub fn coloured(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let own = [BOLD, BOLD_RED, PLAIN];
        let own = own.into_iter().find(|own| rest.starts_with(own));
        let taken = match own {
            Some(own) => {
                out.push_str(own);
                own.len()
            }
            None => {
                out.push(if c == '\n' { c } else { fit(c) });
                c.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    out
}

/// Begins bold text on a terminal.
pub const BOLD: &str = "\x1b[1m";
/// Begins bold red text on a terminal.
pub const BOLD_RED: &str = "\x1b[1;31m";
/// Ends either.
pub const PLAIN: &str = "\x1b[0m";

/// Text as the content of an element of HTML, or of SVG.
#[must_use]
pub fn html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// JSON with the same values in which every unfit character is an escape (RFC 8259, 7).
///
/// `json` is one JSON text as serialised: outside of strings it holds no unfit character but white space, which
/// stays.
#[must_use]
pub fn json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if !is_unfit(c) || matches!(c, '\n' | '\r' | '\t') {
            out.push(c);
            continue;
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each class, as the standards name them.
    const UNFIT: [(char, &str); 24] = [
        ('\0', "C0"),
        ('\x07', "C0: bell"),
        ('\x1b', "C0: escape"),
        ('\x7f', "delete"),
        ('\u{80}', "C1"),
        ('\u{9b}', "C1: control sequence introducer"),
        ('\u{9f}', "C1"),
        ('\u{ad}', "soft hyphen"),
        ('\u{61c}', "Arabic letter mark"),
        ('\u{180e}', "Mongolian vowel separator"),
        ('\u{200b}', "zero width space"),
        ('\u{200d}', "zero width joiner"),
        ('\u{200e}', "left-to-right mark"),
        ('\u{200f}', "right-to-left mark"),
        ('\u{202a}', "left-to-right embedding"),
        ('\u{202e}', "right-to-left override"),
        ('\u{2060}', "word joiner"),
        ('\u{2066}', "left-to-right isolate"),
        ('\u{2069}', "pop directional isolate"),
        ('\u{3164}', "Hangul filler"),
        ('\u{feff}', "byte order mark"),
        ('\u{fff9}', "interlinear annotation"),
        ('\u{e0001}', "language tag"),
        ('\u{e0041}', "tag letter"),
    ];

    #[test]
    fn every_class_of_unfit_character_is_replaced_where_text_is_shown() {
        for (c, class) in UNFIT {
            let text = format!("a{c}b");
            for shown in [one_line(&text), lines(&text), coloured(&text)] {
                assert_eq!(shown, "a\u{fffd}b", "{class}");
            }
        }
        for end in [
            '\n', '\r', '\t', '\x0b', '\x0c', '\u{85}', '\u{2028}', '\u{2029}',
        ] {
            assert_eq!(one_line(&format!("a{end}b")), "a b", "{end:?}");
        }
        assert_eq!(lines("a\nb\rc"), "a\nb c");
    }

    #[test]
    fn json_keeps_its_value_and_holds_no_unfit_character() {
        let ends = ['\u{85}', '\u{2028}', '\u{2029}'];
        for c in UNFIT.map(|(c, _)| c).into_iter().chain(ends) {
            let value = serde_json::json!({ format!("k{c}"): [format!("v{c}é\u{1f600}"), 1] });
            let written = json(&value.to_string());
            assert!(!written.chars().any(is_unfit), "{written:?}");
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&written).unwrap(),
                value
            );
        }
        assert_eq!(json("{\n\t\"a\": 1\r\n}"), "{\n\t\"a\": 1\r\n}");
    }

    #[test]
    fn what_stands_for_itself_is_left_alone() {
        let text = "naïve Ångström 日本語 עברית العربية हिन्दी 👍🏽 ‰ “x” a\u{301} \u{2003}.";
        assert_eq!(one_line(text), text);
        assert_eq!(json(text), text);
    }

    #[test]
    fn our_own_colours_stay_and_no_others() {
        let text = format!("{BOLD}NAME{PLAIN}\n{BOLD_RED}error:{PLAIN} x\x1b[2J\x1b]0;t\x07");
        let shown =
            format!("{BOLD}NAME{PLAIN}\n{BOLD_RED}error:{PLAIN} x\u{fffd}[2J\u{fffd}]0;t\u{fffd}");
        assert_eq!(coloured(&text), shown);
    }
}
