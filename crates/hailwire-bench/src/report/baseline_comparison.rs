//! Where we lose and where we win: every figure of ours beside the same figure of a baseline, on the
//! same row, in the same form, on the same network, in the same run. Of redundant figures ([`figure::distinct`]) one is compared; the tables have them all.

use std::collections::HashMap;

use super::{
    cell_index::{CellIndex, CellKey},
    figure, published,
    spread::{DifferenceVerdict, RatioSpread},
    subjects, table,
};
use crate::measure::Spread;

/// One figure of ours beside a baseline's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BaselineComparison {
    /// The table.
    pub(crate) table: String,
    /// The row.
    pub(crate) row: String,
    /// The form.
    pub(crate) form: String,
    /// The network.
    pub(crate) network: String,
    /// The figure's name.
    pub(crate) figure: String,
    /// Our subject.
    pub(crate) ours: String,
    /// The baseline.
    pub(crate) theirs: String,
    /// Our figure.
    pub(crate) our: Spread,
    /// The baseline's.
    pub(crate) their: Spread,
    /// Ours divided by the baseline's, paired.
    pub(crate) ratio: RatioSpread,
    /// Ours is…
    pub(crate) verdict: DifferenceVerdict,
    /// How many times as good ours is; below 1 we are behind.
    pub(crate) lead: f64,
}

impl BaselineComparison {
    /// `Q2 · 10 agents × 1 KB, 0 ms · pooled`.
    #[must_use]
    pub(crate) fn cell_key(&self) -> String {
        let parts = [&self.table, &self.row, &self.form];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.cloned().collect::<Vec<_>>().join(" · ")
    }

    /// Whether both are about the same figure of the same cell of ours.
    #[must_use]
    pub(crate) fn same_figure(&self, other: &Self) -> bool {
        self.cell_key() == other.cell_key()
            && self.network == other.network
            && self.ours == other.ours
            && self.figure == other.figure
    }

    /// `Q1 · 1 agent · cold: p50 of Hailwire over QUIC is 60 ms, of plain HTTP/2 155 ms: …`, as one line.
    #[must_use]
    pub(crate) fn sentence(&self) -> String {
        format!(
            "{}: {} of {} is {}, of {} {}: {}, {}",
            self.cell_key(),
            figure::label(&self.figure),
            subjects::words(&self.ours),
            figure::text(&self.figure, self.our.median),
            subjects::words(&self.theirs),
            figure::text(&self.figure, self.their.median),
            self.ratio.text(),
            self.verdict.text(),
        )
    }
}

/// All of them, in the order of the lines. Table Q12 is left out: its scores are made of the others.
#[must_use]
pub(crate) fn all(cells: &CellIndex<'_>) -> Vec<BaselineComparison> {
    let mut subjects: HashMap<CellKey<'_>, Vec<&str>> = HashMap::new();
    for cell_key in cells.measured() {
        let at = subjects.entry(cell_key.with("")).or_default();
        at.push(cell_key.subject);
    }
    let mut out = Vec::new();
    for cell_key in cells.measured().filter(|cell_key| cell_key.table != "Q12") {
        let others = subjects
            .get(&cell_key.with(""))
            .map_or(&[][..], Vec::as_slice);
        for other in others {
            if subjects::compared(cell_key.subject, other) {
                out.extend(beside(cells, cell_key, cell_key.with(other)));
            }
        }
    }
    out
}

fn beside(
    cells: &CellIndex<'_>,
    ours: CellKey<'_>,
    theirs: CellKey<'_>,
) -> Vec<BaselineComparison> {
    let names = figure::distinct(&cells.figures(ours));
    // A published table is about some figures; its lines may carry more, which stand in others.
    let shown = published::tables().find(|table| table.id == ours.table);
    let shown = shown.map(published::PublishedTable::figures);
    let about = |name: &str| shown.as_ref().is_none_or(|shown| shown.contains(&name));
    names
        .iter()
        .filter(|name| about(name))
        .filter_map(|name| compare_cell(cells, ours, theirs, name))
        .collect()
}

/// One figure of two cells; nothing where one lacks it, or where no way is better.
pub(crate) fn compare_cell(
    cells: &CellIndex<'_>,
    ours: CellKey<'_>,
    theirs: CellKey<'_>,
    name: &str,
) -> Option<BaselineComparison> {
    let better = figure::better(name)?;
    let ratio = RatioSpread::paired(&cells.values(ours, name), &cells.values(theirs, name))?;
    Some(BaselineComparison {
        table: ours.table.to_owned(),
        row: ours.row.to_owned(),
        form: ours.form.to_owned(),
        network: ours.network.to_owned(),
        figure: name.to_owned(),
        ours: ours.subject.to_owned(),
        theirs: theirs.subject.to_owned(),
        our: cells.spread(ours, name)?.0,
        their: cells.spread(theirs, name)?.0,
        verdict: ratio.verdict(better),
        lead: ratio.lead(better),
        ratio,
    })
}

