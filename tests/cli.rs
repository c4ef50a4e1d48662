//! The parity program from outside: its output, and its errors for invalid values.

#![allow(clippy::unwrap_used)]

mod program;
mod texts;

use program::{Ran, as_typed, program};
use serde_json::Value;
use std::{fs, process::Command};
use tapezoo::models::Family;
use texts::contains;

const SMALL: &str = "--steps 3 --train-len 6 --batch 2 --width 8 --heads 2 --head-dim 4 --mlp 8 --eval-lens 6,9";

/// Run the program with flags separated by spaces.
fn parity(flags: &str) -> Ran {
    let flags: Vec<&str> = flags.split(' ').filter(|f| !f.is_empty()).map(|f| if f == "''" { "" } else { f }).collect();
    Ran::of(program("parity").args(flags).output().unwrap())
}

/// Assert that it stops with status 2 before any work, with one error that contains all `words`, and without a panic.
#[track_caller]
fn refuses(flags: &str, words: &[&str]) {
    let ran = parity(flags);
    assert_eq!(ran.status, Some(2), "{flags}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.starts_with("error: ") && !ran.stderr.contains("panicked"), "{flags}: {}", ran.stderr);
    for word in words.iter().map(|words| as_typed(flags, words)) {
        assert!(ran.stderr.contains(&word), "{flags}: no '{word}' in: {}", ran.stderr);
    }
    assert_eq!(ran.stdout, "", "{flags}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_profile_in_emulation_counts_what_kernels_ask_for() {
    if tapezoo::cuda::emulator::libraries().is_err() {
        return;
    }
    let ran = parity(&format!("{SMALL} --models lru --profile --device emulated"));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let (ops, kernels) = ran.stdout.split_once("A step's kernels").unwrap();
    assert!(ops.contains("all ops") && kernels.lines().all(|line| line.chars().count() <= 100), "{}", ran.stdout);
    // One sequence of scans forward and one backward in each of the two layers.
    let launches = |kernel: &str| kernels.lines().find_map(|line| line.strip_prefix(kernel)?.split_whitespace().next());
    assert_eq!((launches("lru_run "), launches("lru_run_back ")), (Some("2"), Some("2")), "{kernels}");
}

#[test]
fn json_is_one_object_with_every_run() {
    let ran = parity(&format!("{SMALL} --models lru,gpt --seeds 2 --seed 7 --json"));
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    let object: Value = serde_json::from_str(&ran.stdout).unwrap();
    let runs = object["runs"].as_array().unwrap();
    let who: Vec<_> = runs.iter().map(|r| (r["model"].as_str().unwrap(), r["seed"].as_u64().unwrap())).collect();
    assert_eq!(who, [("lru", 7), ("lru", 8), ("gpt", 7), ("gpt", 8)]);
    for run in runs {
        assert_eq!((run["device"].as_str(), run["steps"].as_u64()), (Some("cpu"), Some(3)));
        assert!(run["params"].as_u64().unwrap() > 0 && run["form"].is_string() && run.get("error").is_none(), "{run}");
        assert!(run["steps_per_s"].as_f64().unwrap() > 0.0 && run["wall_s"].as_f64().unwrap() > 0.0, "{run}");
        let accuracy = run["accuracy"].as_object().unwrap();
        assert_eq!(accuracy.keys().collect::<Vec<_>>(), ["6", "9"]);
        assert!(accuracy.values().all(|a| (0.0..=1.0).contains(&a.as_f64().unwrap())), "{accuracy:?}");
    }
}

#[test]
fn the_list_of_models_has_each_with_its_facts() {
    let (ran, help) = (parity("--models list"), parity("--help").stdout);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    for name in tapezoo::models::names() {
        let from = ran.stdout.find(&format!("\n  {name}  ")).unwrap_or_else(|| panic!("{name}"));
        let facts: Vec<&str> = ran.stdout[from..].lines().skip(1).take(7).collect();
        let about = tapezoo::models::about(name).unwrap();
        let wanted =
            [about.line, about.transition, about.eigenvalues, about.state, about.cost, "recurrent", about.source];
        for (line, fact) in facts.iter().zip(wanted) {
            assert!(line.contains(fact), "no '{fact}' in: {line}");
        }
        assert!(help.contains(&format!("    {name} ")), "{name} is not in --help");
    }
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    let more = parity("--models list --json --steps 3");
    assert_eq!((more.status, more.stdout), (Some(0), ran.stdout));
    assert_eq!(more.stderr, "warning: --steps, --json have no effect beside --models list\n");
}

#[test]
fn the_family_tree_has_every_mixer_once() {
    let ran = parity("--models tree");
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    let document = roxmltree::Document::parse(&ran.stdout).unwrap();
    let texts: Vec<&str> =
        document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|n| n.text()).collect();
    for name in tapezoo::models::names() {
        let about = tapezoo::models::about(name).unwrap();
        if let Some((parent, new)) = about.parent {
            assert!(tapezoo::models::about(parent).is_some(), "{name}: {parent} is no mixer");
            assert!(texts.contains(&new), "{name}: {new}");
        }
    }
    let dots = document.descendants().filter(|node| node.has_tag_name("circle")).count();
    let described = |name: &&str| tapezoo::models::about(name).is_some_and(|a| a.family != Family::Others);
    let described = tapezoo::models::names().into_iter().filter(described).count();
    assert_eq!(dots, described + Family::ALL.len(), "a dot each");
    // On a terminal the output is text.
    for columns in [80, 40] {
        let text = tapezoo::report::tree::text(columns);
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns} columns:\n{text}");
        let words: Vec<&str> = text.split_whitespace().filter(|word| !"│├─└".contains(*word)).collect();
        for name in tapezoo::models::names() {
            let about = tapezoo::models::about(name).unwrap();
            let title = about.line.split(':').next().unwrap();
            let said = about.parent.map_or(title.into(), |(_, new)| format!("{title}: {new}"));
            assert!(about.family == Family::Others || words.join(" ").contains(&said), "no '{said}' in:\n{text}");
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/zoo.svg");
    assert_eq!(std::fs::read_to_string(path).unwrap(), ran.stdout, "parity --models tree > docs/zoo.svg");
}

#[test]
fn the_table_of_the_documents_is_the_list() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/zoo.md")).unwrap();
    let (_, rest) = document.split_once("<!-- the list of models from here -->\n\n").unwrap();
    let (table, _) = rest.split_once("\n<!-- to here -->").unwrap();
    let list = parity("--models list").stdout;
    let lines: Vec<&str> = list.lines().collect();
    let mut wanted =
        "| mixer | A_t | eigenvalues | state | a step | forms | source |\n|---|---|---|---|---|---|---|\n".to_string();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("  ") && !line.starts_with("   ")) {
        let facts =
            lines[i + 1..][..6].iter().map(|fact| fact.chars().skip(19).collect::<String>().replace('|', "\\|"));
        let name = format!("`{}`", line.split_whitespace().next().unwrap());
        let row: Vec<String> = std::iter::once(name).chain(facts).collect();
        wanted += &format!("| {} |\n", row.join(" | "));
    }
    assert!(table == wanted, "docs/zoo.md: its table should be\n\n{wanted}");
    assert_eq!(table.lines().count(), 2 + tapezoo::models::names().len());
}

