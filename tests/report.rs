//! The report: synthetic run directories, and their page and figures.

#![allow(clippy::unwrap_used)]

mod program;
mod texts;

use indicatif::ProgressBar;
use program::program;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};
use tapezoo::report::{Report, report, scale::Axis};
use texts::contains;

const CONFIG: &str = r#"
models = ["lstm", "gpt"]
seed = 0
seeds = 2
train_len = 32
eval_lens = [32, 48, 64, 128, 256]
steps = 40
lr = 0.005
[task]
name = "parity"
[model]
width = 16
[per_model.gpt.model]
positions = "learned"
"#;

/// The accuracy of a run: distinct, and exact in three decimals.
fn accuracy(model: usize, seed: usize, len: usize) -> f64 {
    (700 + 100 * model + 10 * seed + len) as f64 / 1000.0
}

const LENS: [usize; 5] = [32, 48, 64, 128, 256];

/// A run directory as a program writes it, with this configuration.
fn run_dir(dir: &Path, config: &str, models: &[&str]) {
    let mut runs = Vec::new();
    for (m, model) in models.iter().enumerate() {
        for seed in 0..2 {
            let scores: Vec<String> =
                LENS.iter().enumerate().map(|(i, len)| format!("\"{len}\":{}", accuracy(m, seed, i))).collect();
            let scores = format!("{{{}}}", scores.join(","));
            let mut lines = String::new();
            for step in [1, 10, 20, 30, 40] {
                lines += &format!("{{\"step\":{step},\"loss\":{},\"grad_norm\":1,\"lr\":0.1}}\n", 0.7 / step as f64);
            }
            for step in [20, 40] {
                lines += &format!("{{\"step\":{step},\"accuracy\":{scores}}}\n");
            }
            let path = dir.join(format!("{model}-seed{seed}"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("metrics.jsonl"), lines).unwrap();
            runs.push(serde_json::json!({
                "model": model, "seed": seed, "form": "fused", "device": "cpu", "params": 1234 + m, "steps": 40,
                "steps_per_s": 250.0 + seed as f64, "wall_s": 3.5,
                "accuracy": serde_json::from_str::<serde_json::Value>(&scores).unwrap(),
            }));
        }
    }
    fs::write(dir.join("config.toml"), config).unwrap();
    fs::write(dir.join("results.json"), serde_json::json!({ "runs": runs }).to_string()).unwrap();
}

fn make(paths: &[&Path]) -> Report {
    report(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), &ProgressBar::hidden()).unwrap()
}

/// The error for these paths contains all `words`.
#[track_caller]
fn refused(path: &Path, words: &[&str]) {
    let error = report(&[path.to_path_buf()], &ProgressBar::hidden()).err().unwrap().to_string();
    for word in words {
        assert!(error.contains(word), "no '{word}' in: {error}");
    }
}

fn two_models() -> (tempfile::TempDir, Report) {
    let dir = tempfile::tempdir().unwrap();
    run_dir(dir.path(), CONFIG, &["lstm", "gpt"]);
    let report = make(&[dir.path()]);
    (dir, report)
}

/// The polylines of a figure.
fn polylines(svg: &str) -> Vec<Vec<(f64, f64)>> {
    let tree = roxmltree::Document::parse(svg).unwrap();
    let pair = |p: &str| p.split_once(',').map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).unwrap();
    let points = |n: roxmltree::Node| n.attribute("points").unwrap().split(' ').map(pair).collect();
    tree.descendants().filter(|n| n.has_tag_name("polyline") || n.tag_name().name() == "polyline").map(points).collect()
}

#[test]
fn every_number_of_the_table_is_on_the_page() {
    let (_dir, report) = two_models();
    for m in 0..2 {
        for i in 0..LENS.len() {
            let mean = (accuracy(m, 0, i) + accuracy(m, 1, i)) / 2.0;
            assert!(report.page.contains(&format!("{mean:.3}")), "mean {mean}");
            for seed in 0..2 {
                let one = format!("<td>{:.3}</td>", accuracy(m, seed, i));
                assert!(report.page.contains(&one), "{one}");
            }
        }
        contains(&report.page, format!("<td>{}</td>", 1234 + m));
    }
    // Two seeds 0.01 apart deviate by 0.01 / √2; speeds are means.
    contains(&report.page, "±0.007");
    contains(&report.page, "<td>250</td>");
    contains(&report.page, "3.5");
    for shared in ["model.width", "positions", "learned", "steps", "0.005"] {
        assert!(report.page.contains(shared), "{shared}");
    }
    assert_eq!((report.notes.len(), report.runs), (0, 4));
}

