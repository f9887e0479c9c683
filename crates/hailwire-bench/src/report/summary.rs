//! `summary.json`: the contents of a report, for programs. `docs/reference/json.md` names its fields.

use serde_json::{Value, json};

use super::{
    baseline_comparison::BaselineComparison,
    figure,
    page::{PageFigure, ReportPage},
};

/// The JSON of a report.
#[must_use]
pub(crate) fn of(report: &ReportPage) -> Value {
    let targets = report.targets.iter().map(|target| {
        json!({
            "name": target.name, "formula": target.formula, "met": target.met, "value": target.value,
        })
    });
    let networks = report.networks.iter().map(|network| {
        json!({
            "name": network.name, "within": network.within,
            "facts": pairs(&network.facts),
        })
    });
    let times = report.times.iter().map(|one| {
        json!({
            "table": one.table, "rows": one.rows, "took": one.took, "all_s": one.took.sum(),
            "expected_s": one.expected_s,
        })
    });
    let skipped = report.skipped.iter().map(|skip| {
        let [table, row, subject, form] = &skip.cell_key;
        json!({
            "table": table, "row": row, "subject": subject, "form": form, "reason": skip.reason,
        })
    });
    json!({
        "title": report.title,
        "when": report.when,
        "command": report.command,
        "environment": pairs(&report.environment),
        "telling": report.first.iter().map(comparison_json).collect::<Vec<_>>(),
        "aims": targets.collect::<Vec<_>>(),
        "losses": report.losses.iter().map(comparison_json).collect::<Vec<_>>(),
        "wins": report.wins.iter().map(comparison_json).collect::<Vec<_>>(),
        "no_difference": report.hidden,
        "too_few_repeats": report.too_few,
        "by_chance": report.by_chance,
        "networks": networks.collect::<Vec<_>>(),
        "figures": report.figures.iter().map(one_figure).collect::<Vec<_>>(),
        "not_measured": skipped.collect::<Vec<_>>(),
        "warnings": report.warnings,
        "times": times.collect::<Vec<_>>(),
    })
}

fn pairs(pairs: &[(String, String)]) -> Value {
    let pairs = pairs
        .iter()
        .cloned()
        .map(|(name, value)| (name, value.into()));
    Value::Object(pairs.collect())
}

fn comparison_json(one: &BaselineComparison) -> Value {
    json!({
        "table": one.table, "row": one.row, "form": one.form, "network": one.network,
        "figure": one.figure, "ours": one.ours, "theirs": one.theirs,
        "our_median": one.our.median, "their_median": one.their.median,
        "ratio": one.ratio.spread.median, "ratio_min": one.ratio.spread.min,
        "ratio_max": one.ratio.spread.max, "pairs": one.ratio.count, "verdict": one.verdict,
    })
}

fn one_figure(one: &PageFigure) -> Value {
    let [table, row, subject, form, network] = &one.cell_key;
    json!({
        "table": table, "row": row, "subject": subject, "form": form, "network": network,
        "figure": one.name, "label": figure::label(&one.name), "median": one.spread.median,
        "min": one.spread.min, "max": one.spread.max, "repeats": one.repeats,
    })
}
