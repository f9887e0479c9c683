//! The lines of a folder, found by their place.

use std::collections::{BTreeMap, HashMap};

use super::folder::Folder;
use crate::{
    measure::Spread,
    result::{Cell, Line},
};

/// A cell on a network, in borrowed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place<'a> {
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

impl<'a> Place<'a> {
    /// Of a cell on a network.
    #[must_use]
    pub(crate) fn of(cell: &'a Cell, network: &'a str) -> Self {
        Self {
            table: &cell.table,
            row: &cell.row,
            subject: &cell.subject,
            form: &cell.form,
            network,
        }
    }

    /// The same place of another subject.
    #[must_use]
    pub(crate) fn with(self, subject: &'a str) -> Self {
        Self { subject, ..self }
    }
}

/// An index of a folder, in the order of first appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells<'a> {
    order: Vec<Place<'a>>,
    lines: HashMap<Place<'a>, Vec<&'a Line>>,
    skipped: Vec<Place<'a>>,
    reasons: HashMap<Place<'a>, &'a str>,
}

impl<'a> Cells<'a> {
    /// Of a folder.
    #[must_use]
    pub(crate) fn of(folder: &'a Folder) -> Self {
        let mut cells = Self::default();
        for line in &folder.lines {
            let place = Place::of(&line.cell, &line.network);
            let lines = cells.lines.entry(place).or_insert_with(|| {
                cells.order.push(place);
                Vec::new()
            });
            lines.push(line);
        }
        for skipped in &folder.skipped {
            let place = Place::of(&skipped.cell, "");
            if cells.reasons.insert(place, &skipped.reason).is_none() {
                cells.skipped.push(place);
            }
        }
        cells
    }

    /// Every measured place, in the order of first appearance.
    pub(crate) fn measured(&self) -> impl Iterator<Item = Place<'a>> {
        self.order.iter().copied()
    }

    /// Every place that was skipped, in the order of first appearance.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = Place<'a>> {
        self.skipped.iter().copied()
    }

    /// Why a place was not measured, where that was said.
    #[must_use]
    pub(crate) fn reason(&self, place: Place<'_>) -> Option<&str> {
        let place = Place {
            network: "",
            ..place
        };
        self.reasons.get(&place).copied()
    }

    /// All lines of a place, the warm-up included.
    #[must_use]
    pub(crate) fn lines<'s>(&'s self, place: Place<'s>) -> &'s [&'s Line] {
        self.lines.get(&place).map_or(&[], Vec::as_slice)
    }

    /// A figure in each counted repeat. A repeat that was measured twice counts as measured last.
    #[must_use]
    pub(crate) fn values(&self, place: Place<'_>, figure: &str) -> BTreeMap<u32, f64> {
        self.counted(place)
            .filter_map(|line| Some((line.repeat, *line.figures.get(figure)?)))
            .collect()
    }

    /// A figure's spread and the number of repeats behind it.
    #[must_use]
    pub(crate) fn spread(&self, place: Place<'_>, figure: &str) -> Option<(Spread, usize)> {
        let values = self.values(place, figure);
        let count = values.len();
        Some((Spread::of(values.into_values().collect())?, count))
    }

    /// Whether a figure has a counted repeat.
    #[must_use]
    pub(crate) fn has(&self, place: Place<'_>, figure: &str) -> bool {
        self.counted(place)
            .any(|line| line.figures.contains_key(figure))
    }

    /// The names of the figures in a place's counted repeats, in order.
    #[must_use]
    pub(crate) fn figures<'s>(&'s self, place: Place<'s>) -> Vec<&'s str> {
        let mut names: Vec<&str> = Vec::new();
        for line in self.counted(place) {
            for name in line.figures.keys() {
                if !names.contains(&name.as_str()) {
                    names.push(name);
                }
            }
        }
        names.sort_unstable();
        names
    }

    fn counted<'s>(&'s self, place: Place<'s>) -> impl Iterator<Item = &'s Line> {
        let lines = self.lines(place).iter().copied();
        lines.filter(|line| line.repeat > 0)
    }
}