/// Those in which we are behind, the furthest first. Rows with too few repeats to say are among
/// them where their ratio is against us: they are printed with that word.
#[must_use]
pub(crate) fn losses(all: &[BaselineComparison]) -> Vec<&BaselineComparison> {
    let mut losses: Vec<&BaselineComparison> = all
        .iter()
        .filter(|one| match one.verdict {
            DifferenceVerdict::Worse => true,
            DifferenceVerdict::TooFew => one.lead < 1.0,
            DifferenceVerdict::Better | DifferenceVerdict::NoDifference => false,
        })
        .collect();
    losses.sort_by(|a, b| a.lead.total_cmp(&b.lead));
    losses
}

/// Those in which we are ahead beyond the spread, the furthest first.
#[must_use]
pub(crate) fn wins(all: &[BaselineComparison]) -> Vec<&BaselineComparison> {
    let mut wins: Vec<&BaselineComparison> = all
        .iter()
        .filter(|one| one.verdict == DifferenceVerdict::Better)
        .collect();
    wins.sort_by(|a, b| b.lead.total_cmp(&a.lead));
    wins
}

/// Of each figure of ours the comparison with the best baseline, in the order of the lines.
#[must_use]
pub(crate) fn best_others(all: &[BaselineComparison]) -> Vec<&BaselineComparison> {
    let mut best: Vec<&BaselineComparison> = Vec::new();
    // Comparisons of one cell of ours follow each other, by baseline and then by figure.
    let mut begun = 0;
    for one in all {
        let same_cell = |other: &BaselineComparison| {
            other.cell_key() == one.cell_key()
                && other.network == one.network
                && other.ours == one.ours
        };
        if best.last().is_some_and(|last| !same_cell(last)) {
            begun = best.len();
        }
        let here = best.iter_mut().skip(begun);
        match here.into_iter().find(|other| other.same_figure(one)) {
            Some(other) if one.lead < other.lead => *other = one,
            Some(_) => {}
            None => best.push(one),
        }
    }
    best
}

/// Of those in which we are behind beyond the spread, sorted by how far, the one in the middle; of two the one further behind.
#[must_use]
pub(crate) fn middle_loss<'a>(all: &[&'a BaselineComparison]) -> Option<&'a BaselineComparison> {
    let mut behind: Vec<&BaselineComparison> = all
        .iter()
        .copied()
        .filter(|one| one.verdict == DifferenceVerdict::Worse)
        .filter(|one| !INDIRECT_FIGURES.contains(&one.figure.as_str()))
        .collect();
    behind.sort_by(|a, b| a.lead.total_cmp(&b.lead));
    let middle = behind.len().checked_sub(1)? / 2;
    behind.get(middle).copied()
}

/// How many of them chance alone would put beyond the spread, if no two subjects differed: of n
/// pairs, all are on one side once in 2ⁿ⁻¹.
pub(crate) fn by_chance(all: &[BaselineComparison]) -> f64 {
    let decided = all
        .iter()
        .filter(|one| one.verdict != DifferenceVerdict::TooFew);
    decided
        .map(|one| 0.5_f64.powi(one.ratio.count as i32 - 1))
        .sum()
}

/// Figures that are too coarse or too indirect for a summary.
const INDIRECT_FIGURES: &[&str] = &["cpu_s", "cpu_percent"];

/// The rows at the top of a report. First the published tables' own questions: of each table the first row that we have
/// beside a baseline. Then where we lose: of the [`LOSING_TABLES`] tables with most figures behind, the middle one.
#[must_use]
pub(crate) fn first_rows(all: &[BaselineComparison]) -> Vec<&BaselineComparison> {
    let best: Vec<&BaselineComparison> = best_others(all)
        .into_iter()
        .filter(|one| !INDIRECT_FIGURES.contains(&one.figure.as_str()))
        .collect();
    let mut chosen: Vec<&BaselineComparison> = published::tables()
        .filter_map(|table| question(table, &best))
        .collect();
    let mut behind: Vec<(&str, Vec<&BaselineComparison>)> = Vec::new();
    for one in best {
        if one.verdict == DifferenceVerdict::Worse {
            match behind.iter_mut().find(|(table, _)| *table == one.table) {
                Some((_, losses)) => losses.push(one),
                None => behind.push((&one.table, vec![one])),
            }
        }
    }
    // Stable: of equal tables the one that was measured first.
    behind.sort_by_key(|(_, losses)| std::cmp::Reverse(losses.len()));
    for (_, losses) in behind.iter().take(LOSING_TABLES) {
        let new = middle_loss(losses).filter(|one| !chosen.contains(one));
        chosen.extend(new);
    }
    chosen
}

/// Tables of which the first rows of a report have a loss.
const LOSING_TABLES: usize = 3;