#[test]
fn the_table_fits_the_terminal_whatever_is_asked() {
    let lens = "--eval-lens 18,17,3,4,5,6,7,8,9,10,11,12,13,14,15,16";
    let ran = parity(&format!("--steps 2 --train-len 6 --batch 2 --width 4 --seeds 2 --num-ones 3 {lens}"));
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    for line in ran.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for word in ["linear_transformer", "params", "steps/s", "±0.", "parity with 3 ones", "2 seeds", " 16"] {
        assert!(ran.stdout.contains(word), "no '{word}' in:\n{}", ran.stdout);
    }
}

#[test]
fn every_form_of_a_mixer_can_be_asked_for() {
    for (model, forms) in [
        ("lstm", &["recurrent", "fused"][..]),
        ("delta_net", &["parallel", "chunked", "chunked:3"]),
        ("gla", &["split", "split:3"]),
        ("lru", &["scan", "scan:3"]),
    ] {
        for form in forms {
            let ran = parity(&format!("{SMALL} --models {model} --form {form} --dtype f64 --json"));
            let object: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert!(object["runs"][0]["form"].as_str().unwrap().starts_with(form), "{}", ran.stdout);
        }
    }
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for flag in ["steps", "batch", "seeds", "jobs", "train-len", "width", "layers", "heads", "head-dim"] {
        refuses(&format!("--{flag} 0"), &[&flag.replace('-', "_"), "0"]);
    }
    for flag in ["steps", "batch", "seeds", "seed", "jobs", "train-len", "eval-lens", "num-ones", "warmup", "mlp"] {
        refuses(&format!("--{flag} -3"), &[&format!("--{flag}"), "'-3'", "expected a whole number"]);
        refuses(&format!("--{flag} many"), &[&format!("--{flag}"), "'many'", "expected a whole number"]);
        refuses(&format!("--{flag} 99999999999999999999"), &["99999999999999999999"]);
    }
    for flag in ["lr", "weight-decay", "clip"] {
        for value in ["nan", "inf", "-1e999", "x"] {
            refuses(&format!("--{flag} {value}"), &[&format!("--{flag}"), value, "finite number"]);
        }
        refuses(&format!("--{flag} -1"), &["-1", "expected a finite number"]);
    }
    refuses("--lr 0", &["lr 0", "above 0"]);
    refuses("--grad-noise -1", &["grad_noise -1", "a finite number: eta"]);
    refuses("--label-smoothing 1", &["label_smoothing 1", "below 1"]);
    refuses("--eval-lens 32,0", &["eval_lens 0", "at least 1"]);
    refuses("--eval-lens 32,64,32", &["32", "twice"]);
    refuses("--eval-lens 32,100 --max-len 64", &["100", "64 positions"]);
    refuses("--batch 1000000000000 --steps 1", &["1000000000000", "tokens"]);
    refuses("--train-len 1000000000000 --steps 1", &["1000000000000", "tokens"]);
    refuses("--seed 9223372036854775807", &["9223372036854775807", "2^63"]);
}

