//! Whether pages fit a phone and a desk: Chromium says how wide they are, with everything unfolded.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{draw, fixture, front};
use crate::result::ResultEntry;

/// Names of a Chromium; `HAILWIRE_CHROMIUM` names another.
const PROGRAMS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];

/// Unfolds everything and writes the width of the contents, the width of the window, and what reaches beyond it. The page
/// is in a frame, which can be narrower than Chromium's smallest window.
const MEASURE: &str = r#"<script>
addEventListener('load', () => {
  const inside = document.querySelector('iframe').contentWindow;
  const page = inside.document;
  for (const one of page.querySelectorAll('details')) one.open = true;
  const cells = [...page.querySelectorAll('table.stack tbody td')];
  const stacked = cells.length > 0 && cells.every(one => inside.getComputedStyle(one).display === 'flow-root');
  const clipped = cells.filter(one => one.scrollWidth > one.clientWidth + 1).length;
  document.title = ['measured', page.documentElement.scrollWidth, inside.innerWidth, stacked, clipped].join(' ');
});
</script>"#;

#[derive(Debug)]
struct PageWidth {
    contents: u32,
    window: u32,
    /// Whether every cell of the tables stands below the one before it.
    stacked: bool,
    /// Cells with contents wider than themselves.
    clipped: u32,
}

/// The first Chromium of the machine that starts.
fn chromium() -> Option<PathBuf> {
    let named = env::var_os("HAILWIRE_CHROMIUM").map(PathBuf::from);
    let usual = PROGRAMS.iter().map(PathBuf::from);
    named.into_iter().chain(usual).find(|program| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    })
}

fn width(chromium: &Path, html: &str, window: u32) -> PageWidth {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let framed = html.replace('&', "&amp;").replace('"', "&quot;");
    let frame = format!(
        "<!DOCTYPE html><title></title>{MEASURE}\n\
         <iframe style=\"border: 0; width: {window}px; height: 900px\" srcdoc=\"{framed}\"></iframe>"
    );
    fs::write(&page, frame).unwrap();
    let output = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            dir.path().join("profile").display()
        ))
        .arg("--window-size=1400,1000")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let measured = dom
        .split_once("<title>measured ")
        .and_then(|(_, rest)| rest.split_once("</title>"))
        .map(|(measured, _)| measured.split(' ').collect::<Vec<_>>());
    let Some([contents, inner, stacked, clipped]) = measured.as_deref() else {
        panic!(
            "Chromium measured nothing: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    PageWidth {
        contents: contents.parse().unwrap(),
        window: inner.parse().unwrap(),
        stacked: *stacked == "true",
        clipped: clipped.parse().unwrap(),
    }
}

/// A report of the fixture, with names that nothing would break.
fn report() -> String {
    let mut entries = fixture::entries();
    let endless = "without-a-space".repeat(12);
    for entry in &mut entries {
        match entry {
            ResultEntry::Measured(line) if line.cell.table == "Q4" => line.cell.row += &endless,
            ResultEntry::Skipped(skipped) => skipped.reason += &endless,
            _ => {}
        }
    }
    let dir = tempfile::tempdir().unwrap();
    fixture::write(dir.path(), &entries);
    let drawn = draw(dir.path()).unwrap();
    fs::read_to_string(drawn.html).unwrap()
}

#[test]
fn no_page_is_wider_than_its_window_and_on_a_phone_tables_are_cards() {
    let Some(chromium) = chromium() else {
        hailwire_skip::skipped("Chromium is not installed (HAILWIRE_CHROMIUM names one)");
        return;
    };
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    let pages = [
        ("a report", report()),
        ("the front page", front::page(&kept).unwrap()),
    ];
    for (name, html) in &pages {
        for window in [400, 1200] {
            let width = width(&chromium, html, window);
            let about = format!("{name} at {window}: {width:?}");
            assert_eq!(width.window, window, "{about}");
            assert!(width.contents <= window, "{about}");
            assert_eq!(width.stacked, window == 400, "{about}");
            assert!(window != 400 || width.clipped == 0, "{about}");
        }
    }
    let wide = "<!DOCTYPE html><head></head><body><p style='width: 900px'>wide</p>";
    assert!(width(&chromium, wide, 400).contents > 400);
}