#[test]
fn figures_are_xml_with_a_point_for_each_number() {
    let (_dir, report) = two_models();
    let names: Vec<&str> = report.figures.iter().map(|f| f.0.as_str()).collect();
    let of = "parity-trained-on-length-32";
    let mut expected = vec![format!("{of}-accuracy.svg"), format!("{of}-loss.svg")];
    expected.extend(LENS.map(|len| format!("{of}-accuracy-at-{len}.svg")));
    assert_eq!(names, expected);
    for ((name, svg), points) in report.figures.iter().zip([5, 5, 2, 2, 2, 2, 2]) {
        let lines = polylines(svg);
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [points, points], "{name}");
        assert!(lines.iter().flatten().all(|(x, y)| (0.0..=440.0).contains(x) && (0.0..=280.0).contains(y)), "{name}");
        for line in lines {
            assert!(line.windows(2).all(|w| w[0].0 < w[1].0), "{name}: x does not rise");
        }
    }
    // Accuracy rises with the length here, the loss falls with the step: upwards is a smaller y.
    let (accuracy, loss) = (&polylines(&report.figures[0].1)[0], &polylines(&report.figures[1].1)[0]);
    assert!(
        accuracy.windows(2).all(|w| w[0].1 > w[1].1) && loss.windows(2).all(|w| w[0].1 < w[1].1),
        "{accuracy:?}, {loss:?}"
    );
    for len in LENS {
        assert!(report.figures[0].1.contains(&format!(">{len}</text>")), "{len} is not labelled");
    }
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let (_dir, report) = two_models();
    for foreign in ["http", "src=", "<script", "@import", "url("] {
        assert!(!report.page.contains(foreign), "{foreign}");
    }
    for (name, svg) in &report.figures {
        let rest = svg.replace("http://www.w3.org/2000/svg", "");
        assert!(!rest.contains("http") && !rest.contains("url(") && rest.contains("prefers-color-scheme"), "{name}");
    }
    let inline = report.page.split("<svg").skip(1).map(|s| format!("<svg{}</svg>", s.split("</svg>").next().unwrap()));
    let drawn = inline.map(|svg| roxmltree::Document::parse(&svg).map(drop).unwrap()).count();
    assert!(drawn >= 7, "{drawn} figures");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let (dir, first) = two_models();
    let second = make(&[dir.path()]);
    assert!(first.page == second.page && first.figures == second.figures, "two reports of the same runs differ");
}

#[test]
fn names_and_values_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let config = CONFIG.replace("\"gpt\"]", "\"<b>&\\\"x\"]").replace("lr = 0.005", "lr = \"<script>&'\\u0001\"");
    run_dir(dir.path(), &config, &["lstm", "<b>&\"x"]);
    let report = make(&[dir.path()]);
    contains(&report.page, "&lt;b&gt;&amp;&quot;x");
    contains(&report.page, "&lt;script&gt;&amp;'");
    for raw in ["<script", "<b>&", "\u{1}"] {
        assert!(!report.page.contains(raw), "{raw:?} is on the page");
    }
    for (name, svg) in &report.figures {
        assert!(!polylines(svg).is_empty(), "{name}");
    }
}