#[test]
fn names_that_nobody_has_are_refused() {
    let all = "`tapezoo models` lists all\n";
    refuses("--models lstn", &[&format!("--models: unknown model 'lstn' (did you mean 'lstm'?): {all}")]);
    refuses("--models xlstm", &["(did you mean 'lstm', 'slstm' or 'mlstm'?)"]);
    refuses("--models linear", &["(did you mean 'linear_transformer'?)"]);
    refuses("--models delta_net:heads=2", &["expected a name alone", "settings as flags", "[per_model.delta_net]"]);
    refuses("--models lstm,all", &["unknown model 'all': it stands alone"]);
    refuses("--models ''", &[&format!("unknown model '': {all}")]);
    refuses("--models lstm,all", &["'all'"]);
    refuses("--models lstm,lstm", &["lstm", "twice"]);
    refuses("--preset big", &["'big'", "default", "published"]);
    refuses("--optimizer sgd", &["'sgd'", "adam, adamw"]);
    refuses("--schedule line", &["'line'", "constant, cosine"]);
    refuses("--form quick", &["'quick'", "recurrent"]);
    refuses("--form chunked:0", &["chunked:0"]);
    refuses("--models gla --form split:0", &["split:0"]);
    refuses("--models delta_net --form split", &["split", "recurrent, parallel, chunked"]);
    refuses("--form scan:0 --models lru", &["scan:0"]);
    refuses("--models gpt,lstm --form parallel", &["parallel", "lstm", "fused"]);
    refuses("--device cuda", &["cuda", "cpu"]);
    refuses("--device tpu", &["tpu", "auto, cpu, cuda"]);
    refuses("--dtype f16", &["f16", "f32"]);
    refuses("--models lstm --ngram 17", &["ngram = 17", "0 to 16"]);
    refuses("--models lstm --variant published --ngram 2", &["ngram = 2", "no n-gram heads"]);
    refuses("--models delta_product --householders 0", &["householders = 0", "from 1"]);
    refuses("--models delta_net --eigenvalues -2..2", &["'-2..2'", "0..1 or -1..1"]);
    refuses("--models lstm,mamba --eigenvalues -1..1", &["lstm has no such choice", "only of delta_net, mamba"]);
    refuses("--models lstm --positions rope", &["lstm", "gpt, delta_net"]);
    refuses("--without diagonal", &["--without: only --variant published has"]);
    refuses("--dtype bf16 --device cpu", &["--products bf16 rounds"]);
    refuses("--max-len 3", &["--train-len 32, as the preset has it", "the 3 positions of --max-len"]);
    refuses("--models gpt --positions rope --head-dim 7", &["--head-dim 7: rope needs an even --head-dim"]);
    refuses("--positions left", &["left", "learned"]);
    refuses("--frobnicate", &["--frobnicate"]);
    refuses("surplus", &["surplus"]);
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let flags = format!("--config {}", path.display());
    refuses(&flags, &["c.toml: does not exist; expected a TOML file"]);
    for (text, words) in [
        ("steps = ", &["c.toml", "line 1"][..]),
        ("# one\nstepz = 3", &["c.toml: line 2: ", "unknown key 'stepz' (did you mean 'steps'?)\n"]),
        ("\nwidth = 3", &["c.toml: line 2: unknown key 'width' (a key of [model]: model.width)\n"]),
        ("widht = 3", &["c.toml: line 1: unknown key 'widht' (did you mean 'width' in [model]?)\n"]),
        ("epochs = 3", &["c.toml: line 1: unknown key 'epochs': expected one of preset"]),
        ("model.wide = 3", &["c.toml: line 1: ", "'wide' in [model]"]),
        ("lr = 1.0\n[model]\nwidht = 3", &["c.toml: line 3: ", "'widht' in [model] (did you mean 'width'?)"]),
        ("model.mixer = 'gpt'", &["c.toml: line 1: ", "model.mixer"]),
        ("task.num_twos = 3", &["c.toml: line 1: ", "num_twos", "num_ones"]),
        ("task.name = 'chess'", &["c.toml: line 1: ", "chess", "parity"]),
        (
            "task = { name = 'dick' }",
            &["c.toml: line 1: task.name 'dick' (did you mean 'dyck'?): expected one of parity"],
        ),
        ("steps = 'x'", &["c.toml: line 1: ", "steps"]),
        ("steps = -3", &["c.toml: line 1: ", "-3"]),
        ("steps = 7\nlr = nan", &["c.toml: line 2: lr NaN", "expected"]),
        ("model = { width = 0 }", &["c.toml: line 1: width = 0"]),
        ("betas = [0.9, 1.0]", &["betas 1", "below 1"]),
        ("models = ['ttt']\n[model]\ncarry_state = true", &["carry_state", "ttt"]),
        ("models = ['gpt']\n[model]\ncarry_state = true\npositions = 'rope'", &["carry_state", "rope"]),
        ("betas = [0.0, 0.0]", &["betas 0", "from 0.001 on"]),
        ("betas = [0.9]", &["c.toml", "betas"]),
        ("dtype = 'i32'", &["c.toml", "i32", "f32"]),
        ("preset = 3", &["preset 3"]),
        ("preset = 'mine'", &["'mine'", "published"]),
        ("preset = 'zoologie'", &["c.toml: line 1: unknown preset 'zoologie' (did you mean 'zoology'?)"]),
        ("lr = 1\nmodels = [\n'lstn']", &["c.toml: line 2: unknown model 'lstn' (did you mean 'lstm'?)"]),
        ("per_model.gbt.lr = 3", &["gbt", "gpt"]),
        ("\nper_model.gpt.lrr = 3", &["c.toml: line 2: per_model.gpt: unknown key 'lrr' (did you mean 'lr'?)"]),
        ("per_model.gpt.steps = 0", &["steps 0"]),
        ("per_model = 3", &["c.toml", "per_model"]),
        ("model = 3", &["c.toml", "model"]),
    ] {
        fs::write(&path, text).unwrap();
        refuses(&flags, words);
    }
    fs::write(&path, b"steps = 3 # \xff").unwrap();
    refuses(&flags, &["c.toml", "UTF-8"]);
    refuses(&format!("--config {}", dir.path().display()), &["directory"]);
}

