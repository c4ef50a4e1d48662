//! `tapezoo` itself: its subcommands, its lists, its completions for shells and its manual pages.

#![allow(clippy::unwrap_used)]

mod program;
mod texts;

use program::{Ran, program, run};
use std::fs;
use tapezoo::terminal::fit;
use texts::contains;

#[track_caller]
fn prints(line: &str) -> String {
    let Ran { status, stdout, stderr } = run(line);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{line}");
    stdout
}

#[track_caller]
fn refuses(line: &str, words: &[&str]) {
    let Ran { status, stdout, stderr } = run(line);
    assert_eq!((status, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
    for word in words {
        assert!(stderr.contains(word), "{line}: no '{word}' in: {stderr}");
    }
}

#[test]
fn every_subcommand_explains_itself_under_its_name() {
    let all = prints("--help");
    let listed = all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> =
        listed.filter(|line| !line.starts_with("    ")).filter_map(|l| l.split(' ').nth(2)).collect();
    assert!(names.len() > 12, "{names:?}");
    for name in names.iter().filter(|name| **name != "help") {
        let [short, long] = ["-h", "--help"].map(|flag| prints(&format!("{name} {flag}")));
        let narrow = program(name).arg("-h").env("COLUMNS", "80").output().unwrap().stdout;
        let lines = String::from_utf8(narrow).unwrap().lines().count();
        assert!(lines <= 48, "{name} -h has {lines} lines of 80 columns");
        assert!(long.len() > short.len() || ["completions", "man"].contains(name), "{name}: {long}");
        for flag in ["-h", "--help"] {
            let help = prints(&format!("{name} {flag}"));
            assert!(help.contains(&format!("Usage: tapezoo {name}")), "{help}");
            // Every example in the help is a command as it is typed.
            let examples = help.lines().skip_while(|line| !line.starts_with("Examples:")).skip(1);
            for line in examples.take_while(|line| line.starts_with("  ")).filter(|l| !l.starts_with("   ")) {
                assert!(line.starts_with("  tapezoo "), "{name} {flag}: {line}");
            }
            assert!(!help.contains("tapezoo models = ["), "a file is no command: {help}");
            assert!(!help.contains("\n  tapezoo  "), "nor is a comment: {help}");
        }
    }
    contains(prints("state_tracking --help"), "Usage: tapezoo state-tracking");
    refuses("paritty", &["similar", "'parity'"]);
    refuses("parity --lerning-rate 3", &["--lerning-rate"]);
}

#[test]
fn any_task_is_trained_by_name_or_by_its_flags() {
    let small = "--models lstm --seeds 1 --steps 2 --batch 2 --width 4";
    for (flags, says) in [
        ("--task s5 --train-len 4 --eval-lens 4", "word problem of S5"),
        ("--task last_parity --train-len 4 --eval-lens 4", "parity, asked at the last bit"),
        ("--types 2 --train-len 4 --eval-lens 4", "dyck, 2 types"),
        ("--num-ones 2 --train-len 4 --eval-lens 4", "parity with 2 ones"),
        ("--preset mqar --train-len 16 --eval-lens 16", "mqar"),
        ("--task mqar --repeat 2 --train-len 16 --eval-lens 16", "read 2 times"),
        ("--small 2 --repeat 2 --train-len 16 --eval-lens 16", "disjoint, 2 of 64"),
        ("--preset default --types 1 --train-len 4 --eval-lens 4", "dyck, 1 types"),
    ] {
        let table = prints(&format!("train {flags} {small}"));
        assert!(table.contains(says), "{flags}: {table}");
    }
    // The numbers are the same as with the shorthand.
    let one = |program: &str| prints(&format!("{program} --types 2 --train-len 4 --eval-lens 4 --show 1"));
    assert_eq!(one("train"), one("dyck"));
    refuses("train --task parity --types 2", &["--types belongs to the task dyck, and this is parity"]);
    refuses("train --repeat 2", &["--repeat belongs to the tasks mqar and disjoint, and this is parity"]);
    refuses("train --task dick", &["'dick'", "similar", "'dyck'"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    fs::write(&path, "train_len = 4\neval_lens = [4]\ntask = { name = 'group', group = 's4' }").unwrap();
    let flags = format!("train --config {} {small}", path.display());
    contains(prints(&flags), "word problem of S4");
    let out = dir.path().join("run");
    contains(prints(&format!("{flags} --moves swaps --out {}", out.display())), "only swaps");
    let Ran { status, stderr, .. } = run(&format!("train --resume {}", out.display()));
    assert!(status == Some(0) && stderr.contains("nothing left to do"), "{stderr}");
    refuses(&format!("{flags} --num-ones 2"), &["--num-ones belongs to the task parity, and this is group"]);
}

#[test]
fn the_same_names_are_understood_everywhere() {
    for program in ["parity", "dyck", "mqar", "state-tracking", "train"] {
        let show = |flags: &str| prints(&format!("{program} --show 1 {flags}"));
        assert_eq!(show("--preset default"), show(""), "{program}");
    }
    for (program, old, new) in [("dyck", "dyck", "default"), ("mqar", "published-mqar", "published")] {
        let show = |preset: &str| prints(&format!("{program} --show 1 --preset {preset}"));
        assert_eq!(show(old), show(new));
    }
    let small = "parity --models lstm --seeds 1 --steps 1 --batch 2 --train-len 4 --eval-lens 4 --json";
    let said = |flag: &str| run(&format!("{small} {flag} 1")).stderr;
    let (threads, shards) = ("--threads is the old name of --jobs", "--shards is the old name of --micro-batches");
    assert_eq!(said("--jobs"), "");
    assert_eq!(said("--threads"), format!("warning: {threads}\n"));
    assert_eq!(said("--shards"), format!("warning: {shards}\n"));
    for flag in ["--jobs", "--threads"] {
        refuses(&format!("{small} {flag} 0"), &[&format!("error: {flag} 0: expected at least 1")]);
        contains(run(&format!("parity --show 1 {flag} 1")).stderr, format!("{flag} has no effect beside --show"));
    }
    refuses(&format!("{small} --jobs 1 --threads 1"), &["cannot be used with"]);
}

#[test]
fn mixers_and_tasks_are_listed_and_explained() {
    let (models, tasks) = (prints("models"), prints("tasks"));
    for name in tapezoo::models::names() {
        assert!(models.contains(&format!("  {name} ")), "{name}");
        let one = prints(&format!("models {name}"));
        let equations = tapezoo::models::equations(name).unwrap();
        let first = equations.lines().find(|line| !line.is_empty()).unwrap();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let source = tapezoo::models::about(name).unwrap().source;
        assert!(one.contains(source) && words(&one).contains(&words(first)), "no '{first}' in {one}");
    }
    for tapezoo::tasks::Named { name, kind, .. } in tapezoo::tasks::named() {
        let preset = tapezoo::train::config::preset_of(kind);
        assert!(tasks.lines().any(|line| line == name), "{name}");
        let one = prints(&format!("tasks {name}"));
        assert!(one.contains(&format!("Preset '{preset}'")) && one.contains("training length"), "{one}");
    }
    for (given, near) in [
        ("delta_nett", "'delta_net'"),
        ("DeltaNet", "'delta_net'"),
        ("LSTM", "'lstm'"),
        ("ttt-linear", "'ttt'"),
        ("transformer", "'linear_transformer' or 'transnormer'"),
    ] {
        refuses(&format!("models {given}"), &[&format!("'{given}' (did you mean {near}?)")]);
    }
    refuses("tasks dick", &["'dick': no such task (did you mean 'dyck'?)"]);
}

#[test]
fn lists_fit_the_terminal() {
    for line in ["models", "models all", "models lru gpt", "tasks", "tasks text s5"] {
        let text = prints(line);
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{line}: wider than 80 columns: {wide:#?}");
        let narrow = fit(&text, 40);
        assert!(narrow.split_whitespace().eq(text.split_whitespace()), "{line}: words are lost in {narrow}");
    }
    // The rest of a line stands below its second column, if that leaves room.
    assert_eq!(fit("  ab  one two three\n", 12), "  ab  one\n      two\n      three\n");
    assert_eq!(fit("  abcdef        one two three", 16), "  abcdef   one\n    two three\n");
    assert_eq!(fit("  abcdef          one two three      (eq. 4)", 31), "  abcdef   one two three\n    (eq. 4)\n");
    assert_eq!(fit("one two\n\nthree", 5), "one\ntwo\n\nthree\n");
}

#[test]
fn shells_and_manuals_are_told_of_every_flag() {
    for shell in ["bash", "fish", "zsh"] {
        let text = prints(&format!("completions {shell}"));
        for word in ["state-tracking", "num-ones", "published", "checkpoint"] {
            assert!(text.contains(word), "{shell}: no {word}");
        }
    }
    let page = prints("man");
    assert!(page.starts_with(".ie") || page.contains(".TH tapezoo 1"), "{page}");
    for page in ["man", "man parity"].map(prints) {
        let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert!(title.matches('"').count() % 2 == 0, "the title goes on in the next line: {title}");
    }
    let page = prints("man parity");
    assert!(page.contains("num\\-ones") && page.contains("published: 40000"), "{page}");
    refuses("man partiy", &["(did you mean 'parity'?)"]);
    let dir = tempfile::tempdir().unwrap();
    prints(&format!("man --out {}", dir.path().display()));
    for name in ["tapezoo.1", "tapezoo-parity.1", "tapezoo-state-tracking.1"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
}

/// `cargo install` puts every binary of the package on the PATH.
#[test]
fn one_program_is_installed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    let names: Vec<_> = manifest["bin"].as_array().unwrap().iter().map(|bin| bin["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tapezoo"]);
    assert!(!root.join("src/bin").exists(), "cargo finds programs there by itself");
}

#[test]
fn the_time_left_is_that_of_the_rest_at_the_same_rate() {
    use std::time::Duration;
    use tapezoo::train::progress::{duration, left};
    let seconds = Duration::from_secs;
    assert_eq!(left(seconds(10), 1.0, 3.0), Some(seconds(30)));
    assert_eq!((left(seconds(10), 4.0, 0.0), left(seconds(10), 0.0, 3.0)), (None, None));
    for (time, text) in [(1, "1 s"), (89, "89 s"), (90, "2 min"), (3_540, "59 min"), (5_400, "1 h 30 min")] {
        assert_eq!(duration(seconds(time)), text);
    }
}
