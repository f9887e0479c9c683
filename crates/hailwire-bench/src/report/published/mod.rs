//! The published tables that ours stand beside, as data.
//!
//! Four sources: the tables O of Pilot Protocol's article (an overlay against HTTP/2, two machines,
//! about 85 ms of round trip, median of 100), our own measurement of Pilot Protocol 1.18 on a machine
//! with two cores, the tables Q of agentic-flow's QUIC transport (QUIC with BBR, HTTP/2 over TLS 1.3,
//! WebSocket), and the tables C of Agent Protocol v2 (a proxy asks its agents). A figure is kept as the text that was published: it came from another machine, so nothing is
//! computed from it. Where it cannot be what it says, the table's notes say why.
//!
//! A measured row belongs to a published one when it holds all its [`PublishedRow::words`] (see
//! [`super::table`]); what belongs to none is a row of our own below.

mod callout;
mod coordination;
mod overlay;

use callout::CALLOUT;
use coordination::COORDINATION;
use overlay::OVERLAY;

/// One published table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedTable {
    /// `Q1` to `Q12`, `O1` to `O6`, `C1` to `C12`, `P` for the measured rows of Pilot Protocol, `CE` for those of
    /// callouts and `CF` for agents on other nodes.
    pub(crate) id: &'static str,
    /// The suite that measures it.
    pub(crate) suite: &'static str,
    /// What it is about, in words.
    pub(crate) title: &'static str,
    /// Who published it.
    pub(crate) source: &'static str,
    /// Columns: a published system, and our subjects that do the same work.
    pub(crate) groups: &'static [PublishedGroup],
    /// Rows, in the published order.
    pub(crate) rows: &'static [PublishedRow],
    /// Figures that are shown too where they were measured.
    pub(crate) also: &'static [&'static str],
    /// Notes for the reader.
    pub(crate) notes: &'static [&'static str],
}

/// A published column with the subjects beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedGroup {
    /// The published column's name.
    pub(crate) name: &'static str,
    /// Our subjects that do the same work, the closest first. The first has a column always, the
    /// others where they were measured.
    pub(crate) subjects: &'static [&'static str],
}

/// One published row, for one figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedRow {
    /// As printed.
    pub(crate) name: &'static str,
    /// What a measured row's name must hold to stand here; numbers stand with their unit.
    pub(crate) words: &'static str,
    /// Names of the measured figure; the first that a line has is shown.
    pub(crate) figures: &'static [&'static str],
    /// The published text for each group; empty where none was published.
    pub(crate) published: &'static [&'static str],
}

impl PublishedTable {
    /// Every figure that the table shows, the published ones first.
    pub(crate) fn figures(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = Vec::new();
        let published = self.rows.iter().flat_map(|row| row.figures);
        for name in published.chain(self.also) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        names
    }
}

/// All of them, in the order in which a report prints them.
pub(crate) fn tables() -> impl Iterator<Item = &'static PublishedTable> {
    COORDINATION.iter().chain(OVERLAY).chain(CALLOUT)
}

/// Every published text, for a report to be held to.
#[cfg(test)]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    tables()
        .flat_map(|table| table.rows)
        .flat_map(|row| row.published)
        .copied()
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_a_text_or_a_gap_for_each_published_column() {
        for table in tables() {
            for row in table.rows {
                assert_eq!(
                    row.published.len(),
                    table.groups.len(),
                    "{}: {}",
                    table.id,
                    row.name
                );
                assert!(!row.figures.is_empty(), "{}: {}", table.id, row.name);
            }
        }
    }

    #[test]
    fn the_tables_are_q1_to_q12_o1_to_o6_c1_to_c12_and_the_measured_rows() {
        let ids: BTreeSet<_> = tables().map(|table| table.id.to_owned()).collect();
        let wanted = (1..=12)
            .map(|n| format!("Q{n}"))
            .chain((1..=6).map(|n| format!("O{n}")))
            .chain((1..=12).map(|n| format!("C{n}")))
            .chain(["P", "CE", "CF"].map(str::to_owned));
        assert_eq!(ids, wanted.collect());
    }
}
