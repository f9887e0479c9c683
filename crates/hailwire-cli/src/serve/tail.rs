//! The last bytes of a stream, in bounded memory.

use std::collections::VecDeque;

/// Bytes that are kept.
pub(crate) const MAX: usize = 4 * 1024;

/// The last [`MAX`] bytes of what was pushed.
#[derive(Debug, Default)]
pub(crate) struct TailBuffer {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl TailBuffer {
    /// Adds bytes and forgets the oldest past [`MAX`].
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        let chunk = match chunk.len().checked_sub(MAX) {
            Some(over) if over > 0 => {
                self.cut = true;
                &chunk[over..]
            }
            _ => chunk,
        };
        let over = (self.bytes.len() + chunk.len()).saturating_sub(MAX);
        if over > 0 {
            self.cut = true;
            self.bytes.drain(..over);
        }
        self.bytes.extend(chunk);
    }

    /// The tail as text. Where it was cut it begins with a whole line, if it holds a line's end,
    /// and with `…`.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        match (self.cut, text.split_once('\n')) {
            (false, _) => text.to_owned(),
            (true, Some((_, whole))) => format!("…\n{whole}"),
            (true, None) => format!("…{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_kept_whole() {
        let mut tail = TailBuffer::default();
        tail.push(b"one\n");
        tail.push(b"two\n");
        assert_eq!(tail.text(), "one\ntwo");
    }

    #[test]
    fn memory_stays_bounded_however_much_is_pushed() {
        for chunk in [1, 100, MAX - 1, MAX, MAX + 1, 5 * MAX] {
            let mut tail = TailBuffer::default();
            for _ in 0..20 {
                tail.push(&vec![b'x'; chunk]);
                assert!(tail.bytes.len() <= MAX);
            }
            tail.push(b"\nlast");
            assert!(tail.text().ends_with("\nlast"), "{chunk}");
        }
    }

    #[test]
    fn a_cut_text_begins_with_a_whole_line() {
        let mut tail = TailBuffer::default();
        tail.push(format!("first\n{}\nlast", "x".repeat(MAX - 10)).as_bytes());
        assert!(tail.text().starts_with("…\nx"));
    }
}
