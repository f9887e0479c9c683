//! One search for many literals: an Aho-Corasick automaton as a table.
//!
//! `aho-corasick` builds it. Its table is laid out differently here, since the firewall spends most of its time in this
//! loop: bytes are folded to lower case and white space to a space, a state is the offset of its row, and accepting states
//! come first, so that one comparison recognises them.

use std::collections::HashMap;

use aho_corasick::{
    Anchored, BuildError, MatchKind, StartKind,
    automaton::{Automaton as _, StateID},
    dfa::DFA,
};

/// Bytes of literals in one automaton; its table takes up to 256 times as much.
const MAX_LITERAL_BYTES: usize = 60_000;

/// A search for literals; matches report their indices.
pub(super) struct LiteralAutomaton {
    /// The column of each byte.
    columns: [u8; 256],
    /// The next state for each state and column.
    next: Vec<u32>,
    start: u32,
    /// The length of a row.
    row: usize,
    /// The literals that end in each accepting state.
    ends: Vec<Vec<u32>>,
}

impl LiteralAutomaton {
    /// As many automata as needed for these literals, which are in the form that [`fold`] gives.
    pub(super) fn build(literals: &[Vec<u8>]) -> Result<Vec<Self>, BuildError> {
        let mut all = Vec::new();
        let (mut from, mut bytes) = (0, 0);
        for at in 0..=literals.len() {
            let length = literals.get(at).map_or(MAX_LITERAL_BYTES + 1, Vec::len);
            if bytes + length > MAX_LITERAL_BYTES && at > from {
                all.push(Self::of(&literals[from..at], from as u32)?);
                (from, bytes) = (at, 0);
            }
            bytes += length;
        }
        Ok(all)
    }

    fn of(literals: &[Vec<u8>], first: u32) -> Result<Self, BuildError> {
        let dfa = DFA::builder()
            .match_kind(MatchKind::Standard)
            .start_kind(StartKind::Unanchored)
            .prefilter(false)
            .build(literals)?;
        // A column for each byte that occurs in a literal, and one for all others.
        let mut columns = [0; 256];
        let mut representatives = vec![0_u8];
        for byte in 0..=255 {
            if literals.iter().any(|literal| literal.contains(&byte)) {
                columns[usize::from(byte)] = representatives.len() as u8;
                representatives.push(byte);
            }
        }
        // The first column is represented by a byte that occurs in no literal.
        representatives[0] = (0..=255)
            .find(|byte| columns[usize::from(*byte)] == 0)
            .unwrap_or(0);
        let start = dfa.start_state(Anchored::No).unwrap_or_default();
        let mut known: HashMap<StateID, usize> = HashMap::from([(start, 0)]);
        let mut states = vec![start];
        let mut table: Vec<usize> = Vec::new();
        let mut at = 0;
        while let Some(state) = states.get(at).copied() {
            for byte in &representatives {
                let next = dfa.next_state(Anchored::No, state, *byte);
                let place = *known.entry(next).or_insert_with(|| {
                    states.push(next);
                    states.len() - 1
                });
                table.push(place);
            }
            at += 1;
        }
        // Accepting states come first.
        let mut order: Vec<usize> = (0..states.len()).collect();
        order.sort_by_key(|at| !dfa.is_match(states[*at]));
        let row = representatives.len();
        let mut place = vec![0; states.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = (new * row) as u32;
        }
        let rows = order
            .iter()
            .flat_map(|old| &table[old * row..(old + 1) * row]);
        let next = rows.map(|to| place[*to]).collect();
        let ending = order
            .iter()
            .map(|old| states[*old])
            .take_while(|state| dfa.is_match(*state));
        let ends = |state: StateID| {
            let literal = |index| first + dfa.match_pattern(state, index).as_u32();
            (0..dfa.match_len(state)).map(literal).collect()
        };
        // Bytes are folded before the lookup.
        let columns = std::array::from_fn(|byte| columns[usize::from(fold(byte as u8))]);
        Ok(Self {
            columns,
            next,
            start: place[0],
            row,
            ends: ending.map(ends).collect(),
        })
    }

    /// Calls `found` with each literal that occurs and where it ends; with `COMPRESS`, repeated white space is skipped.
    pub(super) fn find<const COMPRESS: bool>(
        &self,
        bytes: &[u8],
        found: &mut dyn FnMut(u32, usize),
    ) {
        let (mut state, mut at) = (self.start, 0);
        while let Some(hit) = self.next_end::<COMPRESS>(bytes, state, at) {
            (state, at) = hit;
            for literal in &self.ends[state as usize / self.row] {
                found(*literal, at);
            }
        }
    }

    /// The next accepting state, and its position. A function of its own, so that the loop keeps its values in registers.
    #[inline(never)]
    fn next_end<const COMPRESS: bool>(
        &self,
        bytes: &[u8],
        mut state: u32,
        from: usize,
    ) -> Option<(u32, usize)> {
        let (columns, next) = (&self.columns, &self.next[..]);
        let ending = (self.ends.len() * self.row) as u32;
        let blank = columns[usize::from(b' ')];
        let mut before = match from.checked_sub(1) {
            Some(last) if COMPRESS => columns[usize::from(bytes[last])],
            _ => 0,
        };
        for (at, byte) in bytes.iter().enumerate().skip(from) {
            let column = columns[usize::from(*byte)];
            let after = next[state as usize + usize::from(column)];
            if COMPRESS {
                let again = blank != 0 && column == blank && before == blank;
                before = column;
                if again {
                    continue;
                }
            }
            state = after;
            if state < ending {
                return Some((state, at + 1));
            }
        }
        None
    }
}

/// Folds to lower case, and white space to a space.
pub(super) const fn fold(byte: u8) -> u8 {
    match byte {
        9..=13 => b' ',
        byte => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<const COMPRESS: bool>(literals: &[&str], text: &str) -> Vec<(u32, usize)> {
        let literals: Vec<Vec<u8>> = literals.iter().map(|l| l.as_bytes().to_vec()).collect();
        let mut found = Vec::new();
        for automaton in LiteralAutomaton::build(&literals).unwrap() {
            automaton.find::<COMPRESS>(text.as_bytes(), &mut |literal, end| {
                found.push((literal, end));
            });
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn literals_are_found_wherever_they_overlap_whatever_their_case() {
        let literals = ["or ", "for ", "r", "select", "x y"];
        assert_eq!(
            found::<false>(&literals, "FOR\tseleCT x  y"),
            [(0, 4), (1, 4), (2, 3), (3, 10)]
        );
        assert_eq!(
            found::<true>(&literals, "FOR\t\n seleCT x  y"),
            [(0, 4), (1, 4), (2, 3), (3, 12), (4, 17)]
        );
        assert_eq!(found::<false>(&[], "x"), []);
    }

    #[test]
    fn more_literals_than_one_automaton_takes_are_found_by_several() {
        let literals: Vec<String> = (0..20_000).map(|n| format!("word{n:05}")).collect();
        let literals: Vec<&str> = literals.iter().map(String::as_str).collect();
        assert_eq!(
            found::<false>(&literals, "a Word00000, word19999"),
            [(0, 11), (19_999, 22)]
        );
    }
}