#[test]
fn a_run_directory_is_not_overwritten_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let flags = format!("{SMALL} --models gpt --out {}", at("run").display());
    assert_eq!(parity(&flags).status, Some(0));
    for file in ["config.toml", "table.txt", "results.json", "gpt-seed0/metrics.jsonl", "gpt-seed0/weights.safetensors"]
    {
        assert!(at("run").join(file).exists(), "{file}");
    }
    fs::write(at("run/notes"), "mine").unwrap();
    refuses(&flags, &["run", "already holds a run", "--force"]);
    let other = parity(&format!("{SMALL} --models lru --out {} --force", at("run").display()));
    assert_eq!(other.status, Some(0), "{}", other.stderr);
    assert!(!at("run/gpt-seed0").exists() && at("run/lru-seed0").exists());
    assert_eq!(fs::read_to_string(at("run/notes")).unwrap(), "mine");

    fs::write(at("file"), "").unwrap();
    refuses(&format!("--out {}", at("file").display()), &["file", "expected a directory"]);
    refuses(&format!("--out {}", at("file/below").display()), &["file/below"]);
    refuses("--force", &["--out"]);
    // An error in the other settings is found before anything is written.
    refuses(&format!("--steps 0 --out {}", at("new").display()), &["steps 0"]);
    assert!(!at("new").exists());
}