#[test]
fn a_killed_run_is_shown_as_far_as_it_came() {
    let dir = tempfile::tempdir().unwrap();
    run_dir(dir.path(), CONFIG, &["lstm"]);
    let late = dir.path().join("gpt-seed0");
    fs::create_dir(&late).unwrap();
    fs::write(late.join("metrics.jsonl"), "{\"step\":1,\"loss\":0.7}\n{\"step\":10,\"loss\":0.6}\n{\"step\":20,\"lo")
        .unwrap();
    let report = make(&[dir.path()]);
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
    for words in
        ["line 3, cut off when the run was killed", "gpt seed 0 has not finished: recorded up to step 10 of 40"]
    {
        assert!(report.page.contains(words), "{words}");
    }
    assert_eq!(polylines(&report.figures[1].1).iter().map(Vec::len).collect::<Vec<_>>(), [5, 2]);
    // A run that finished before the common results were written.
    let result = "{\"model\":\"gpt\",\"seed\":0,\"form\":\"f\",\"device\":\"cpu\",\"params\":77,\"steps\":40,\
                  \"steps_per_s\":9,\"wall_s\":1,\"accuracy\":{\"32\":0.123}}";
    fs::write(late.join("result.json"), result).unwrap();
    let report = make(&[dir.path()]);
    contains(&report.page, "<td>77</td>");
    contains(&report.page, "0.123");
    let ends = "gpt seed 0 has results, but its metrics end at step 10 of 40";
    assert!(report.notes.len() == 2 && report.notes[1].contains(ends), "{:?}", report.notes);
    fs::remove_file(late.join("result.json")).unwrap();
    // No results yet at all, and a step that was recorded again after a restart.
    fs::remove_file(dir.path().join("results.json")).unwrap();
    fs::remove_dir_all(dir.path().join("lstm-seed1")).unwrap();
    let lines = "{\"step\":1,\"loss\":0.7}\n{\"step\":10,\"loss\":0.6}\n{\"step\":10,\"loss\":0.6}\n{\"step\":20,\"loss\":0.5}\n";
    fs::write(late.join("metrics.jsonl"), lines).unwrap();
    let report = make(&[dir.path()]);
    // The last evaluation of lstm was at its last step, so it has finished.
    contains(&report.page, "1 finished");
    contains(&report.page, "0.704");
    assert_eq!(polylines(&report.figures[1].1).iter().map(Vec::len).collect::<Vec<_>>(), [5, 3]);
}

/// Bits per byte have no end above: beyond the length of training they are the more.
#[test]
fn no_point_is_cut_off_where_figures_share_an_axis() {
    let dir = tempfile::tempdir().unwrap();
    run_dir(dir.path(), CONFIG, &["lstm", "gpt"]);
    let mut results: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("results.json")).unwrap()).unwrap();
    let bits = |step: usize| serde_json::json!({ "32": 2.0 + 1.0 / step as f64, "256": 4.0 + 1.0 / step as f64 });
    for run in results["runs"].as_array_mut().unwrap() {
        run["bits_per_byte"] = bits(40);
        let path = dir.path().join(format!("{}-seed{}/metrics.jsonl", run["model"].as_str().unwrap(), run["seed"]));
        let lines: Vec<String> = [10, 20, 30]
            .map(|step| serde_json::json!({ "step": step, "bits_per_byte": bits(step) }).to_string())
            .into();
        fs::write(&path, fs::read_to_string(&path).unwrap() + &lines.join("\n") + "\n").unwrap();
    }
    fs::write(dir.path().join("results.json"), results.to_string()).unwrap();
    let report = make(&[dir.path()]);
    let curves: Vec<_> = report.figures.iter().filter(|(name, _)| name.contains("bits-per-byte-at-")).collect();
    assert_eq!(curves.len(), 2, "{:?}", report.figures.iter().map(|f| &f.0).collect::<Vec<_>>());
    for (name, svg) in curves {
        for line in polylines(svg) {
            let heights: Vec<f64> = line.iter().map(|p| p.1).collect();
            assert!(line.len() > 2 && heights.windows(2).all(|y| y[0] < y[1]), "{name}: {heights:?}");
        }
    }
    // Less is better, and nothing is said of 1.000.
    let (_, table) = report.page.split_once("Bits per byte at each").unwrap();
    let caption = table.split_once("the best in bold.").unwrap().1.split('<').next().unwrap();
    assert_eq!(caption.trim(), "");
}

