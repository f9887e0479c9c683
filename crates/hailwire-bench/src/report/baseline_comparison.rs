//! Where we lose and where we win: every figure of ours beside the same figure of a baseline, on the
//! same row, in the same form, on the same network, in the same run. Of redundant figures ([`figure::distinct`]) one is compared; the tables have them all.

use std::collections::HashMap;

use super::{
    cell_index::{CellIndex, CellKey},
    figure, published,
    spread::{DifferenceVerdict, RatioSpread},
    subjects,
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

fn compare_cell(
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

/// The three most telling rows: the worst loss, the best win, and the worst loss of another table;
/// where there is none, the best win of another table.
#[must_use]
pub(crate) fn telling<'a>(
    losses: &[&'a BaselineComparison],
    wins: &[&'a BaselineComparison],
) -> Vec<&'a BaselineComparison> {
    let direct = |one: &&&BaselineComparison| !INDIRECT_FIGURES.contains(&one.figure.as_str());
    let mut chosen: Vec<&BaselineComparison> = Vec::new();
    chosen.extend(losses.iter().find(direct));
    chosen.extend(wins.iter().find(direct));
    let elsewhere = |one: &&&BaselineComparison| {
        direct(one) && chosen.iter().all(|other| other.table != one.table)
    };
    let more = losses
        .iter()
        .find(elsewhere)
        .or_else(|| wins.iter().find(elsewhere));
    chosen.extend(more.copied());
    chosen
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
    fn the_telling_rows_hold_the_worst_and_the_best() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        let folder = ResultFolder::read(dir.path()).unwrap();
        let all = all(&CellIndex::of(&folder));
        let (losses, wins) = (losses(&all), wins(&all));
        let chosen = telling(&losses, &wins);
        assert_eq!(chosen.len(), 3);
        assert_eq!((chosen[0], chosen[1]), (losses[0], wins[0]));
    }
}
