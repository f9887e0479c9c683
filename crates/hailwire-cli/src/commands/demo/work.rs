//! The three kinds of work, each twice: as an agent does it, chunk by chunk while the document
//! arrives, and as the orchestrator checks it, over the whole text with other means.
//!
//! | agent | its answer |
//! |---|---|
//! | `word-count` | lines, words and bytes, as `wc` counts them |
//! | `grep` | each line that contains the pattern, as `NUMBER:LINE`, sent as it is found |
//! | `sha256` | the digest in hex |

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The header field with the pattern for `grep`.
pub(super) const PATTERN_FIELD: &str = "pattern";

/// The pattern of the demonstration.
pub(super) const PATTERN: &str = "the";

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WorkKind {
    WordCount,
    Grep,
    Sha256,
}

impl WorkKind {
    pub(super) const ALL: [Self; 3] = [Self::WordCount, Self::Grep, Self::Sha256];

    /// The agent's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WordCount => "word-count",
            Self::Grep => "grep",
            Self::Sha256 => "sha256",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::WordCount => "counts lines, words and bytes",
            Self::Grep => "finds the lines that contain a text",
            Self::Sha256 => "computes SHA-256",
        }
    }

    /// The kinds of the `count` agents of one worker: evenly distributed, so that at least three agents cover all
    /// kinds.
    pub(super) fn shared_out(count: usize) -> Vec<Self> {
        Self::ALL.into_iter().cycle().take(count).collect()
    }

    /// The correct answer for a whole document.
    pub(super) fn expected(self, text: &str) -> Vec<u8> {
        match self {
            Self::WordCount => {
                let lines = text.matches('\n').count();
                let words = text.split_ascii_whitespace().count();
                format!("{lines} {words} {}", text.len()).into_bytes()
            }
            Self::Grep => {
                let lines = text.split('\n').enumerate();
                let found = lines.filter(|(_, line)| line.contains(PATTERN));
                let text: String = found
                    .map(|(i, line)| format!("{}:{line}\n", i + 1))
                    .collect();
                text.into_bytes()
            }
            Self::Sha256 => HEXLOWER.encode(&Sha256::digest(text)).into_bytes(),
        }
    }
}

/// A document that is being processed.
#[derive(Debug)]
pub(super) enum WorkInProgress {
    WordCount {
        lines: u64,
        words: u64,
        bytes: u64,
        in_word: bool,
    },
    Grep {
        pattern: Vec<u8>,
        /// The received part of the current line.
        line: Vec<u8>,
        number: u64,
    },
    Sha256(Box<Sha256>),
}

impl WorkInProgress {
    pub(super) fn new(work: WorkKind, pattern: &str) -> Self {
        match work {
            WorkKind::WordCount => Self::WordCount {
                lines: 0,
                words: 0,
                bytes: 0,
                in_word: false,
            },
            WorkKind::Grep => Self::Grep {
                pattern: pattern.as_bytes().to_vec(),
                line: Vec::new(),
                number: 0,
            },
            WorkKind::Sha256 => Self::Sha256(Box::default()),
        }
    }

    /// Adds a chunk of the document and returns the part of the answer that is known already.
    pub(super) fn take(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::WordCount {
                lines,
                words,
                bytes,
                in_word,
            } => {
                *bytes += chunk.len() as u64;
                for byte in chunk {
                    let space = byte.is_ascii_whitespace();
                    *words += u64::from(*in_word && space);
                    *lines += u64::from(*byte == b'\n');
                    *in_word = !space;
                }
            }
            Self::Grep {
                pattern,
                line,
                number,
            } => {
                for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(part);
                    if part.ends_with(b"\n") {
                        line.pop();
                        grep_line(pattern, line, number, &mut out);
                    }
                }
            }
            Self::Sha256(hasher) => hasher.update(chunk),
        }
        out
    }

    /// The rest of the answer, once the document is whole.
    pub(super) fn finish(self) -> Vec<u8> {
        match self {
            Self::WordCount {
                lines,
                words,
                bytes,
                in_word,
            } => format!("{lines} {} {bytes}", words + u64::from(in_word)).into_bytes(),
            Self::Grep {
                pattern,
                mut line,
                mut number,
            } => {
                let mut out = Vec::new();
                grep_line(&pattern, &mut line, &mut number, &mut out);
                out
            }
            Self::Sha256(hasher) => HEXLOWER.encode(&hasher.finalize()).into_bytes(),
        }
    }
}

/// Ends a line: it is added to `out` if it contains the pattern.
fn grep_line(pattern: &[u8], line: &mut Vec<u8>, number: &mut u64, out: &mut Vec<u8>) {
    *number += 1;
    let found = pattern.is_empty() || line.windows(pattern.len()).any(|part| part == pattern);
    if found {
        out.extend_from_slice(format!("{number}:").as_bytes());
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    line.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked(work: WorkKind, text: &str, chunk: usize) -> Vec<u8> {
        let mut work = WorkInProgress::new(work, PATTERN);
        let mut out = Vec::new();
        for chunk in text.as_bytes().chunks(chunk) {
            out.extend(work.take(chunk));
        }
        out.extend(work.finish());
        out
    }

    #[test]
    fn agents_and_checks_agree_however_a_document_is_cut() {
        let texts = [
            "",
            "\n",
            "the",
            "one\n\nthe other\r\n  they\t\n",
            "no newline at the end, \u{fc}ber\u{a0}the\u{2003}x",
            "\n\nthe\n",
        ];
        for text in texts {
            for work in WorkKind::ALL {
                for chunk in [1, 2, 3, 1000] {
                    let (worked, expected) = (worked(work, text, chunk), work.expected(text));
                    assert_eq!(worked, expected, "{work:?} of {text:?} in {chunk}");
                }
            }
        }
    }

    #[test]
    fn the_checks_know_the_right_answers() {
        let text = "in the beginning\nwas\nthe word";
        let expected = |work: WorkKind| String::from_utf8(work.expected(text)).unwrap();
        assert_eq!(expected(WorkKind::WordCount), "2 6 29");
        assert_eq!(expected(WorkKind::Grep), "1:in the beginning\n3:the word\n");
        let abc = String::from_utf8(WorkKind::Sha256.expected("abc")).unwrap();
        assert!(abc.starts_with("ba7816bf8f01cfea414140de5dae2223"));
    }

    #[test]
    fn three_agents_cover_every_kind() {
        for work in WorkKind::ALL {
            assert!(WorkKind::shared_out(3).contains(&work));
        }
        assert_eq!(WorkKind::shared_out(10).len(), 10);
    }
}
