//! The documents: links that lead somewhere, tables of files that exist, and an architecture page that is short.

use std::path::{Component, Path, PathBuf};

use crate::{read, repository};

#[test]
fn every_relative_link_in_the_documents_leads_to_a_file_and_a_heading() {
    let pages = pages();
    assert!(pages.len() > 10, "{pages:?}");
    let mut broken = Vec::new();
    for page in &pages {
        for target in links(&read(page)) {
            if let Err(why) = follow(page, &target) {
                broken.push(format!("{page}: {target}: {why}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Pages whose tables name files, as code.
const TABLES: [&str; 6] = [
    "ARCHITECTURE.md",
    "docs/concepts/a-call-on-its-way.md",
    "docs/concepts/faults.md",
    "docs/reference/queues.md",
    "docs/reference/tasks.md",
    "docs/reference/tests.md",
];

#[test]
fn every_file_in_the_tables_of_the_architecture_pages_exists() {
    let mut missing = Vec::new();
    let mut seen = 0;
    for name in TABLES {
        let page = read(name);
        let rows = page.lines().filter(|line| line.starts_with('|'));
        let named = rows
            .flat_map(|row| row.split('`').skip(1).step_by(2))
            .filter(|code| code.contains('/') && code.contains('.'));
        for path in named {
            seen += 1;
            if !repository(path).is_file() {
                missing.push(format!("{name}: {path}"));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_architecture_page_is_read_in_ten_minutes() {
    let words = read("ARCHITECTURE.md").split_whitespace().count();
    assert!(
        words <= 2_500,
        "{words} words: what is more belongs on a page of docs"
    );
}

#[test]
fn links_are_found_outside_of_code_only() {
    let text =
        "a [b](c.md#d) `[e](f)` ![g](h.png)\n```\n[i](j)\n```\n[k](https://l)\n[m](<n o.md>)";
    assert_eq!(links(text), ["c.md#d", "h.png", "<n o.md>"]);
    assert_eq!(
        anchor("A `call` in hex: what, why?"),
        "a-call-in-hex-what-why"
    );
}

/// Every page of the repository, as a path from its root.
fn pages() -> Vec<String> {
    let mut files = Vec::new();
    collect(&repository("."), "md", &mut files);
    files
        .iter()
        .map(|file| file.display().to_string())
        .collect()
}

/// Files with an extension below a folder, as paths from the root of the repository. Hidden folders
/// and what is built are left out.
pub(crate) fn collect(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("a folder of the repository");
    for entry in entries {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // Neither what is built nor what others wrote.
            if !name.starts_with('.') && !["target", "node_modules"].contains(&&*name) {
                collect(&path, extension, files);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            let root = normal(&repository("."));
            let path = normal(&path);
            files.push(path.strip_prefix(&root).unwrap_or(&path).to_owned());
        }
    }
}

/// The targets of a page's links that lead into the repository.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_fence = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        // What stands between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (_, rest) in prose
            .match_indices("](")
            .map(|(at, _)| prose.split_at(at + 2))
        {
            let Some((target, _)) = rest.split_once(')') else {
                continue;
            };
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// Whether a link of a page leads somewhere.
fn follow(page: &str, target: &str) -> Result<(), &'static str> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => PathBuf::from(page),
        path => Path::new(page).parent().unwrap_or(Path::new("")).join(path),
    };
    let file = normal(&file).display().to_string();
    if !repository(&file).exists() {
        return Err("no such file");
    }
    let known =
        |line: &str| line.starts_with('#') && anchor(line.trim_start_matches('#')) == heading;
    if heading.is_empty() || !file.ends_with(".md") || read(&file).lines().any(known) {
        Ok(())
    } else {
        Err("no such heading")
    }
}

/// The anchor that a heading gets: lower case, spaces as hyphens, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.trim().chars().filter(kept).collect();
    text.to_lowercase().replace(' ', "-")
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}
