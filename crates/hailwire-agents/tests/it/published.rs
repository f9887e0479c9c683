//! The transformations against SecLang's published test cases, which are part of Coraza.
//!
//! `HAILWIRE_CORAZA` names a copy of the Go module `github.com/corazawaf/coraza/v3`, as `peers/install coraza` gets it; it is
//! not part of this repository, and without it the test is skipped.

use std::{collections::BTreeMap, path::PathBuf};

use hailwire_agents::waf::Transform;
use serde_json::Value;

/// Deliberate differences, with the number of cases.
const DIFFERENCES: [(&str, usize); 7] = [
    // Code points become one byte, as where rules look for ASCII; a last backslash stays.
    ("cssDecode", 3),
    // No transformations.
    ("invalidCharacter", 1),
    ("invalidLen", 1),
    // Two slashes are one, and a dot alone stays.
    ("normalisePath", 2),
    ("normalisePathWin", 2),
    // Nothing is left of nothing but a comment, where a null byte is published.
    ("removeComments", 8),
    // Marks are mapped to those of ASCII, letters with accents are not.
    ("urlDecodeUni", 2),
];

/// The bytes of a text of these cases: control characters and bytes stand there in several ways.
fn bytes(text: &str) -> Vec<u8> {
    let text = text.replace("\\u0000", "\0");
    if !text.contains("\\x") {
        return text.into_bytes();
    }
    // As a literal of Go; what is none stays as it is.
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let simple = |letter: u8| b"abfnrtv\\\"".iter().position(|own| *own == letter);
        match (byte, after) {
            (b'\\', [b'x', high, low, more @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Vec::new();
                };
                out.push((high << 4 | low) as u8);
                rest = more;
            }
            (
                b'\\',
                [
                    one @ b'0'..=b'7',
                    two @ b'0'..=b'7',
                    three @ b'0'..=b'7',
                    more @ ..,
                ],
            ) => {
                let digits = [one, two, three].map(|digit| u32::from(digit - b'0'));
                out.push((digits[0] << 6 | digits[1] << 3 | digits[2]) as u8);
                rest = more;
            }
            (b'\\', [letter, more @ ..]) => match simple(*letter) {
                Some(at) => {
                    out.push([7, 8, 12, 10, 13, 9, 11, b'\\', b'"'][at]);
                    rest = more;
                }
                None => return Vec::new(),
            },
            (b'"' | b'\n', _) => return Vec::new(),
            _ => out.push(*byte),
        }
    }
    out
}

#[test]
fn the_published_cases_of_transformations_come_out_as_published() {
    let Some(module) = std::env::var_os("HAILWIRE_CORAZA").map(PathBuf::from) else {
        hailwire_skip::skipped("HAILWIRE_CORAZA names no copy of Coraza");
        return;
    };
    let mut of: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut differ = Vec::new();
    let folder = module.join("internal/transformations/testdata");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    for file in files {
        let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for case in cases {
            let text = |name: &str| bytes(case[name].as_str().unwrap());
            let name = case["name"].as_str().unwrap();
            let count = of.entry(name.to_owned()).or_default();
            count.1 += 1;
            let (input, expected) = (text("input"), text("output"));
            let got = Transform::named(name).map(|transform| transform.apply(&input).into_owned());
            if got.as_deref() == Some(&expected[..]) {
                count.0 += 1;
            } else {
                let got = got.map(|got| got.escape_ascii().to_string());
                differ.push(format!(
                    "{name} {}: {got:?}, published {}",
                    input.escape_ascii(),
                    expected.escape_ascii()
                ));
            }
        }
    }
    println!("as published, of: {of:?}\n{}", differ.join("\n"));
    let otherwise = |name: &str| DIFFERENCES.iter().find(|(own, _)| *own == name);
    for (name, (same, all)) in of {
        let allowed = otherwise(&name).map_or(0, |(_, count)| *count);
        assert_eq!(all - same, allowed, "{name}");
    }
}
