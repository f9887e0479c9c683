//! Pages of the manual that are made of kept results.

use std::{fs, path::Path};

use serde::de::DeserializeOwned;

use crate::run_folder::RunEnvironment;

/// The kept results of networks, from the repository's root.
const RESULTS: &str = "bench/results/2026-11-24-networks/after";

/// Holds a page to what the lines of `file` in a folder of the kept results give, or writes it where `HAIL_BLESS` is set.
pub(crate) fn holds<T: DeserializeOwned>(
    page: &str,
    folder: &str,
    file: &str,
    markdown: impl FnOnce(&RunEnvironment, &[T]) -> String,
) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = root.join(RESULTS).join(folder);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let environment: RunEnvironment =
        serde_json::from_str(&read(&dir.join("environment.json"))).unwrap();
    assert_eq!(environment.state, "whole");
    let lines = read(&dir.join(file));
    let lines = lines.lines().map(serde_json::from_str);
    let lines: Vec<T> = lines.collect::<Result<_, _>>().unwrap();
    written(&root.join(page), &markdown(&environment, &lines));
}

/// Holds a page to what it should say now, or writes it where `HAIL_BLESS` is set.
pub(crate) fn written(page: &Path, now: &str) {
    if std::env::var_os("HAIL_BLESS").is_some() {
        fs::write(page, now).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(page).unwrap() == now,
        "{} is stale: run ./x pages, which writes it from the kept results",
        page.display()
    );
}
