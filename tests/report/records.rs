//! What a report takes from files that were cut off, that contradict each other, or that are none.

use super::{CONFIG, make, polylines, refused, run_dir};
use crate::{program::program, texts::contains};
use std::{fs, path::Path};

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
