//! An index of the lines of a folder by their cell.

use std::collections::{BTreeMap, HashMap};

use super::result_folder::ResultFolder;
use crate::{
    measure::Spread,
    result::{CellId, MeasuredRepeat},
};

/// The key of a cell on a network, borrowed from a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CellKey<'a> {
    /// The table.
    pub(crate) table: &'a str,
    /// The row.
    pub(crate) row: &'a str,
    /// The subject.
    pub(crate) subject: &'a str,
    /// The form.
    pub(crate) form: &'a str,
    /// The network; empty for a cell that was skipped, which has none.
    pub(crate) network: &'a str,
}

impl<'a> CellKey<'a> {
    /// The key of a cell on a network.
    #[must_use]
    pub(crate) fn of(cell: &'a CellId, network: &'a str) -> Self {
        Self {
            table: &cell.table,
            row: &cell.row,
            subject: &cell.subject,
            form: &cell.form,
            network,
        }
    }

    /// The same cell of another subject.
    #[must_use]
    pub(crate) fn with(self, subject: &'a str) -> Self {
        Self { subject, ..self }
    }
}

/// An index of a folder, in the order of first appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellIndex<'a> {
    order: Vec<CellKey<'a>>,
    lines: HashMap<CellKey<'a>, Vec<&'a MeasuredRepeat>>,
    skipped: Vec<CellKey<'a>>,
    reasons: HashMap<CellKey<'a>, &'a str>,
}

impl<'a> CellIndex<'a> {
    /// Builds it from a folder.
    #[must_use]
    pub(crate) fn of(folder: &'a ResultFolder) -> Self {
        let mut cells = Self::default();
        for line in &folder.lines {
            let cell_key = CellKey::of(&line.cell, &line.network);
            let lines = cells.lines.entry(cell_key).or_insert_with(|| {
                cells.order.push(cell_key);
                Vec::new()
            });
            lines.push(line);
        }
        for skipped in &folder.skipped {
            let cell_key = CellKey::of(&skipped.cell, "");
            if cells.reasons.insert(cell_key, &skipped.reason).is_none() {
                cells.skipped.push(cell_key);
            }
        }
        cells
    }

    /// Every measured cell, in the order of first appearance.
    pub(crate) fn measured(&self) -> impl Iterator<Item = CellKey<'a>> {
        self.order.iter().copied()
    }

    /// Every cell that was skipped, in the order of first appearance.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = CellKey<'a>> {
        self.skipped.iter().copied()
    }

    /// Why a cell was not measured, where a reason is known.
    #[must_use]
    pub(crate) fn reason(&self, cell_key: CellKey<'_>) -> Option<&str> {
        let cell_key = CellKey {
            network: "",
            ..cell_key
        };
        self.reasons.get(&cell_key).copied()
    }

    /// All lines of a cell, the warm-up included.
    #[must_use]
    pub(crate) fn lines<'s>(&'s self, cell_key: CellKey<'s>) -> &'s [&'s MeasuredRepeat] {
        self.lines.get(&cell_key).map_or(&[], Vec::as_slice)
    }

    /// A figure in each counted repeat. A repeat that was measured twice counts as measured last.
    #[must_use]
    pub(crate) fn values(&self, cell_key: CellKey<'_>, figure: &str) -> BTreeMap<u32, f64> {
        self.counted(cell_key)
            .filter_map(|line| Some((line.repeat, *line.figures.get(figure)?)))
            .collect()
    }

    /// A figure's spread and the number of repeats behind it.
    #[must_use]
    pub(crate) fn spread(&self, cell_key: CellKey<'_>, figure: &str) -> Option<(Spread, usize)> {
        let values = self.values(cell_key, figure);
        let count = values.len();
        Some((Spread::of(values.into_values().collect())?, count))
    }

    /// Whether a figure has a counted repeat.
    #[must_use]
    pub(crate) fn has(&self, cell_key: CellKey<'_>, figure: &str) -> bool {
        self.counted(cell_key)
            .any(|line| line.figures.contains_key(figure))
    }

    /// The names of the figures in a cell's counted repeats, in order.
    #[must_use]
    pub(crate) fn figures<'s>(&'s self, cell_key: CellKey<'s>) -> Vec<&'s str> {
        let mut names: Vec<&str> = Vec::new();
        for line in self.counted(cell_key) {
            for name in line.figures.keys() {
                if !names.contains(&name.as_str()) {
                    names.push(name);
                }
            }
        }
        names.sort_unstable();
        names
    }

    fn counted<'s>(&'s self, cell_key: CellKey<'s>) -> impl Iterator<Item = &'s MeasuredRepeat> {
        let lines = self.lines(cell_key).iter().copied();
        lines.filter(|line| line.repeat > 0)
    }
}
