//! The page of the cases, `spec/conformance/cases.md`, is what the driver lists.
//!
//! `HAIL_BLESS=1 cargo test -p hailwire-conformance --test it page` writes it.

use std::fs;

use crate::{driver, repository};

const PAGE: &str = "spec/conformance/cases.md";

#[test]
fn the_page_of_the_cases_is_what_the_driver_lists() {
    let page = String::from_utf8(driver(&["--list", "--markdown"]).stdout).expect("text");
    if std::env::var_os("HAIL_BLESS").is_some() {
        fs::write(repository().join(PAGE), &page).expect("a page to write");
    }
    let written = fs::read_to_string(repository().join(PAGE)).unwrap_or_default();
    let stale = "is stale: run HAIL_BLESS=1 cargo test -p hailwire-conformance --test it page";
    assert!(written == page, "{PAGE} {stale}");
}

/// The tests of the libraries fail where one passes fewer, so the table is true as long as its numbers are those of the list.
#[test]
fn the_table_of_the_libraries_names_as_many_cases_as_there_are() {
    let listed = driver(&["--list"]).stdout;
    let count = String::from_utf8(listed).expect("text").lines().count();
    let page = fs::read_to_string(repository().join("spec/README.md")).expect("a page");
    let passes = format!("| {count} of {count} cases |");
    assert_eq!(page.matches(&passes).count(), 3, "{count} cases");
}
