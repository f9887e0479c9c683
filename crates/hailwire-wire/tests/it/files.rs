//! The list of source files, `docs/reference/files.md`: each with the first sentence of its documentation.
//!
//! `./x pages` writes it, or `HAIL_BLESS=1 cargo test -p hailwire-wire --test it files`, which takes seconds.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::{links::collect, read, repository};

const PAGE: &str = "docs/reference/files.md";

#[test]
fn the_list_of_files_has_the_first_sentence_of_each() {
    let (page, silent) = listed();
    assert!(silent.is_empty(), "no `//!` on the first line: {silent:?}");
    if std::env::var_os("HAIL_BLESS").is_some() {
        fs::write(repository(PAGE), &page).expect("a page to write");
    }
    let stale = "is stale: run HAIL_BLESS=1 cargo test -p hailwire-wire --test it files";
    assert!(read(PAGE) == page, "{PAGE} {stale}");
}

#[test]
fn a_first_sentence_ends_at_its_full_stop_and_has_no_links() {
    for (text, sentence) in [
        ("//! One. Two.\n", Some("One.")),
        (
            "//! Of [`a::B`] and\n//! [this](that.rs):\n//! c.\n",
            Some("Of `a::B` and this: c."),
        ),
        ("//! No stop\n//!\n//! Further.\n", Some("No stop")),
        (
            "//! RFC 9000, 5.1 says a|b.\n",
            Some("RFC 9000, 5.1 says a\\|b."),
        ),
        ("use std::fs;\n", None),
    ] {
        assert_eq!(first_sentence(text).as_deref(), sentence, "{text}");
    }
}

/// The page, and the files without a sentence, of which only tests may be.
fn listed() -> (String, Vec<PathBuf>) {
    let mut page = "# Source files\n\n\
        Each file with the first sentence of its documentation, by crate. `./x pages` writes this page; \
        [ARCHITECTURE.md](../../ARCHITECTURE.md) says how the parts meet.\n"
        .to_owned();
    let mut silent = Vec::new();
    let crates = fs::read_dir(repository("crates")).expect("the crates");
    let mut crates: Vec<PathBuf> = crates
        .map(|entry| entry.expect("a crate").file_name())
        .map(|name| Path::new("crates").join(name))
        .collect();
    crates.sort();
    crates.push("fuzz".into());
    for package in crates {
        let source = package.join("src");
        let mut files = Vec::new();
        collect(&repository(&source.display().to_string()), "rs", &mut files);
        // A module's own file stands before those of its folder.
        files.sort_by_key(|file| {
            file.with_file_name(match file.file_name() {
                Some(name) if name == "mod.rs" || name == "lib.rs" || name == "main.rs" => {
                    "".as_ref()
                }
                Some(name) => name,
                None => "".as_ref(),
            })
        });
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        let _ = write!(page, "\n## {name}\n\n| file | what |\n|---|---|\n");
        for file in files {
            let path = file.display().to_string();
            match first_sentence(&read(&path)) {
                Some(sentence) => {
                    let short = file.strip_prefix(&source).unwrap_or(&file).display();
                    let _ = writeln!(page, "| [{short}](../../{path}) | {sentence} |");
                }
                None if is_test(&file) => {}
                None => silent.push(file),
            }
        }
    }
    (page, silent)
}

fn is_test(file: &Path) -> bool {
    file.components()
        .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// As Markdown that can stand in a table.
fn first_sentence(text: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let text = unlinked(&paragraph.join(" "));
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    let sentence = text.get(..end).unwrap_or(&text);
    (!sentence.is_empty()).then(|| sentence.replace('|', "\\|"))
}

/// Links are replaced by their text: they lead from the file, not from the page.
fn unlinked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        out += before;
        let Some((shown, behind)) = link.split_once(']') else {
            return out + "[" + link;
        };
        out += shown;
        rest = match behind.strip_prefix('(').and_then(|of| of.split_once(')')) {
            Some((_, behind)) => behind,
            None => behind,
        };
    }
    out + rest
}