/// A result counts for the configuration that it is of, and an error of the past for nothing where the run can go on.
#[test]
fn results_of_another_configuration_and_errors_of_the_past_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let line = "--models lstm,gpt --seeds 1 --steps 2 --batch 2 --train-len 4 --eval-lens 4 --width 4 --lr 0.25 --out";
    assert!(program("parity").args(line.split(' ')).arg(&run).output().unwrap().status.success());
    let report = make(&[&run]);
    assert_eq!((report.runs, report.notes.len()), (2, 0), "{:?}", report.notes);
    // As after a damaged checkpoint, when the run has begun anew.
    let results = run.join("results.json");
    let mut all: serde_json::Value = serde_json::from_str(&fs::read_to_string(&results).unwrap()).unwrap();
    all["runs"][0]["error"] = "its checkpoint is damaged; delete it".into();
    all["runs"][0]["accuracy"] = serde_json::json!({});
    fs::write(&results, all.to_string()).unwrap();
    fs::rename(run.join("lstm-seed0/result.json"), dir.path().join("result.json")).unwrap();
    let notes = make(&[&run]).notes.join("\n");
    assert!(!notes.contains("damaged") && !notes.contains("stopped"), "{notes}");
    fs::rename(dir.path().join("result.json"), run.join("lstm-seed0/result.json")).unwrap();
    assert_eq!(make(&[&run]).notes.len(), 0, "its own result counts before that of results.json");

    let config = run.join("config.toml");
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("lr = 0.25", "lr = 0.5")).unwrap();
    let report = make(&[&run]);
    assert_eq!(report.notes.len(), 2, "a note for each run: {:?}", report.notes);
    contains(&report.notes[0], "a result of another configuration: lr is 0.25 there, and 0.5 here");
}

/// Of two records of a run the finished one counts, wherever it is found.
#[test]
fn a_finished_run_counts_before_an_unfinished_copy() {
    for unfinished in ["a", "b"] {
        let dir = tempfile::tempdir().unwrap();
        ["a", "b"].iter().for_each(|name| run_dir(&dir.path().join(name), CONFIG, &["lstm"]));
        fs::remove_file(dir.path().join(unfinished).join("results.json")).unwrap();
        let report = make(&[dir.path()]);
        assert_eq!(report.notes.len(), 2, "a note for each seed: {:?}", report.notes);
        contains(&report.notes[0], "lstm seed 0 is in");
        let finished = if unfinished == "a" { "b" } else { "a" };
        let names = [unfinished, finished].map(|name| format!("{}", dir.path().join(name).display()));
        contains(&report.notes[0], format!("{} and {}, equally configured; the latter counts", names[0], names[1]));
        contains(&report.page, "1234");
    }
}

#[test]
fn other_tasks_and_settings_are_sections_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    run_dir(&dir.path().join("a"), CONFIG, &["lstm"]);
    run_dir(&dir.path().join("deep/b"), &CONFIG.replace("0.005", "0.25"), &["lstm"]);
    run_dir(&dir.path().join("deep/c"), &CONFIG.replace("\"parity\"", "\"dyck\"\ntypes = 2\ndepth = 4"), &["gpt"]);
    // The same settings with another model and seeds are shown with the first.
    run_dir(&dir.path().join("d"), &CONFIG.replace("seeds = 2", "seeds = 5"), &["gpt"]);
    fs::create_dir(dir.path().join("e")).unwrap();
    fs::write(dir.path().join("e/config.toml"), "not = [a run").unwrap();
    let report = make(&[dir.path(), &dir.path().join("a")]);
    assert_eq!(report.page.matches("<section ").count(), 3);
    for title in
        ["parity, trained on length 32; lr 0.005<", "lr 0.25<", "dyck, 2 types, depth 4, trained on length 32<"]
    {
        assert!(report.page.contains(title), "{title}");
    }
    assert_eq!((report.notes.len(), report.runs), (1, 8), "{:?}", report.notes);
    let mut names: Vec<&String> = report.figures.iter().map(|f| &f.0).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), report.figures.len(), "two figures with one name");
}

