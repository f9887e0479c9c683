//! Excerpts of Hailwire's own pages, so that the demonstration has documents wherever it runs.

/// How many there are.
pub(super) const EXCERPTS: usize = 828;

/// Lines of each.
const LINES: usize = 40;

const PAGES: [&str; 10] = [
    include_str!("../../../../../docs/concepts/a-call-on-its-way.md"),
    include_str!("../../../../../docs/concepts/carriers-and-fallback.md"),
    include_str!("../../../../../docs/concepts/faults.md"),
    include_str!("../../../../../docs/concepts/names-and-trust.md"),
    include_str!("../../../../../docs/guide/agents.md"),
    include_str!("../../../../../docs/guide/first-call.md"),
    include_str!("../../../../../docs/guide/hub.md"),
    include_str!("../../../../../docs/guide/inspection-agents.md"),
    include_str!("../../../../../docs/guide/serving-programs.md"),
    include_str!("../../../../../docs/guide/two-machines.md"),
];

/// The excerpts: of all lines, as many that follow each other, beginning at places spread evenly.
pub(super) fn excerpts() -> impl Iterator<Item = String> {
    let lines: Vec<&str> = PAGES.iter().flat_map(|page| page.lines()).collect();
    (0..EXCERPTS).map(move |number| {
        let from = number * lines.len() / EXCERPTS;
        let part = lines.iter().cycle().skip(from).take(LINES);
        part.flat_map(|line| [line, "\n"]).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::commands::demo::work::PATTERN;

    #[test]
    fn no_two_excerpts_are_equal_and_most_hold_the_pattern() {
        let different: HashSet<String> = excerpts().collect();
        assert_eq!(different.len(), EXCERPTS);
        let found = different.iter().filter(|text| text.contains(PATTERN));
        assert!(found.count() > EXCERPTS / 2);
    }
}
