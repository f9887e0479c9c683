//! `summary.json`: what a report says, for programs. `docs/reference/json.md` names its fields.

use serde_json::{Value, json};

use super::{
    figure,
    page::{Figure, Report},
    standing::Standing,
};

/// Of a report.
#[must_use]
pub(crate) fn of(report: &Report) -> Value {
    let aims = report.aims.iter().map(|aim| {
        json!({
            "name": aim.name, "formula": aim.formula, "met": aim.met, "value": aim.value,
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
        let [table, row, subject, form] = &skip.place;
        json!({
            "table": table, "row": row, "subject": subject, "form": form, "reason": skip.reason,
        })
    });
    json!({
        "title": report.title,
        "when": report.when,
        "command": report.command,
        "environment": pairs(&report.environment),
        "telling": report.telling.iter().map(standing).collect::<Vec<_>>(),
        "aims": aims.collect::<Vec<_>>(),
        "losses": report.losses.iter().map(standing).collect::<Vec<_>>(),
        "wins": report.wins.iter().map(standing).collect::<Vec<_>>(),
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

fn standing(one: &Standing) -> Value {
    json!({
        "table": one.table, "row": one.row, "form": one.form, "network": one.network,
        "figure": one.figure, "ours": one.ours, "theirs": one.theirs,
        "our_median": one.our.median, "their_median": one.their.median,
        "ratio": one.ratio.spread.median, "ratio_min": one.ratio.spread.min,
        "ratio_max": one.ratio.spread.max, "pairs": one.ratio.count, "verdict": one.verdict,
    })
}

fn one_figure(one: &Figure) -> Value {
    let [table, row, subject, form, network] = &one.place;
    json!({
        "table": table, "row": row, "subject": subject, "form": form, "network": network,
        "figure": one.name, "label": figure::label(&one.name), "median": one.spread.median,
        "min": one.spread.min, "max": one.spread.max, "repeats": one.repeats,
    })
}