#[test]
fn what_cannot_be_read_is_named_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, file) = (dir.path().join("empty"), dir.path().join("file"));
    fs::create_dir(&empty).unwrap();
    fs::write(&file, "x").unwrap();
    refused(&empty, &["empty", "no config.toml", "--out"]);
    refused(&file, &["file", "expected a directory"]);
    refused(&dir.path().join("nowhere"), &["nowhere"]);
    let run = dir.path().join("run");
    run_dir(&run, CONFIG, &["lstm"]);
    refused(&run.join("lstm-seed0"), &["a single run", "the directory above"]);
    fs::write(run.join("config.toml"), "steps = 3").unwrap();
    refused(&run, &["config.toml", "'models'"]);
    run_dir(&run, CONFIG, &["lstm"]);
    // Results that cannot be read are left out, and the rest is shown.
    fs::write(run.join("results.json"), "{\"runs\": 3}").unwrap();
    let report = make(&[&run]);
    assert!(
        report.runs == 2 && report.notes[0].contains("results.json: expected an object with a list 'runs'"),
        "{} runs, {:?}",
        report.runs,
        report.notes
    );
    fs::write(run.join("config.toml"), "steps = 3").unwrap();
    let begun = dir.path().join("begun");
    fs::create_dir(&begun).unwrap();
    fs::write(begun.join("config.toml"), CONFIG).unwrap();
    refused(&begun, &["nothing to report", "no run has begun"]);

    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("report.html"), "old").unwrap();
    let program = |from: &Path| {
        let output = program("report").arg(from).arg("--out").arg(&out).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = program(&run);
    assert_eq!(status, Some(2));
    assert!(said.starts_with("error: ") && said.contains("config.toml"), "{said}");
    assert_eq!(fs::read_to_string(out.join("report.html")).unwrap(), "old");
    run_dir(&run, CONFIG, &["lstm"]);
    assert_eq!(program(&run), (Some(0), String::new()));
    contains(fs::read_to_string(out.join("report.html")).unwrap(), "</html>");
    // The figures are beside the page, and no partial file is left.
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1 + 7);
}

