//! What `./x install` and `./x dist` make, of programs that are built already.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::companion_programs;

/// Runs `./x` with the programs of the tests.
#[track_caller]
fn x(args: &[&str], nfpm: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = companion_programs::hail().parent().unwrap();
    let ran = Command::new(root.join("x"))
        .args(args)
        .arg("--programs")
        .arg(programs)
        .env("HAILWIRE_NFPM", nfpm)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

fn output(program: &str, args: &[&str]) -> String {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

const FILES: [&str; 10] = [
    "bin/hail",
    "bin/hail-bench",
    "bin/hail-inspection",
    "share/man/man1/hail.1",
    "share/man/man1/hail-callout-waf.1",
    "share/bash-completion/completions/hail",
    "share/zsh/site-functions/_hail",
    "share/fish/vendor_completions.d/hail.fish",
    "share/systemd/user/hailwire.service",
    "share/doc/hailwire/LICENSE-APACHE",
];

#[test]
fn what_is_installed_runs_from_its_folder_and_its_unit_names_that() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().canonicalize().unwrap().join("a prefix");
    let text = prefix.to_str().unwrap();
    x(&["install", "--prefix", text], Path::new(""));
    for file in FILES {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    let hail = prefix.join("bin/hail");
    let version = output(hail.to_str().unwrap(), &["--version"]);
    assert_eq!(version, format!("hail {}\n", env!("CARGO_PKG_VERSION")));
    let unit = fs::read_to_string(prefix.join("share/systemd/user/hailwire.service")).unwrap();
    let start = format!("ExecStart=\"{text}/bin/hail\" up\n");
    assert!(unit.contains(&start), "{unit}");
    // Again over programs that run.
    x(&["install", "--prefix", text], Path::new(""));
}

/// `nfpm`, as `./x test` names it or as it was installed before.
fn nfpm() -> Option<PathBuf> {
    let named = std::env::var_os("HAILWIRE_NFPM").map(PathBuf::from);
    let target = companion_programs::hail().parent()?.parent()?;
    let installed = target.join("peers/nfpm-2.43.4/nfpm");
    named
        .into_iter()
        .chain([installed])
        .find(|path| path.is_file())
}

#[test]
fn the_archive_and_the_package_have_every_file_and_the_right_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let nfpm = nfpm();
    x(
        &["dist", "--out", out],
        nfpm.as_deref().unwrap_or(Path::new("")),
    );
    let of = |end: &str| -> Option<String> {
        let names = fs::read_dir(folder.path()).unwrap().flatten();
        let mut names = names.map(|entry| entry.path().to_str().unwrap().to_owned());
        names.find(|name| name.ends_with(end))
    };
    let archive = output("tar", &["-tzf", &of(".tar.gz").unwrap()]);
    let has = |list: &str, file: &str| list.lines().any(|line| line.ends_with(file));
    for file in FILES {
        assert!(
            has(&archive, &format!("/{file}")),
            "{file} is not in the archive"
        );
    }
    let check = format!("cd '{out}' && sha256sum --check --strict SHA256SUMS");
    let checked = output("sh", &["-c", &check]);
    assert!(checked.contains("linux.tar.gz: OK"), "{checked}");
    let unpack = format!("cd '{out}' && tar -xzf *.tar.gz && cat */share/systemd/user/*.service");
    assert!(output("sh", &["-c", &unpack]).contains("ExecStart=\"/usr/bin/hail\" up"));
    let Some(package) = of(".deb") else {
        assert!(nfpm.is_none());
        return hailwire_skip::skipped("nfpm is not installed: there is no Debian package");
    };
    assert!(checked.contains(".deb: OK"), "{checked}");
    // A .deb is an archive of archives (deb(5)).
    let list = format!("ar p '{package}' data.tar.gz | tar -tzf -");
    let list = output("sh", &["-c", &list]);
    for file in FILES {
        assert!(
            has(&list, &format!("/usr/{file}")),
            "{file} is not in the package"
        );
    }
}
