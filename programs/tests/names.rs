//! The eight programs of the repository are subcommands of `tapezoo`, under names of their own.

use std::process::{Command, Output};

const NAMES: [(&str, &str); 8] = [
    ("parity", env!("CARGO_BIN_EXE_parity")),
    ("dyck", env!("CARGO_BIN_EXE_dyck")),
    ("mqar", env!("CARGO_BIN_EXE_mqar")),
    ("state_tracking", env!("CARGO_BIN_EXE_state_tracking")),
    ("sweep", env!("CARGO_BIN_EXE_sweep")),
    ("report", env!("CARGO_BIN_EXE_report")),
    ("inspect", env!("CARGO_BIN_EXE_inspect")),
    ("verify", env!("CARGO_BIN_EXE_verify")),
];

fn run(exe: &str, flags: &[&str]) -> Output {
    Command::new(exe).args(flags).output().expect("a program that starts")
}

#[test]
fn each_has_its_own_name_in_version_usage_and_examples() {
    for (name, exe) in NAMES {
        let text = |flag: &str| String::from_utf8(run(exe, &[flag]).stdout).expect("UTF-8");
        let (version, help) = (text("--version"), text("--help"));
        assert!(version.starts_with(&format!("{name} {} (", env!("CARGO_PKG_VERSION"))), "{version}");
        assert!(help.contains(&format!("Usage: {name} ")), "{help}");
        assert!(!help.contains("tapezoo parity") && !help.contains(&format!("tapezoo {name}")), "{help}");
    }
}

#[test]
fn what_cannot_be_has_the_same_status_and_error() {
    let [parity, sweep] = [NAMES[0].1, NAMES[4].1];
    for (exe, flags) in [(parity, &["--steps", "0"][..]), (parity, &["--models", "lstn"]), (sweep, &["no-such.toml"])] {
        let output = run(exe, flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.starts_with("error: "), "{said}");
    }
    let output = run(parity, &["--show", "1", "--train-len", "4"]);
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with("parity, training length 4")
    );
}
