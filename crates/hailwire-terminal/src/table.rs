//! Aligned tables in plain text: columns two spaces apart, without frames and trailing spaces, readable for people,
//! `grep` and `awk`.

use std::fmt::Write as _;

use crate::text;

/// How far a column of text is narrowed at most.
const NARROWEST: usize = 8;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnAlign {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// How tables are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// Bold headings.
    pub colour: bool,
    /// Columns of the terminal; none where a table is as wide as it is.
    pub width: Option<usize>,
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

    /// The whole table. On a terminal, columns of text are cut
    /// until a row fits on a line, the widest first; what is cut ends with `…`.
    pub fn render(&self, style: TableStyle) -> String {
        let width = |index: usize, heading: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            cells
                .map(|cell| cell.chars().count())
                .chain([heading.chars().count()])
                .max()
                .unwrap_or(0)
        };
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (heading, _))| width(i, heading))
            .collect();
        if let Some(most) = style.width {
            self.fit(&mut widths, most);
        }
        let mut out = String::new();
        let headings = self.columns.iter().map(|(heading, _)| *heading);
        let line = self.line(headings, &widths);
        if style.colour {
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

    /// Narrows columns of text until a row has at most `most` characters, or none can be narrowed any more.
    fn fit(&self, widths: &mut [usize], most: usize) {
        let gaps = 2 * widths.len().saturating_sub(1);
        let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(most);
        while over > 0 {
            let columns = widths.iter_mut().zip(&self.columns);
            let text = columns
                .filter(|(width, (_, align))| *align == ColumnAlign::Left && **width > NARROWEST);
            let Some((widest, _)) = text.max_by_key(|(width, _)| **width) else {
                return;
            };
            *widest -= 1;
            over -= 1;
        }
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, (_, align)), width) in cells.zip(&self.columns).zip(widths) {
            let cut = cut(cell, *width);
            let cell = cut.as_deref().unwrap_or(cell);
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

/// A text that is longer than `width` characters, cut to it.
fn cut(text: &str, width: usize) -> Option<String> {
    if text.chars().count() <= width {
        return None;
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    Some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TableStyle = TableStyle {
        colour: false,
        width: None,
    };

    #[test]
    fn columns_align_and_lines_end_clean() {
        let mut table = TextTable::new(["NAME", ">RTT", "PATH"]);
        table.row(["desk".into(), "1.2 ms".into(), "direct".into()]);
        table.row(["a-long-name".into(), String::new(), String::new()]);
        assert_eq!(
            table.render(PLAIN),
            "NAME            RTT  PATH\n\
             desk         1.2 ms  direct\n\
             a-long-name       -  -\n"
        );
    }

    #[test]
    fn on_a_terminal_the_widest_texts_are_cut_until_a_row_fits() {
        let mut table = TextTable::new(["NAME", ">RTT", "DESCRIPTION"]);
        table.row([
            "desk".into(),
            "1.2 ms".into(),
            "counts the words of a text".into(),
        ]);
        let rendered = |width| {
            table.render(TableStyle {
                width: Some(width),
                ..PLAIN
            })
        };
        assert_eq!(rendered(80), table.render(PLAIN));
        assert_eq!(
            rendered(30),
            "NAME     RTT  DESCRIPTION\ndesk  1.2 ms  counts the word…\n"
        );
        // Numbers are never cut, and no text to nothing.
        assert_eq!(
            rendered(1),
            "NAME     RTT  DESCRIP…\ndesk  1.2 ms  counts …\n"
        );
    }

    #[test]
    fn a_cell_with_a_newline_stays_in_its_row() {
        let mut table = TextTable::new(["A"]);
        table.row(["x\ny".into()]);
        assert_eq!(table.render(PLAIN), "A\nx y\n");
    }
}
