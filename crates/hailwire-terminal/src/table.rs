//! Aligned tables in plain text: columns two spaces apart, without frames and trailing spaces, readable for people,
//! `grep` and `awk`.

use std::fmt::Write as _;

use crate::text;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnAlign {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings.
#[derive(Debug)]
pub struct TextTable {
    columns: Vec<(&'static str, ColumnAlign)>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with headings; those of right-aligned columns begin with `>`: `"NAME"`, `">RTT"`.
    pub fn new<const N: usize>(headings: [&'static str; N]) -> Self {
        let column = |heading: &'static str| match heading.strip_prefix('>') {
            Some(heading) => (heading, ColumnAlign::Right),
            None => (heading, ColumnAlign::Left),
        };
        Self {
            columns: headings.into_iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. An empty cell shows as `-`.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        let cell = |cell: String| match cell.is_empty() {
            true => "-".to_owned(),
            false => text::one_line(&cell),
        };
        self.rows.push(cells.into_iter().map(cell).collect());
    }

    /// The whole table; the headings in bold where `colour` is set.
    pub fn render(&self, colour: bool) -> String {
        let width = |index: usize, heading: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            cells
                .map(|cell| cell.chars().count())
                .chain([heading.chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (heading, _))| width(i, heading))
            .collect();
        let mut out = String::new();
        let headings = self.columns.iter().map(|(heading, _)| *heading);
        let line = self.line(headings, &widths);
        if colour {
            let _ = writeln!(out, "{}{line}{}", text::BOLD, text::PLAIN);
        } else {
            let _ = writeln!(out, "{line}");
        }
        for row in &self.rows {
            let _ = writeln!(
                out,
                "{}",
                self.line(row.iter().map(String::as_str), &widths)
            );
        }
        out
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, (_, align)), width) in cells.zip(&self.columns).zip(widths) {
            let gap = " ".repeat(width - cell.chars().count());
            match align {
                ColumnAlign::Left => line.extend([cell, &gap, "  "]),
                ColumnAlign::Right => line.extend([&gap, cell, "  "]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_end_clean() {
        let mut table = TextTable::new(["NAME", ">RTT", "PATH"]);
        table.row(["desk".into(), "1.2 ms".into(), "direct".into()]);
        table.row(["a-long-name".into(), String::new(), String::new()]);
        assert_eq!(
            table.render(false),
            "NAME            RTT  PATH\n\
             desk         1.2 ms  direct\n\
             a-long-name       -  -\n"
        );
    }

    #[test]
    fn a_cell_with_a_newline_stays_in_its_row() {
        let mut table = TextTable::new(["A"]);
        table.row(["x\ny".into()]);
        assert_eq!(table.render(false), "A\nx y\n");
    }
}
