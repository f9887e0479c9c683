//! The table for people: text for the terminal, Markdown for the manual.

use std::fmt::Write as _;

use super::{NetworkChange, record::ChangeRow};
use crate::run_folder::RunEnvironment;

/// The whole summary as text.
#[must_use]
pub fn text(environment: &RunEnvironment, rows: &[ChangeRow]) -> String {
    let missed: Vec<String> = rows.iter().filter_map(ChangeRow::missed).collect();
    let mut text = format!(
        "{}\n\n{} changes, {} took longer than they may or lost something\n",
        environment.line(),
        rows.len(),
        missed.len()
    );
    for missed in missed {
        let _ = writeln!(text, "  {missed}");
    }
    text
}

/// The page of the manual.
#[must_use]
pub fn markdown(environment: &RunEnvironment, rows: &[ChangeRow]) -> String {
    let mut page = format!(
        "# When the network changes\n\n\
         What a change of the network costs a stream and the calls after it, measured in the lab by `hail bench changes`: two\n\
         nodes behind NATs, members of a hub, and a stream of fifty numbers a second from one to the other. Each change\n\
         once with a direct path, and once where UDP is blocked and the hub relays.\n\n\
         <!-- Made from the results in bench/results; `./x pages` writes it again. -->\n\n\
         {}\n\n\
         | change | what happens |\n|---|---|\n",
        environment.line()
    );
    for change in NetworkChange::ALL {
        let _ = writeln!(page, "| `{}` | {} |", change.name(), change.about());
    }
    page.push_str(
        "\n*Outage* is how long the network was not whole. *Silence* is the longest time without a number of the stream, the\n\
         outage included. *Lost* and *twice* count numbers. *New call* is the time from the end of the outage to the\n\
         answer of the first call that was begun after it. What took longer than it may is bold. A tunnel from which nothing\n\
         comes for 5 s while calls are in flight is given up: its calls and streams end with `unavailable`, and the next call\n\
         brings up another one.\n\n\
         | change | path | outage | silence | lost | twice | new call | may take |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        table_row(&mut page, row);
    }
    page
}

fn table_row(page: &mut String, row: &ChangeRow) {
    let seconds =
        |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{:.2} s", ms / 1000.0));
    let silence = match (&row.failed, &row.broken) {
        (Some(reason), _) => format!("not measured: {reason}"),
        (None, Some(_)) => "the stream ends".to_owned(),
        (None, None) => seconds(row.gap_ms),
    };
    let mark = if row.missed().is_some() { "**" } else { "" };
    let _ = writeln!(
        page,
        "| {mark}{}{mark} | {} | {} | {silence} | {} | {} | {} | {:.0} s |",
        row.change.name(),
        row.path,
        seconds(Some(row.outage_ms)),
        row.lost,
        row.twice,
        seconds(row.new_call_ms),
        row.change.aim().as_secs_f64()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{changes::record, kept_page};

    #[test]
    fn the_page_of_the_manual_is_that_of_the_kept_results() {
        kept_page::holds(
            "docs/reference/changes.md",
            "changes",
            record::FILE,
            markdown,
        );
    }
}