/// The first row of a published table that we have, of the subject of ours that comes first, by the figure that it was published in.
fn question<'a>(
    table: &published::PublishedTable,
    best: &[&'a BaselineComparison],
) -> Option<&'a BaselineComparison> {
    table.rows.iter().find_map(|row| {
        let here = best.iter().copied().filter(|one| {
            one.table == table.id
                && row.figures.contains(&one.figure.as_str())
                && table::belongs(table.rows, row, &one.row, &one.form)
        });
        here.min_by_key(|one| {
            let asked = row.figures.iter().position(|name| *name == one.figure);
            (subjects::order(&one.ours), asked)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{fixture, result_folder::ResultFolder},
        result::MeasuredRepeat,
    };

    fn folder(lines: Vec<MeasuredRepeat>) -> ResultFolder {
        ResultFolder {
            lines,
            ..ResultFolder::default()
        }
    }

    fn repeats(subject: &str, form: &str, network: &str, values: &[f64]) -> Vec<MeasuredRepeat> {
        let cell = fixture::cell("Q1", "10 agents, 0 ms", subject, form);
        (1..)
            .zip(values)
            .map(|(repeat, value)| {
                fixture::line(cell.clone(), network, repeat, &[("p50_us", *value)])
            })
            .collect()
    }

    #[test]
    fn a_row_in_which_we_are_worse_is_a_loss_and_a_hidden_one_is_not() {
        let mut lines = repeats("quic", "cold", "loopback", &[20.0, 21.0, 22.0]);
        lines.extend(repeats("plain h2", "cold", "loopback", &[10.0, 10.0, 10.0]));
        lines.extend(repeats("raw iroh", "cold", "loopback", &[20.0, 30.0, 20.0]));
        let folder = folder(lines);
        let all = all(&CellIndex::of(&folder));
        let losses = losses(&all);
        assert_eq!(losses.len(), 1);
        assert_eq!(losses[0].theirs, "plain h2");
        assert_eq!(wins(&all), Vec::<&BaselineComparison>::new());
    }

    #[test]
    fn another_form_or_network_is_not_the_same_work() {
        let mut lines = repeats("quic", "warm", "loopback", &[1.0, 1.0, 1.0]);
        lines.extend(repeats("plain h2", "cold", "loopback", &[9.0, 9.0, 9.0]));
        lines.extend(repeats("plain h2", "warm", "wan-50ms", &[9.0, 9.0, 9.0]));
        assert_eq!(all(&CellIndex::of(&folder(lines))), Vec::new());
    }

    #[test]
    fn a_loss_of_too_few_repeats_is_printed_as_that() {
        let mut lines = repeats("quic", "", "loopback", &[2.0]);
        lines.extend(repeats("plain h2", "", "loopback", &[1.0]));
        let folder = folder(lines);
        let all = all(&CellIndex::of(&folder));
        assert_eq!(losses(&all)[0].verdict, DifferenceVerdict::TooFew);
    }

    #[test]
    fn the_first_rows_are_each_tables_question_and_then_losses_from_the_middle() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        let folder = ResultFolder::read(dir.path()).unwrap();
        let all = all(&CellIndex::of(&folder));
        let chosen = first_rows(&all);
        let tables: Vec<&str> = chosen.iter().map(|one| one.table.as_str()).collect();
        assert_eq!(tables[..5], ["Q1", "Q2", "Q4", "Q6", "O3"]);
        assert!(chosen[0].row.starts_with("10 agents") && chosen[0].ours == "quic");
        assert!(
            chosen[5..]
                .iter()
                .all(|one| one.verdict == DifferenceVerdict::Worse)
        );
        assert!((1..=LOSING_TABLES).contains(&chosen[5..].len()));
    }

    #[test]
    fn the_loss_shown_is_the_one_in_the_middle_and_of_two_the_one_further_behind() {
        let lines = |worse: &[f64]| {
            let mut lines = Vec::new();
            for (n, factor) in worse.iter().enumerate() {
                for (subject, us) in [("quic", *factor), ("plain h2", 1.0)] {
                    let cell = fixture::cell("Q1", &format!("{n} agents, 0 ms"), subject, "cold");
                    for repeat in 1..=3 {
                        lines.push(fixture::line(
                            cell.clone(),
                            "loopback",
                            repeat,
                            &[("p50_us", us)],
                        ));
                    }
                }
            }
            lines
        };
        for (worse, middle) in [(vec![9.0, 2.0, 3.0, 0.5], 3.0), (vec![9.0, 2.0, 0.5], 9.0)] {
            let folder = folder(lines(&worse));
            let all = all(&CellIndex::of(&folder));
            let shown = middle_loss(&best_others(&all)).unwrap();
            assert_eq!(shown.our.median, middle);
        }
        assert_eq!(middle_loss(&[]), None);
    }

    #[test]
    fn of_several_baselines_the_best_stands_beside_ours() {
        let mut lines = repeats("quic", "cold", "loopback", &[20.0, 21.0, 22.0]);
        lines.extend(repeats("plain h2", "cold", "loopback", &[30.0, 30.0, 30.0]));
        lines.extend(repeats("raw iroh", "cold", "loopback", &[10.0, 10.0, 10.0]));
        let folder = folder(lines);
        let all = all(&CellIndex::of(&folder));
        let best = best_others(&all);
        assert_eq!(best.len(), 1);
        assert_eq!(best[0].theirs, "raw iroh");
    }
}
