//! Whole reports, from a folder to its pages.

use std::{fs, path::Path};

use super::{draw, fixture, published};
use crate::result::ResultEntry;

fn drawn(entries: &[ResultEntry]) -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    fixture::write(dir.path(), entries);
    draw(dir.path()).unwrap();
    let (html, markdown) = pages(dir.path());
    (dir, html, markdown)
}

fn pages(dir: &Path) -> (String, String) {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    (read("report.html"), read("report.md"))
}

/// Follows every element from its start to its end. Panics where one is not closed in its place.
fn check_elements(html: &str) {
    const EMPTY: &[&str] = &["!DOCTYPE", "meta", "br", "hr", "img", "link", "input"];
    let body = html.split_once("<style>").unwrap();
    let html = body.0.to_owned()
        + "<style>"
        + body
            .1
            .split_once("</style>")
            .map(|(_, rest)| rest)
            .map(|rest| format!("</style>{rest}"))
            .unwrap()
            .as_str();
    let mut open: Vec<String> = Vec::new();
    for tag in html.split('<').skip(1) {
        let (inside, text) = tag
            .split_once('>')
            .unwrap_or_else(|| panic!("no end: <{tag}"));
        assert!(!text.contains('>'), "a loose > after <{inside}>: {text}");
        assert_eq!(inside.matches('"').count() % 2, 0, "<{inside}>");
        let name = inside
            .split([' ', '/', '\n'])
            .find(|part| !part.is_empty())
            .unwrap();
        if inside.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "</{name}>");
        } else if !inside.ends_with('/') && !EMPTY.contains(&name) {
            open.push(name.to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn every_published_figure_stands_in_the_page_and_in_the_markdown() {
    let (_dir, html, markdown) = drawn(&fixture::entries());
    for text in published::texts() {
        assert!(
            html.contains(&format!(">{text}</td>")),
            "{text} is not in the page"
        );
        assert!(
            markdown.contains(&format!("| {text} |")),
            "{text} is not in the markdown"
        );
    }
    for table in published::tables() {
        for note in table.notes {
            assert!(markdown.contains(note), "{note}");
        }
    }
}

#[test]
fn no_cell_is_empty() {
    let (_dir, html, markdown) = drawn(&fixture::entries());
    for empty in [
        "\"></td>",
        "<td></td>",
        "\"></th>",
        "<th></th>",
        ">not measured: </td>",
    ] {
        let at = html.find(empty);
        assert_eq!(
            at.map(|at| &html[at.saturating_sub(200)..at]),
            None,
            "{empty}"
        );
    }
    for line in markdown.lines().filter(|line| line.starts_with('|')) {
        let line = line.replace("\\|", "");
        let cells = line.trim_matches('|').split('|');
        assert!(cells.clone().all(|cell| !cell.trim().is_empty()), "{line}");
        assert!(
            cells.clone().all(|cell| cell.trim() != "not measured:"),
            "{line}"
        );
    }
}

#[test]
fn a_skipped_cell_says_the_reason_that_the_run_gave() {
    let (_dir, html, markdown) = drawn(&fixture::entries());
    for page in [html, markdown] {
        assert!(page.contains("not measured: WebSocket has no 0-RTT"));
        assert!(page.contains("not measured: needs root"));
    }
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_from_elsewhere() {
    let (_dir, html, _) = drawn(&fixture::entries());
    check_elements(&html);
    for elsewhere in [
        "http://", "https://", "<script", "<link", "<img", "@import", "url(",
    ] {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }
    assert!(html.matches("<svg viewBox").count() >= 10);
}

#[test]
fn losses_stand_before_wins_and_before_the_tables() {
    let (_dir, html, markdown) = drawn(&fixture::entries());
    for (page, tables) in [(html, "id=\"tables\""), (markdown, "## Tables")] {
        let at = |text: &str| page.rfind(text).unwrap_or_else(|| panic!("{text}"));
        assert!(at("Where we lose") < at("Where we win"));
        assert!(at("Where we win") < at(tables));
    }
}

#[test]
fn what_comes_from_a_file_stays_text() {
    const HOSTILE: &str = "</td><script>alert('x')</script> & \"quoted\" | [link](javascript:x)";
    let mut entries = fixture::entries();
    for entry in &mut entries {
        match entry {
            ResultEntry::Measured(line) => {
                line.network += HOSTILE;
                line.cell.subject = line.cell.subject.replace("ws", HOSTILE);
                line.cell.row += HOSTILE;
            }
            ResultEntry::Skipped(skipped) => skipped.reason += HOSTILE,
            ResultEntry::Timing(timing) => timing.row += HOSTILE,
        }
    }
    let dir = tempfile::tempdir().unwrap();
    fixture::write(dir.path(), &entries);
    let environment = serde_json::json!({ "cpu": HOSTILE, "command": HOSTILE, HOSTILE: HOSTILE });
    fs::write(dir.path().join("environment.json"), environment.to_string()).unwrap();
    let check = serde_json::json!({ "name": HOSTILE, HOSTILE: { HOSTILE: [HOSTILE] } });
    fs::write(
        dir.path().join("network.jsonl"),
        check.to_string() + "\n{<b>\n",
    )
    .unwrap();
    draw(dir.path()).unwrap();
    let (html, markdown) = pages(dir.path());
    check_elements(&html);
    for page in [&html, &markdown] {
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;"));
    }
    assert!(!markdown.contains("[link]"));
    for line in markdown.lines().filter(|line| line.starts_with('|')) {
        assert!(line.ends_with('|'), "{line}");
    }
}

#[test]
fn an_interrupted_folder_is_drawn_as_far_as_it_came() {
    let entries = fixture::entries();
    for kept in [0, 1, 7, entries.len() / 2] {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &entries[..kept]);
        let raw = dir.path().join("raw.jsonl");
        let text = fs::read_to_string(&raw).unwrap() + "{\"measured\":{\"cell\"";
        fs::write(&raw, text).unwrap();
        fs::remove_file(dir.path().join("environment.json")).unwrap();
        let drawn = draw(dir.path()).unwrap();
        assert_eq!(drawn.html, dir.path().join("report.html"));
        let (html, _) = pages(dir.path());
        check_elements(&html);
        assert!(html.contains("environment.json cannot be read"));
        let named = format!("raw.jsonl, line {},", kept.max(1) + 1);
        assert!(
            drawn.warnings.iter().any(|w| w.starts_with(&named)),
            "{:?}",
            drawn.warnings
        );
    }
}

#[test]
fn drawn_again_it_is_the_same() {
    let (dir, html, markdown) = drawn(&fixture::entries());
    draw(dir.path()).unwrap();
    assert_eq!(pages(dir.path()), (html, markdown));
}

#[test]
fn the_summary_is_json_with_a_figure_for_each_cell() {
    let (dir, ..) = drawn(&fixture::entries());
    let text = fs::read_to_string(dir.path().join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(summary["figures"].as_array().unwrap().len() > 100);
    assert_eq!(
        summary["aims"].as_array().unwrap().len(),
        crate::targets::TARGETS
            .iter()
            .filter(|target| ["coordination", "overlay"].contains(&target.of.suite))
            .count()
    );
    assert!(
        summary["losses"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["verdict"] == "worse")
    );
}
