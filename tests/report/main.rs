//! The report: synthetic run directories, and their page and figures.

#![allow(clippy::unwrap_used)]

#[path = "../program/mod.rs"]
mod program;
mod records;
#[path = "../texts/mod.rs"]
mod texts;
mod watched;

use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
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
fn axes_are_marked_at_nice_numbers() {
    let labels = |axis: &Axis| axis.ticks.iter().map(|t| t.1.clone()).collect::<Vec<_>>();
    assert_eq!(labels(&Axis::linear(0.47, 1.01, 6)), ["0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]);
    assert_eq!(labels(&Axis::linear(0.0, 40_000.0, 6)), ["0", "10,000", "20,000", "30,000", "40,000"]);
    assert_eq!(labels(&Axis::linear(-0.1, 1.0, 6)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    assert_eq!(labels(&Axis::log(2e-6, 0.9)), ["10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1"]);
    assert_eq!(labels(&Axis::log(0.04, 0.9)), ["0.05", "0.1", "0.2", "0.5"]);
    assert_eq!(labels(&Axis::log(1.2, 3.5)), ["1.5", "2", "3"]);
    // One number alone says nothing of the scale.
    for i in 0..100 {
        let lo = 10f64.powf(f64::from(i) / 25.0 - 2.0);
        assert!(Axis::log(lo, lo * 2.25).ticks.len() >= 2, "from {lo}");
    }
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
