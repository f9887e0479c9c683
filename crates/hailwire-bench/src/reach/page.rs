//! The table for people: text for the terminal, Markdown for the manual.

use std::fmt::Write as _;

use super::{
    ExpectedReach,
    networks::ALL,
    record::{ReachPair, ReachRecord},
};
use crate::{measure::Spread, run_folder::RunEnvironment};

/// The whole summary as text.
#[must_use]
pub fn text(environment: &RunEnvironment, lines: &[ReachRecord]) -> String {
    let pairs: Vec<&ReachPair> = lines.iter().filter_map(ReachRecord::pair).collect();
    let mut text = format!("{}\n\n{}\n", environment.line(), counts(&pairs));
    let mut missed = pairs.iter().filter_map(|pair| pair.missed()).peekable();
    if missed.peek().is_some() {
        text.push_str("\nnot as theory says:\n");
    }
    for missed in missed {
        let _ = writeln!(text, "  {missed}");
    }
    text
}

/// The page of the manual.
#[must_use]
pub fn markdown(environment: &RunEnvironment, lines: &[ReachRecord]) -> String {
    let pairs: Vec<&ReachPair> = lines.iter().filter_map(ReachRecord::pair).collect();
    let mut page = format!(
        "# Who reaches whom\n\n\
         Every pair of the networks that people have, measured in the lab by `hail bench reach`: two hosts of each\n\
         network, each with a node of its own, all members of one hub. For each pair the first call between the\n\
         two, and what the path is like that is used then.\n\n\
         <!-- Made from the results in bench/results; `./x pages` writes it again. -->\n\n\
         {}\n\n{}\n\n",
        environment.line(),
        counts(&pairs)
    );
    page.push_str("## The networks\n\n| network | what stands before the host |\n|---|---|\n");
    for network in &ALL {
        let _ = writeln!(page, "| `{}` | {} |", network.name, network.about);
    }
    for line in lines {
        if let ReachRecord::LeftOut { network, reason } = line {
            let _ = writeln!(page, "\nLeft out: `{network}`, {reason}.");
        }
    }
    page.push_str(
        "\n## The pairs\n\n\
         *Theory* says whether a direct path can be had: both map independently of whom they send to, or one of\n\
         them does and does not filter by port, or both have IPv6 (RFC 4787, RFC 5128). *Answer* is the time of the first\n\
         call, *direct* the time from its beginning until the path was direct. *Call* is the median of twenty small calls on\n\
         the path that is used then, and in brackets what it takes beyond the round trip of the links. *Body* is the rate\n\
         of a body of 2 MiB in one call.\n\n\
         | from | to | theory | path | answer | direct | call | body |\n\
         |---|---|---|---|---:|---:|---:|---:|\n",
    );
    for pair in &pairs {
        row(&mut page, pair);
    }
    page
}

fn row(page: &mut String, pair: &ReachPair) {
    let ms = |time: Option<f64>| time.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
    let path = match &pair.failed {
        Some(_) => "**none**".to_owned(),
        None if pair.path == pair.expected.word() => pair.path.clone(),
        None => format!("**{}**", pair.path),
    };
    let call = pair.call_ms.map_or("–".to_owned(), |ms| {
        format!("{ms:.1} ms (+{:.1})", (ms - pair.label_ms).max(0.0))
    });
    let body = pair
        .mbit_s
        .map_or("–".to_owned(), |rate| format!("{rate:.0} Mbit/s"));
    let _ = writeln!(
        page,
        "| {} | {} | {} | {path} | {} | {} | {call} | {body} |",
        pair.from,
        pair.to,
        pair.expected.word(),
        ms(pair.answered_ms),
        ms(pair.direct_ms),
    );
}

/// How many are what, and the median times.
fn counts(pairs: &[&ReachPair]) -> String {
    let missed = pairs.iter().filter(|pair| pair.missed().is_some()).count();
    let count = |word: ExpectedReach| {
        let own = pairs.iter().filter(|pair| pair.failed.is_none());
        own.filter(|pair| pair.path == word.word()).count()
    };
    let spread = |time: fn(&ReachPair) -> Option<f64>| {
        let nothing = Spread {
            median: 0.0,
            min: 0.0,
            max: 0.0,
        };
        Spread::of(pairs.iter().filter_map(|pair| time(pair)).collect()).unwrap_or(nothing)
    };
    let answer = spread(|pair| pair.answered_ms);
    let direct = spread(|pair| pair.direct_ms);
    format!(
        "{} pairs: {} direct, {} relayed, {missed} not as theory says. First answer: median {:.0} ms, slowest \
         {:.0} ms. Direct after a median of {:.0} ms.",
        pairs.len(),
        count(ExpectedReach::Direct),
        count(ExpectedReach::Relay),
        answer.median,
        answer.max,
        direct.median,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kept_page, reach::record};

    #[test]
    fn the_page_of_the_manual_is_that_of_the_kept_results() {
        kept_page::holds("docs/reference/nat.md", "reach", record::FILE, markdown);
    }

    #[test]
    fn what_is_not_as_theory_says_is_counted_and_named() {
        let pair = |path: &str, answered_ms| ReachPair {
            from: "public".into(),
            to: "nat-port".into(),
            expected: ExpectedReach::Direct,
            answered_ms,
            direct_ms: None,
            path: path.into(),
            label_ms: 40.0,
            call_ms: Some(41.5),
            mbit_s: None,
            failed: answered_ms.is_none().then(|| "silence".into()),
        };
        let lines = [
            pair("direct", Some(300.0)),
            pair("relay", Some(300.0)),
            pair("direct", Some(3001.0)),
            pair("", None),
        ];
        let lines = lines.map(|pair| ReachRecord::Pair(Box::new(pair)));
        let text = text(&RunEnvironment::here(), &lines);
        assert!(
            text.contains("4 pairs: 2 direct, 1 relayed, 3 not as theory says"),
            "{text}"
        );
        for wrong in [
            "relay where theory says direct",
            "answered after 3001 ms",
            "no answer: silence",
        ] {
            assert!(text.contains(wrong), "{text}");
        }
    }
}
