//! What the journal of a dispatch means to a run that goes on with it.
//!
//! A journal has one entry for each input that was answered: its index, a hash of its bytes, and where its line is. A run takes
//! an entry out when it reads the input ([`JournalIndex::take`]); an input with another hash is another one, and what is left
//! at the end are answers of inputs that are not there any more. Both mean that the journal is of other inputs.

use std::collections::BTreeMap;

/// Where a line of the journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLineAt {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes, without the line feed.
    pub length: usize,
}

/// What the journal says of an input that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputInJournal {
    /// It was not answered.
    Unanswered,
    /// Its answer is there.
    Answered(JournalLineAt),
    /// The journal has an answer of another input at this place.
    AnotherInput,
}

/// The entries of a journal that no input was read for yet. About 50 bytes of memory for each.
#[derive(Debug, Default)]
pub struct JournalIndex {
    entries: BTreeMap<u64, (u64, JournalLineAt)>,
}

impl JournalIndex {
    /// Enters an answer of the journal; the first of an input counts.
    pub fn enter(&mut self, index: u64, hash: u64, at: JournalLineAt) {
        self.entries.entry(index).or_insert((hash, at));
    }

    /// An input was read.
    pub fn take(&mut self, index: u64, hash: u64) -> InputInJournal {
        match self.entries.remove(&index) {
            None => InputInJournal::Unanswered,
            Some((entered, at)) if entered == hash => InputInJournal::Answered(at),
            Some(_) => InputInJournal::AnotherInput,
        }
    }

    /// How many answers no input was read for.
    #[must_use]
    pub fn left(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_of_an_input_at_its_place_with_its_bytes() {
        let at = |offset| JournalLineAt { offset, length: 9 };
        let mut index = JournalIndex::default();
        index.enter(3, 30, at(100));
        index.enter(1, 10, at(110));
        index.enter(3, 31, at(120));
        assert_eq!(index.take(0, 30), InputInJournal::Unanswered);
        assert_eq!(index.take(1, 11), InputInJournal::AnotherInput);
        assert_eq!(index.take(2, 30), InputInJournal::Unanswered);
        assert_eq!(index.left(), 1);
        assert_eq!(index.take(3, 30), InputInJournal::Answered(at(100)));
        assert_eq!(index.left(), 0);
        assert_eq!(index.take(3, 30), InputInJournal::Unanswered);
    }
}