#[test]
fn steps_and_scores_that_cannot_be_are_left_out_and_said() {
    let dir = tempfile::tempdir().unwrap();
    run_dir(dir.path(), CONFIG, &["lstm"]);
    let file = dir.path().join("lstm-seed0/metrics.jsonl");
    let good = fs::read_to_string(&file).unwrap();
    let whole = make(&[dir.path()]);
    for (line, words) in [
        (r#"{"step":1e18,"loss":0.5}"#, "line 8: step 1e+18"),
        (r#"{"step":1000000000000000000,"loss":0.5}"#, "step 1000000000000000000"),
        (r#"{"step":-5,"loss":0.5}"#, "step -5"),
        (r#"{"step":0,"loss":0.5}"#, "step 0"),
        (r#"{"step":41,"loss":0.5}"#, "step 41"),
        (r#"{"step":2.5,"loss":0.5}"#, "step 2.5"),
        (r#"{"loss":0.5}"#, "step none"),
        (r#"{"step":40,"loss":-3}"#, "loss at step 40: -3"),
        (r#"{"step":30,"accuracy":{"32":7}}"#, "accuracy at 32: 7, step 30"),
        (r#"{"step":30,"accuracy":{"32":1e30,"48":-0.5}}"#, "accuracy at 48: -0.5, step 30"),
        (r#"{"step":30,"scaled":{"32":-1.5}}"#, "scaled at 32: -1.5, step 30"),
    ] {
        fs::write(&file, format!("{good}{line}\n")).unwrap();
        let report = make(&[dir.path()]);
        let notes = report.notes.join("\n");
        assert!(notes.contains("what cannot be is left out") && notes.contains(words), "{line}: {notes}");
        let same = report.figures == whole.figures;
        assert!(same, "{line}: it is drawn");
    }
    // A model may have more steps than the others.
    let config = dir.path().join("config.toml");
    fs::write(&config, format!("{CONFIG}[per_model.lstm]\nsteps = 41\n")).unwrap();
    fs::write(&file, format!("{good}{{\"step\":41,\"loss\":0.5}}\n{{\"step\":42,\"loss\":0.5}}\n")).unwrap();
    let notes = make(&[dir.path()]).notes.join("\n");
    assert!(notes.contains("line 9: step 42") && !notes.contains("step 41,"), "{notes}");
    fs::write(&config, CONFIG).unwrap();
    fs::write(&file, format!("{good}{{\"step\":30,\"scaled\":{{\"32\":-0.25}}}}\n")).unwrap();
    assert_eq!(make(&[dir.path()]).notes, [""; 0]);
    fs::write(&file, good.lines().take(3).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let notes = make(&[dir.path()]).notes.join("\n");
    assert!(notes.contains("lstm seed 0 has results, but its metrics end at step 20 of 40"), "{notes}");
}

#[test]
fn directories_that_are_passed_over_are_said() {
    let dir = tempfile::tempdir().unwrap();
    run_dir(&dir.path().join("a"), CONFIG, &["lstm"]);
    run_dir(&dir.path().join("deep/b"), CONFIG, &["lstm"]);
    fs::remove_file(dir.path().join("deep/b/config.toml")).unwrap();
    fs::create_dir_all(dir.path().join("other/empty")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("link")).unwrap();
    let report = make(&[dir.path()]);
    let notes = report.notes.join("\n");
    for words in [
        "deep/b: holds runs, but no config.toml",
        "other/empty: has neither a config.toml nor a metrics.jsonl",
        #[cfg(unix)]
        "link: is a link; name it",
    ] {
        assert!(notes.contains(words), "no '{words}' in: {notes}");
    }
    assert_eq!((report.notes.len(), report.runs), (3, 2), "{notes}");
    (0..9).for_each(|i| fs::create_dir(dir.path().join(format!("other/{i}"))).unwrap());
    let notes = make(&[dir.path()]).notes;
    assert!(notes.len() == 6 && notes[5].contains("7 further directories"), "{notes:?}");
}

#[test]
fn axes_are_marked_at_nice_numbers() {
    let labels = |axis: &Axis| axis.ticks.iter().map(|t| t.1.clone()).collect::<Vec<_>>();
    assert_eq!(labels(&Axis::linear(0.47, 1.01, 6)), ["0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]);
    assert_eq!(labels(&Axis::linear(0.0, 40_000.0, 6)), ["0", "10,000", "20,000", "30,000", "40,000"]);
    assert_eq!(labels(&Axis::linear(-0.1, 1.0, 6)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    assert_eq!(labels(&Axis::log(2e-6, 0.9)), ["10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1"]);
    assert_eq!(labels(&Axis::log(0.04, 0.9)), ["0.05", "0.1", "0.2", "0.5"]);
    // No label touches the next, and the last stays.
    let many = Axis::linear(0.0, 100.0, 50).thinned(100.0, 4.0, |label| 6.0 * label.len() as f64);
    let kept: Vec<f64> = many.ticks.iter().filter(|t| !t.1.is_empty()).map(|t| t.0).collect();
    assert_eq!(kept.last(), Some(&100.0));
    assert!(kept.windows(2).all(|w| w[1] - w[0] >= 4.0 + 9.0) && kept.len() >= 4, "{kept:?}");
    // In between, a larger number is never placed before a smaller one.
    for axis in [Axis::linear(0.0, 7.0, 5), Axis::log(1e-5, 7.0)] {
        let at: Vec<f64> = (0..=70).map(|i| axis.at(f64::from(i) / 10.0)).collect();
        assert!(at.windows(2).all(|w| w[0] <= w[1]) && at[0] == 0.0 && at[70] == 1.0, "{at:?}");
    }
}

/// A program that ends with the test, also if that fails.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Request a page that is served on this machine. Returns the answer, head and body.
fn ask(port: u16, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // With HTTP 1.0 a page comes in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_watched_report_keeps_up_with_the_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program("report");
    command.arg(dir.path()).arg("--watch").stdout(Stdio::piped());
    let mut watch = Served(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(watch.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split('/').nth(2).unwrap();
    let port: u16 = address.split(':').nth(1).unwrap().parse().unwrap();
    // Nothing has begun yet: the page says so, and looks again.
    let early = ask(port, "/", address);
    assert!(
        early.starts_with("HTTP/1.0 200") && early.contains("no config.toml in it") && early.contains("<script>"),
        "{early}"
    );
    let stamp = || ask(port, "/stamp", address).split("\r\n\r\n").nth(1).unwrap().to_string();
    let before = stamp();
    assert_eq!(before, stamp(), "nothing has changed");
    run_dir(dir.path(), CONFIG, &["lstm", "gpt"]);
    let now = stamp();
    assert_ne!(before, now);
    let page = ask(port, "/", address);
    assert!(page.contains("trained on length 32</h2>"), "{page}");
    assert!(page.contains(&format!("now !== '{now}'")), "another stamp than {now}");
    // A client that announces more bytes than it sends, and a client that never reads, hold up no other.
    let mut stalled = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stalled, "POST / HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    let mut deaf = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(deaf, "GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    assert_eq!(now, stamp());
    // Pages of other sites are refused, whatever name they give this machine.
    let said = ask(port, "/", "evil.example:80");
    assert!(said.starts_with("HTTP/1.0 403"), "{said}");
    let said = ask(port, "/../etc/passwd", address);
    assert!(said.starts_with("HTTP/1.0 404"), "{said}");
}