#[test]
fn a_run_that_fails_is_reported_and_the_status_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("c.toml"), dir.path().join("run"));
    fs::write(&path, "[per_model.lru]\nlr = 1e30\nwarmup = 0").unwrap();
    let ran = parity(&format!(
        "{SMALL} --models lru,gpt --seeds 1 --warmup 0 --config {} --out {} --json",
        path.display(),
        out.display()
    ));
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("error: 1 of 2 runs"), "{}", ran.stderr);
    let object: Value = serde_json::from_str(&ran.stdout).unwrap();
    let error = object["runs"][0]["error"].as_str().unwrap();
    assert!(error.starts_with("step 2: the value of op '") && error.contains("blocks.0"), "{error}");
    assert_eq!(object["runs"][1].get("error"), None);
    contains(fs::read_to_string(out.join("table.txt")).unwrap(), error);
    contains(fs::read_to_string(out.join("lru-seed0/metrics.jsonl")).unwrap(), "step 2");
    assert!(out.join("gpt-seed0/weights.safetensors").exists());
}

#[test]
fn the_table_names_the_least_and_the_most_steps_and_a_flag_is_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    fs::write(&path, "steps = 2\n[per_model.lru]\nsteps = 5").unwrap();
    let small = SMALL.replace("--steps 3 ", "");
    let table =
        |more: &str| parity(&format!("{small} --models lru,gpt --seeds 1 --config {}{more}", path.display())).stdout;
    assert!(table("").contains("2-5 steps"), "{}", table(""));
    assert!(table(" --steps 3").contains("T=6, 3 steps"), "{}", table(" --steps 3"));
}

#[test]
fn help_teaches() {
    // The short help, and the size that it fits in.
    let glance = parity("-h").stdout;
    assert!(glance.lines().count() <= 42, "{glance}");
    for word in ["--num-ones", "--models", "--out", "tapezoo parity --models", "--help explains"] {
        assert!(glance.contains(word), "no '{word}' in:\n{glance}");
    }
    let help = parity("--help").stdout;
    for word in ["Examples:", "--num-ones", "--eval-lens", "published: 40000", "--form", "--json", "metrics"] {
        assert!(help.contains(word), "no '{word}'");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_configuration_may_come_from_a_command() {
    let place = tempfile::tempdir().unwrap();
    let exe = env!("CARGO_BIN_EXE_tapezoo");
    let bash = |text: &str| {
        let line = format!("'{exe}' parity --config <({text}) {SMALL} --out run");
        Command::new("bash").args(["-c", &line]).current_dir(place.path()).output().unwrap()
    };
    let output = bash("echo 'label_smoothing = 0.25'");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config = fs::read_to_string(place.path().join("run/config.toml")).unwrap();
    assert!(config.contains("label_smoothing = 0.25"), "{config}");
    let output = bash("cat /dev/zero");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("and such a file has at most"), "{said}");
}
