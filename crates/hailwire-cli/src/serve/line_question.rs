//! Which bodies can be sent as one line to a program.
//!
//! Programs disagree about what ends a line: `\n` for most, `\r` and `\r\n` too for a text file in
//! Python or Node, vertical tab, form feed, the separators U+001C to U+001E, NEL (U+0085), U+2028 and
//! U+2029 for what splits a text that it has read, the zero byte for `sed -z` and `read -d ''`. A
//! request with one of them would be two lines for such a program, and the second answer would go to the next caller. So it is refused for any program; it is not escaped, because a program that does not know the escape would answer to the wrong text.

use hailwire_wire::{Code, Status};

/// The line in `body` without the line terminator that it may end with: `\n` or `\r\n`.
///
/// # Errors
///
/// `invalid_argument` for a line terminator of any kind anywhere else.
pub(crate) fn question(body: &[u8]) -> Result<&[u8], Status> {
    let line = body.strip_suffix(b"\n").unwrap_or(body);
    let line = match line.len() < body.len() {
        true => line.strip_suffix(b"\r").unwrap_or(line),
        false => line,
    };
    match ends_a_line(line) {
        false => Ok(line),
        true => Err(Status::new(
            Code::InvalidArgument,
            "this agent accepts one line per call, and the body has more than one",
        )
        .with_hint("send each line in a separate call")),
    }
}

fn ends_a_line(line: &[u8]) -> bool {
    if line
        .iter()
        .any(|byte| matches!(byte, 0 | b'\n'..=b'\r' | 0x1c..=0x1e))
    {
        return true;
    }
    match std::str::from_utf8(line) {
        Ok(text) => text.contains(['\u{85}', '\u{2028}', '\u{2029}']),
        // In an encoding of one byte for each character this byte is NEL; in UTF-8 it is a part of many characters.
        Err(_) => line.contains(&0x85),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_may_end_its_own_line() {
        for body in ["a b", "a b\n", "a b\r\n"] {
            assert_eq!(question(body.as_bytes()).unwrap(), b"a b");
        }
        assert_eq!(question(b"").unwrap(), b"");
        assert_eq!(question(b"\n").unwrap(), b"");
        assert_eq!(question("tab\tand Å\u{301}".as_bytes()).unwrap().len(), 12);
    }

    #[test]
    fn whatever_a_program_could_take_for_a_lines_end_is_refused_inside() {
        let ends = [
            "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\u{85}", "\u{2028}",
            "\u{2029}", "\0",
        ];
        for end in ends {
            for body in [format!("a{end}b"), format!("{end}b"), format!("a{end}\n")] {
                if body == "a\r\n" {
                    continue;
                }
                let status = question(body.as_bytes()).unwrap_err();
                assert_eq!(status.code, Code::InvalidArgument, "{body:?}");
            }
        }
        assert!(question(b"a\r").is_err());
        assert!(question(b"\xff\x85").is_err() && question(b"\xff\x84").is_ok());
    }
}
