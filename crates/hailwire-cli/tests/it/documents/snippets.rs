//! What is wrong with a snippet, besides what shows when the page's commands use it.
//!
//! A snippet's second word is the file that it becomes, or `from:PATH` for part of a file of the repository, which other tests use.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use hailwire_callout::inspect;

use super::page::{self, Block};
use crate::companion_programs;

/// Checks a block by its language.
pub(super) fn check(block: &Block, root: &Path) -> Result<(), String> {
    if let Some(path) = block.from() {
        return is_part_of(&block.text, &root.join(path))
            .map_err(|wrong| format!("{path}: {wrong}"));
    }
    let file = block.file.as_deref().unwrap_or_default();
    let name = file.rsplit(['/', ':']).next().unwrap_or_default();
    match &*block.language {
        "console" => page::steps(block).map(drop),
        "text" => match block.text.lines().find(|line| line.starts_with("$ ")) {
            Some(line) => Err(format!("`{line}` belongs into a `console` block")),
            None => Ok(()),
        },
        "json" => json(&block.text),
        "kdl" => kdl(&block.text, name),
        "toml" if name == "Cargo.toml" => manifest(&block.text, root),
        // What these say shows when a command uses them.
        "python" | "sh" | "ts" | "js" | "seclang" | "yaml" | "haproxy" if !name.is_empty() => {
            Ok(())
        }
        "rust" => Err("a Rust snippet is `rust from:` an example of the repository".to_owned()),
        other => Err(format!(
            "`{other}` with the file `{name}` is nothing that the tests can run; say why in a comment `<!-- not run: … -->`"
        )),
    }
}

impl Block {
    /// The file of the repository of which it is part.
    pub(super) fn from(&self) -> Option<&str> {
        self.file.as_deref()?.strip_prefix("from:")
    }

    /// The file that it becomes on a machine.
    pub(super) fn becomes(&self) -> Option<&str> {
        self.file.as_deref().filter(|_| self.from().is_none())
    }

    /// The program of a Rust snippet, as cargo leaves it.
    pub(super) fn example(&self) -> Option<PathBuf> {
        let path = self.from().filter(|_| self.language == "rust")?;
        let (package, name) = path.strip_prefix("crates/")?.split_once("/examples/")?;
        let name = name.strip_suffix(".rs")?;
        let built = companion_programs::hail()
            .with_file_name("examples")
            .join(name);
        if !built.exists() {
            let options = ["build", "--workspace", "--example", name];
            let done = Command::new(env!("CARGO")).args(options).status().unwrap();
            assert!(done.success(), "{package}: {name} cannot be built");
        }
        Some(built)
    }
}

/// Whether a text is in a file, however deep it is indented there.
fn is_part_of(text: &str, path: &Path) -> Result<(), String> {
    let whole = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let lines: Vec<&str> = whole.lines().collect();
    let wanted: Vec<&str> = text.lines().collect();
    let indented = |line: &str| line.len() - line.trim_start().len();
    let same = |found: &[&str]| {
        let by = indented(found.first().copied().unwrap_or_default());
        let by = by.saturating_sub(indented(wanted.first().copied().unwrap_or_default()));
        let cut = |line: &&str| line.get(by..).unwrap_or_default().to_owned();
        found
            .iter()
            .map(cut)
            .eq(wanted.iter().map(|line| (*line).to_owned()))
    };
    match lines.windows(wanted.len().max(1)).any(same) {
        true => Ok(()),
        false => Err("the snippet is not part of this file".to_owned()),
    }
}

/// One value, or one on each line.
fn json(text: &str) -> Result<(), String> {
    let whole = serde_json::from_str::<serde_json::Value>(text);
    let mut lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
    match whole {
        Err(wrong) if lines.any(|line| line.is_err()) => Err(wrong.to_string()),
        _ => Ok(()),
    }
}

/// A file of settings, by its name.
fn kdl(text: &str, name: &str) -> Result<(), String> {
    let path = Path::new(name);
    match name {
        "hail.kdl" => {
            let read = hailwire::Config::parse(text, path);
            read.map(drop).map_err(|wrong| wrong.to_string())
        }
        "limits.kdl" => Ok(()),
        // Only `hail` reads it: the page has it do so.
        "agents.kdl" | "wrong.kdl" => Ok(()),
        _ if name.starts_with("callout") => {
            let read = inspect::Config::parse(text, path);
            read.map(drop).map_err(|wrong| wrong.to_string())
        }
        _ if name.starts_with("network") => {
            let read = hailwire_lab::Topology::parse(text, name);
            read.map(drop).map_err(|wrong| wrong.to_string())
        }
        _ => Err(
            "a KDL snippet is hail.kdl, agents.kdl, callout.kdl, limits.kdl or network.kdl"
                .to_owned(),
        ),
    }
}

/// A program's manifest, in a folder beside the repository: whether cargo finds what it names.
fn manifest(text: &str, root: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("own").join(name);
    fs::create_dir_all(at("src")).unwrap();
    std::os::unix::fs::symlink(root, folder.path().join("hailwire")).unwrap();
    fs::write(at("Cargo.toml"), text).unwrap();
    fs::write(at("src/main.rs"), "fn main() {}\n").unwrap();
    fs::copy(root.join("Cargo.lock"), at("Cargo.lock")).unwrap();
    let asked = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal,build"])
        .current_dir(at(""))
        .output()
        .unwrap();
    match asked.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&asked.stderr).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(language: &str, file: &str, text: &str) -> Block {
        Block {
            language: language.to_owned(),
            file: Some(file.to_owned()).filter(|file| !file.is_empty()),
            text: text.to_owned(),
            ..Block::default()
        }
    }

    #[test]
    fn a_mistake_in_a_snippet_is_found_and_no_language_is_passed_over() {
        let root = super::super::root();
        let wrong = |language, file, text| check(&block(language, file, text), &root).is_err();
        assert!(wrong("", "", "x\n") && wrong("sh", "", "x\n") && wrong("kdl", "", "x\n"));
        assert!(wrong("kdl", "hail.kdl", "nod { name \"desk\" }\n"));
        assert!(!wrong("kdl", "hail.kdl", "node { name \"desk\" }\n"));
        assert!(wrong("kdl", "callout.kdl", "agent\n") && wrong("json", "", "{\n"));
        assert!(wrong("text", "", "$ hail up\n") && !wrong("text", "", "a ──▶ b\n"));
        assert!(wrong("python", "", "x\n") && wrong("rust", "", "fn main() {}\n"));
        let members = "[workspace]\nresolver = \"3\"\n";
        assert!(!wrong("toml", "from:Cargo.toml", members));
        assert!(wrong("toml", "from:Cargo.toml", "[workspace]\n[x]\n"));
        let inner = "- name: www\n  address:\n";
        assert!(!wrong("yaml", "from:examples/proxies/envoy.yaml", inner));
        let package = "[package]\nname = \"x\"\nedition = \"2024\"\n\n[dependencies]\n";
        assert!(!wrong("toml", "Cargo.toml", package));
        let missing = format!("{package}hailwire = {{ path = \"../hailwire/nowhere\" }}\n");
        assert!(wrong("toml", "Cargo.toml", &missing));
    }
}
