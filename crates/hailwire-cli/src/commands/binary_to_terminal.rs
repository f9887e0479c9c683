//! Bytes that are no text could steer a terminal: before the first of them is written there, the user is asked.

use hailwire::{Code, Status};
use hailwire_terminal::{confirm::confirm, failure::CommandFailure};

/// What is known of the terminal that an answer is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinaryToTerminal {
    /// Whatever comes is written: stdout is no terminal, or the user agreed.
    Allowed,
    /// The user is asked.
    Ask,
    /// Nobody can be asked, since stdin is no terminal.
    Refuse,
}

impl BinaryToTerminal {
    /// At the start of an answer.
    pub(super) fn new(stdout_is_terminal: bool, stdin_is_terminal: bool) -> Self {
        match (stdout_is_terminal, stdin_is_terminal) {
            (false, _) => Self::Allowed,
            (true, true) => Self::Ask,
            (true, false) => Self::Refuse,
        }
    }

    /// Looks at a chunk of the answer before it is written. Blocks while the user is asked.
    pub(super) fn check(&mut self, chunk: &[u8]) -> Result<(), CommandFailure> {
        if *self == Self::Allowed || is_text(chunk) {
            return Ok(());
        }
        if *self == Self::Ask
            && confirm("the answer is not text and may change how the terminal behaves; print it?")?
        {
            *self = Self::Allowed;
            return Ok(());
        }
        let message = "the answer is not text, and was not written to the terminal";
        Err(CommandFailure::from(Status::new(Code::Cancelled, message))
            .hint("write it to a file with `> FILE`, or pass it on with `| PROGRAM`"))
    }
}

/// Whether a chunk may be part of a text: UTF-8 without a zero byte, which may be cut within a character at either end.
fn is_text(chunk: &[u8]) -> bool {
    const LONGEST_REST: usize = 3;
    let rest = chunk.iter().take(LONGEST_REST);
    let begins = rest.take_while(|byte| **byte & 0xc0 == 0x80).count();
    let text = chunk.get(begins..).unwrap_or_default();
    let whole = match std::str::from_utf8(text) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    whole && !chunk.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_wherever_it_is_cut() {
        let text = "zwölf Äpfel, 木, 🦀\n\x1b[1mbold\x1b[0m".as_bytes();
        for cut in 0..=text.len() {
            let (one, other) = text.split_at(cut);
            assert!(is_text(one) && is_text(other), "cut at {cut}");
        }
        for binary in [
            &b"a\0b"[..],
            b"\x7fELF\x02\xff",
            b"\xff\xd8\xff\xe0",
            b"ab\xc3(",
        ] {
            assert!(!is_text(binary), "{binary:?}");
        }
    }

    #[test]
    fn what_is_no_text_is_refused_where_nobody_can_be_asked() {
        let mut refusing = BinaryToTerminal::new(true, false);
        refusing.check(b"text").unwrap();
        let failure = refusing.check(b"\0").unwrap_err();
        assert!(failure.status.hint.contains("> FILE"), "{failure:?}");
        assert_eq!(BinaryToTerminal::new(true, true), BinaryToTerminal::Ask);
        BinaryToTerminal::new(false, true).check(b"\0").unwrap();
    }
}
