//! One search for many literals: an automaton of Aho and Corasick as a table.
//!
//! `aho-corasick` makes it. It is laid out anew here, since the loop over it is where a firewall's time goes: letters have no case and
//! white space is one space before the table sees them, a state is the place of its row, and those in which a literal
//! ends come first, so that one comparison tells them.

use std::collections::HashMap;

use aho_corasick::{
    Anchored, BuildError, MatchKind, StartKind,
    automaton::{Automaton as _, StateID},
    dfa::DFA,
};

/// Bytes of literals in one automaton; its table takes up to 256 times as much.
const BYTES: usize = 60_000;

/// A search for literals; they are told by their places.
pub(super) struct Automaton {
    /// For each byte its column.
    columns: [u8; 256],
    /// For each state and column the next state.
    next: Vec<u32>,
    start: u32,
    /// How long a row is.
    row: usize,
    /// The literals that end in the first states.
    ends: Vec<Vec<u32>>,
}

impl Automaton {
    /// As many as it takes for these; each a literal in the form that [`fold`] gives.
    pub(super) fn build(literals: &[Vec<u8>]) -> Result<Vec<Self>, BuildError> {
        let mut all = Vec::new();
        let (mut from, mut bytes) = (0, 0);
        for at in 0..=literals.len() {
            let length = literals.get(at).map_or(BYTES + 1, Vec::len);
            if bytes + length > BYTES && at > from {
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
        // A column for each byte that is in a literal, and one for all others.
        let mut columns = [0; 256];
        let mut kinds = vec![0_u8];
        for byte in 0..=255 {
            if literals.iter().any(|literal| literal.contains(&byte)) {
                columns[usize::from(byte)] = kinds.len() as u8;
                kinds.push(byte);
            }
        }
        // One that is in none, for the first column; all are hardly ever in some.
        kinds[0] = (0..=255)
            .find(|byte| columns[usize::from(*byte)] == 0)
            .unwrap_or(0);
        let start = dfa.start_state(Anchored::No).unwrap_or_default();
        let mut known: HashMap<StateID, usize> = HashMap::from([(start, 0)]);
        let mut states = vec![start];
        let mut table: Vec<usize> = Vec::new();
        let mut at = 0;
        while let Some(state) = states.get(at).copied() {
            for byte in &kinds {
                let next = dfa.next_state(Anchored::No, state, *byte);
                let place = *known.entry(next).or_insert_with(|| {
                    states.push(next);
                    states.len() - 1
                });
                table.push(place);
            }
            at += 1;
        }
        // Those in which a literal ends come first.
        let mut order: Vec<usize> = (0..states.len()).collect();
        order.sort_by_key(|at| !dfa.is_match(states[*at]));
        let row = kinds.len();
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
        // What bytes become before they are looked for.
        let columns = std::array::from_fn(|byte| columns[usize::from(fold(byte as u8))]);
        Ok(Self {
            columns,
            next,
            start: place[0],
            row,
            ends: ending.map(ends).collect(),
        })
    }

    /// Calls with each literal that is there and where it ends; white space after white space is passed over where that
    /// is wanted.
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

    /// The next state in which literals end, and where. By itself, so that the loop has the registers.
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

/// Lower case, and white space as a space.
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
        for automaton in Automaton::build(&literals).unwrap() {
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
