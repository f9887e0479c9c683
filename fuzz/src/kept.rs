//! The inputs that are kept for each target in `fuzz/corpus-kept`: golden vectors, what a stranger begins with, findings.
//!
//! No target reads them by itself: `cargo fuzz` does, and the tests that call a target's promises on the stable toolchain
//! do so with each kept input, and with some that are made of them.

#![expect(
    clippy::expect_used,
    reason = "what the helpers of a test miss fails the test"
)]

use std::{fs, ops::Deref, path::Path};

/// One input, which is printed if a test fails while it lives.
pub(crate) struct Input {
    name: String,
    bytes: Vec<u8>,
}

impl Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: b\"{}\"", self.name, self.bytes.escape_ascii());
        }
    }
}

/// Every kept input of a target, and behind them `altered` of them with some bytes changed, the same ones each time.
///
/// # Panics
///
/// If there is none.
pub(crate) fn inputs(target: &str, altered: u64) -> impl Iterator<Item = Input> {
    let kept = kept(target);
    assert!(!kept.is_empty(), "no input of {target} is kept");
    let mut random = Random(1);
    (0..kept.len() as u64 + altered).map(move |n| match kept.get(n as usize) {
        Some((name, bytes)) => Input {
            name: name.clone(),
            bytes: bytes.clone(),
        },
        None => {
            let (name, bytes) = &kept[random.below(kept.len())];
            Input {
                name: format!("{name}, altered"),
                bytes: random.altered(bytes.clone()),
            }
        }
    })
}

/// In the order of their names.
fn kept(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus-kept");
    let files = fs::read_dir(folder.join(target)).expect("a folder of kept inputs");
    let mut kept: Vec<_> = files
        .map(|file| {
            let path = file.expect("a kept input").path();
            let bytes = fs::read(&path).expect("a kept input");
            (path.display().to_string(), bytes)
        })
        .collect();
    kept.sort();
    kept
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }

    /// One to four changes: a bit turned, a byte put in or taken out, some bytes repeated, the end cut off.
    fn altered(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let to = (at + self.below(16)).min(bytes.len());
            match self.below(6) {
                0 | 1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => bytes.extend_from_within(at..to),
                4 if self.below(4) == 0 => bytes.truncate(at),
                _ => bytes.insert(at, self.below(256) as u8),
            }
        }
        bytes
    }
}
