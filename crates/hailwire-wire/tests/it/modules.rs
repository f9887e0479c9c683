//! The modules of each crate: what they import of each other has no cycle, and in `hailwire` points down only.

use std::collections::{BTreeMap, BTreeSet};

use crate::{links::collect, read, repository};

/// The top modules of `hailwire`, each above what it may import.
const LAYERS: [&str; 19] = [
    "clock",
    "attempt_race",
    "outbound_tcp",
    "panics",
    "key",
    "paths",
    "admission",
    "config",
    "agent_schema",
    "admin",
    "hub",
    "carrier",
    "frame_reader",
    "body",
    "agent",
    "session",
    "node",
    "client",
    "coordination",
];

/// A module, what it imports, and a file in which it does.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn no_top_modules_of_a_crate_import_each_other_in_a_circle() {
    let crates = std::fs::read_dir(repository("crates")).expect("the crates");
    let mut seen = 0;
    for entry in crates {
        let name = entry.expect("a crate").file_name();
        let name = name.to_string_lossy();
        let imports = imports(&name);
        seen += imports.len();
        let cycle = cycle(&imports);
        assert_eq!(cycle, Vec::<String>::new(), "{name}");
    }
    assert!(seen > 50, "{seen} modules that import others");
}

#[test]
fn modules_of_the_node_import_only_those_below_them() {
    let layer = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let mut upward = Vec::new();
    for (module, imported) in imports("hailwire") {
        let own = layer(&module).unwrap_or_else(|| panic!("{module} has no layer"));
        for (other, file) in imported {
            let below = layer(&other).unwrap_or_else(|| panic!("{other} has no layer"));
            if below >= own {
                upward.push(format!("{module} imports {other} in {file}"));
            }
        }
    }
    assert_eq!(upward, Vec::<String>::new());
}

#[test]
fn imports_are_found_in_every_form_and_a_circle_is_told() {
    let source = "\
        use crate::{alpha::One, beta::{Two, gamma}, delta};\n\
        // use crate::comment;\n\
        fn f() { crate::epsilon::call(); super::zeta::call() }\n\
        #[cfg(test)]\nmod tests { use crate::eta; }";
    let names = ["alpha", "beta", "delta", "epsilon", "zeta"];
    assert_eq!(imported(source, true), names.map(str::to_owned).into());
    assert!(!imported(source, false).contains("zeta"));
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let mut graph = Imports::new();
    for (from, to) in edges {
        let file = "a file".to_owned();
        graph
            .entry(from.into())
            .or_default()
            .insert(to.into(), file);
    }
    assert_eq!(
        cycle(&graph),
        ["b imports c in a file", "c imports b in a file"]
    );
}

/// What the top modules of a crate import of each other, tests apart.
fn imports(name: &str) -> Imports {
    let root = format!("crates/{name}/src");
    let mut files = Vec::new();
    collect(&repository(&root), "rs", &mut files);
    let sources: BTreeMap<String, String> = files
        .iter()
        .map(|file| {
            let file = file.display().to_string();
            (file.clone(), read(&file))
        })
        .collect();
    let in_crate = |file: &str| file[root.len() + 1..].to_owned();
    let top = |file: &str| {
        let file = in_crate(file);
        let first = file.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first).to_owned()
    };
    let modules: BTreeSet<String> = sources.keys().map(|file| top(file)).collect();
    let for_tests = test_modules(&sources);
    let mut found = Imports::new();
    for (file, source) in &sources {
        let module = top(file);
        let is_root = ["lib", "main", "bin"].contains(&module.as_str());
        if is_root || for_tests.iter().any(|tests| file.starts_with(tests)) {
            continue;
        }
        let file = in_crate(file);
        let depth = file.matches('/').count();
        let is_top = depth == 0 || (depth == 1 && file.ends_with("/mod.rs"));
        for other in imported(source, is_top) {
            if other != module && modules.contains(&other) {
                let imported = found.entry(module.clone()).or_default();
                imported.insert(other, file.clone());
            }
        }
    }
    found
}

/// Where modules lie that only tests have, without their ending.
fn test_modules(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (file, source) in sources {
        for (at, _) in source.match_indices("#[cfg(test)]") {
            let rest = source[at..].split_once('\n').map_or("", |(_, rest)| rest);
            let line = rest
                .lines()
                .find(|line| !line.trim_start().starts_with('#'));
            let line = line.unwrap_or_default().trim();
            let name = line.rsplit_once("mod ").map(|(_, name)| name);
            if let Some(name) = name.and_then(|name| name.strip_suffix(';')) {
                let folder = file
                    .strip_suffix("/mod.rs")
                    .or_else(|| file.strip_suffix("/lib.rs"))
                    .or_else(|| file.strip_suffix("/main.rs"))
                    .or_else(|| file.strip_suffix(".rs"));
                let folder = folder.unwrap_or_default();
                found.push(format!("{folder}/{name}.rs"));
                found.push(format!("{folder}/{name}/"));
            }
        }
    }
    found
}

/// The names that follow `crate::` in a source, and `super::` where that is the crate; its tests and comments apart.
pub(crate) fn imported(source: &str, is_top: bool) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or_default().lines();
    let code: Vec<&str> = lines
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    let roots: &[&str] = if is_top {
        &["crate::", "super::"]
    } else {
        &["crate::"]
    };
    for root in roots {
        for (at, _) in code.match_indices(root) {
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(list) => found.extend(of_list(list)),
                None => found.extend([first_name(rest)]),
            }
        }
    }
    found.remove("");
    found
}

/// The first names of a list in braces, of which the opening one is left out.
fn of_list(list: &str) -> Vec<String> {
    let (mut depth, mut names, mut begins) = (0, Vec::new(), true);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if letter.is_whitespace() => {}
            _ if begins => {
                names.push(first_name(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn first_name(path: &str) -> String {
    let end = path.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    path[..end.unwrap_or(path.len())].to_owned()
}

/// The imports that lie on a circle.
fn cycle(imports: &Imports) -> Vec<String> {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for other in imports.get(module).into_iter().flat_map(BTreeMap::keys) {
                if other == to {
                    return true;
                }
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        false
    };
    let mut found = Vec::new();
    for (module, imported) in imports {
        for (other, file) in imported {
            if reaches(other, module) {
                found.push(format!("{module} imports {other} in {file}"));
            }
        }
    }
    found
}
