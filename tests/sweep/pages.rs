//! The table and the page of a sweep.

use crate::{GRID, Place, program::program, texts::contains};
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// The best point of each model, from the rows of `summary.jsonl`: the greatest mean accuracy at length 12.
fn best_points(out: &Path) -> Vec<(String, Vec<String>)> {
    let rows = fs::read_to_string(out.join("summary.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mean = |row: &Value| row["scores"]["accuracy"]["12"]["mean"].as_f64().unwrap();
    let best = |model: &str| {
        let of = rows.iter().filter(|row| row["model"] == model);
        let best = of.reduce(|a, b| if mean(b) > mean(a) { b } else { a }).unwrap();
        let values = ["lr", "model.mlp"].map(|axis| best["axes"][axis].as_str().unwrap().to_string());
        (format!("{:.3}", mean(best)), values.to_vec())
    };
    ["lstm", "gpt"].map(best).to_vec()
}

#[test]
fn a_report_shows_each_axis_two_axes_together_and_the_best_point_of_each_model() {
    let grid = GRID.replace("steps = 300", "steps = 30").replace(", mlp = 8", "") + "model.mlp = [8, 16]\n";
    let place = Place::new(&grid);
    let text = place.succeeds("grid.toml --jobs 2");
    let out = place.at("runs/grid");
    let report = tapezoo::report::report(std::slice::from_ref(&out), &indicatif::ProgressBar::hidden()).unwrap();
    let names: Vec<&str> = report.figures.iter().map(|f| f.0.as_str()).filter(|f| f.starts_with("sweep-")).collect();
    let expected =
        ["lr", "model-mlp", "lr-model-mlp-lstm", "lr-model-mlp-gpt"].map(|of| format!("sweep-grid-{of}.svg"));
    assert_eq!(names, expected);
    for (name, svg) in &report.figures {
        roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    // A line a model, a point a rate; a square a point of the grid.
    assert_eq!(report.figures[0].1.matches("<polyline").count(), 2);
    assert_eq!(report.figures[2].1.matches("class=\"s0 square\"").count(), 4);
    let best = best_points(&out);
    let block = text.split("the best point of each model, by accuracy at length 12\n").nth(1).unwrap();
    assert_eq!(block.lines().take_while(|line| !line.is_empty()).count(), best.len(), "{block}");
    for ((mean, values), line) in best.iter().zip(block.lines()) {
        assert!(values.iter().chain([mean]).all(|part| line.contains(part)), "{line}: {values:?} {mean}");
        let row: String = values.iter().map(|value| format!("<td class=\"text\">{value}</td>")).collect();
        assert!(report.page.contains(&format!("{row}<td>2</td><td>{mean}")), "{row} {mean}");
    }
    // The page still lists the points.
    contains(&report.page, "Each point and each other run directory");

    // A point alone has nothing to be compared with, and the others were not asked for.
    let report = |path: &Path| tapezoo::report::report(&[path.into()], &indicatif::ProgressBar::hidden()).unwrap();
    let one = report(&out.join("lr=0.001,model.mlp=8"));
    assert!(!one.page.contains("Sweep grid") && one.runs == 4, "{} runs", one.runs);
    // Two sweeps whose names are one for files and links.
    for name in ["a b", "a.b"] {
        place.succeeds(&format!("grid.toml --jobs 2 --out runs/{}", name.replace(' ', "~")));
    }
    fs::rename(place.at("runs/a~b"), place.at("runs/a b")).unwrap();
    let all = report(&place.at("runs"));
    let names: BTreeSet<&str> = all.figures.iter().map(|f| f.0.as_str()).collect();
    assert_eq!(names.len(), all.figures.len());
    for id in ["sweep-a-b", "sweep-a-b-2", "sweep-grid"] {
        assert_eq!(all.page.matches(&format!("<section id=\"{id}\"")).count(), 1, "{id}");
    }
}

/// Brackets have scores that bits do not have.
#[test]
fn a_task_without_a_score_has_no_rows_in_its_table() {
    let grid = GRID.replace("steps = 300", "steps = 2").replace("lr = [0.001, 1e-2]", "task.name = ['parity', 'dyck']");
    let place = Place::new(&grid);
    let table = place.succeeds("grid.toml --out runs");
    let blocks: Vec<&str> = table.split("\n\n").collect();
    let rows = |score: &str| blocks.iter().find(|block| block.starts_with(score)).map(|b| b.matches("parity").count());
    assert_eq!((rows("accuracy"), rows("precision"), rows("recall")), (Some(2), Some(0), Some(0)), "{table}");
}

/// A model has one colour on a page: over an axis of a sweep, and in each of its points.
#[test]
fn a_model_has_one_style_on_the_page_of_a_sweep() {
    let place = Place::new(&GRID.replace("['lstm', 'gpt']", "['gpt', 'lstm']").replace("steps = 300", "steps = 3"));
    place.succeeds("grid.toml --out runs");
    let made = Command::new(program("report").get_program())
        .args(program("report").get_args())
        .args(["runs", "--out", "page"])
        .current_dir(place.0.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = fs::read_to_string(place.at("page/report.html")).unwrap();
    for model in ["gpt", "lstm"] {
        let styles: BTreeSet<&str> = page
            .split("<input class=\"show ")
            .skip(1)
            .filter(|part| part.split("</label>").next().unwrap().ends_with(&format!(" {model}")))
            .map(|part| part.split('"').next().unwrap())
            .collect();
        assert_eq!(styles.len(), 1, "{model}: {styles:?}");
    }
}
