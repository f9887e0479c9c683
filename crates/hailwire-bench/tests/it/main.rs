//! `hail-bench` as `hail` runs it. What users see of it is tested with `hail` itself (crates/hailwire-cli/tests).

use std::process::Command;

#[test]
fn the_program_speaks_of_itself_as_hail() {
    let bench = || Command::new(env!("CARGO_BIN_EXE_hail-bench"));
    let ran = bench().args(["bench", "--help"]).output();
    let help = ran.expect("hail-bench runs").stdout;
    let help = String::from_utf8_lossy(&help);
    assert!(
        help.contains("Usage: hail bench [OPTIONS] <COMMAND>"),
        "{help}"
    );
    let ran = bench()
        .args(["bench", "run", "smoke", "--no-such"])
        .output();
    let ran = ran.expect("hail-bench runs");
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn its_commands_are_told_as_data() {
    let ran = Command::new(env!("CARGO_BIN_EXE_hail-bench"))
        .arg("outline")
        .output();
    let told = ran.expect("hail-bench runs").stdout;
    let told: serde_json::Value = serde_json::from_slice(&told).expect("JSON");
    let names: Vec<_> = told.as_array().expect("a list").iter().collect();
    assert_eq!(names.len(), 2);
    assert_eq!(
        (&names[0]["name"], &names[1]["name"]),
        (&"bench".into(), &"lab".into())
    );
}
