//! The page of a run, which needs nothing but itself.

use std::time::Duration;

use hailwire_terminal::text;

use super::{
    scenes::SceneOutcome,
    summary::{AgentSummary, DemoSummary},
};

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere }
ol { list-style: none; padding: 0 }
li { display: grid; grid-template-columns: 1.5rem 4.5rem 1fr; padding: .4rem 0; border-bottom: 1px solid var(--line) }
.took { opacity: .7; font-variant-numeric: tabular-nums }
.shown .sign { color: #197a3e } .failed .sign { color: #b3261e } .left_out { opacity: .7 }
@media (prefers-color-scheme: dark) { .shown .sign { color: #5bd18b } .failed .sign { color: #ff8a80 } }
div { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); overflow-wrap: normal }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
";

/// The whole page.
pub(super) fn page(summary: &DemoSummary) -> String {
    let scenes: String = summary
        .scenes
        .iter()
        .map(|scene| {
            let class = match scene.outcome {
                SceneOutcome::Shown => "shown",
                SceneOutcome::LeftOut => "left_out",
                SceneOutcome::Failed => "failed",
            };
            format!(
                "<li class={class}><span class=sign>{}</span><span class=took>{}</span><span>{}</span></li>\n",
                scene.outcome.sign(),
                scene.took(),
                text::html(&scene.text)
            )
        })
        .collect();
    let counters: String = summary
        .lines()
        .iter()
        .map(|(name, value)| format!("<tr><th>{name}<td>{}\n", text::html(value)))
        .collect();
    let rows: String = summary.rows.iter().map(row).collect();
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width\">\n<title>Hailwire at work</title>\n\
         <style>{STYLE}</style>\n<h1>Hailwire at work</h1>\n<ol>\n{scenes}</ol>\n\
         <h2>The workers</h2>\n<div><table>\n{counters}</table></div>\n\
         <h2>Each agent on each worker</h2>\n<div><table>\n<tr><th>Agent<th>Node<th>Path<th class=n>Calls<th \
         class=n>Failed<th class=n>Bytes<th class=n>p50<th class=n>p99\n{rows}</table></div>\n</html>\n"
    )
}

fn row(row: &AgentSummary) -> String {
    let time = |us| text::time(Duration::from_micros(us));
    format!(
        "<tr><td>{}<td>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}\n",
        row.agent,
        text::html(&row.node),
        text::html(&row.path),
        row.calls,
        row.failed,
        text::bytes(row.bytes),
        time(row.latency.p50_us),
        time(row.latency.p99_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::scenes::SceneReport;

    #[test]
    fn what_others_wrote_is_text_on_the_page() {
        let summary = DemoSummary {
            scenes: vec![SceneReport {
                name: "stranger",
                outcome: SceneOutcome::Failed,
                took_ms: 7,
                text: "<b>&amp;".to_owned(),
            }],
            ..DemoSummary::default()
        };
        let page = page(&summary);
        assert!(page.contains("&lt;b&gt;&amp;amp;"), "{page}");
        assert!(page.contains("<li class=failed>"), "{page}");
    }
}
