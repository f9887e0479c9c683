//! The units that `hail service` writes, as systemd itself reads them.

use std::process::Command;

use crate::test_nodes::TestNodes;

#[test]
fn systemd_takes_every_unit_and_finds_those_of_the_machine_little_exposed() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        hailwire_skip::skipped("systemd-analyze is not installed");
        return;
    }
    let nodes = TestNodes::new();
    for (what, name, args) in [
        ("node", "hailwire", &["--listen-tcp", "0.0.0.0:443"][..]),
        (
            "hub",
            "hailwire-hub",
            &["--url", "https://hub.example.org:7443"],
        ),
        (
            "callout",
            "hailwire-callout",
            &["/etc/hailwire/callout.kdl"],
        ),
    ] {
        for system in [false, true] {
            // A data folder that is named belongs to the user.
            let mut shown = Command::new(crate::companion_programs::hail());
            shown
                .env_remove("HAIL_DATA")
                .env("HOME", nodes.path("home"));
            shown.args(["service", "show", what]);
            if system {
                shown.arg("--system");
            }
            let shown = shown.arg("--").args(args).output().unwrap();
            assert!(shown.status.success(), "{shown:?}");
            let text = String::from_utf8(shown.stdout).unwrap();
            assert!(text.contains(args[0]), "{text}");
            let unit = nodes.path(&format!("{name}.service"));
            std::fs::write(&unit, &text).unwrap();

            // Of `man:hail(1)` it says that the page is not installed.
            let verified = Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .arg(&unit)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&verified.stderr);
            let about_it = said.lines().filter(|line| line.contains(name));
            assert_eq!(about_it.collect::<Vec<_>>(), [""; 0], "{text}");
            assert!(verified.status.success(), "{said}");
            if system {
                // Exposure in tenths: 10 is none of it, 100 all.
                let exposed = Command::new("systemd-analyze")
                    .args(["security", "--offline=true", "--threshold=35"])
                    .arg(&unit)
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&exposed.stdout);
                assert!(exposed.status.success(), "{said}");
            }
        }
    }
    let named = nodes.run("desk", &["service", "show", "hub", "--system"]);
    assert_eq!(named.code, Some(2), "{named:#?}");
}
