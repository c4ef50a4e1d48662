//! The exercises: each has what it needs, fails as it is shipped, passes with its solution, and notices a mistake.
//!
//! Cargo compiles the exercises for the last test only, which takes minutes:
//! `cargo test --test exercises -- --ignored --nocapture`, of one with `TAPEZOO_EXERCISE=delta_step`.

#![allow(clippy::unwrap_used)]

mod program;

use program::Place;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tapezoo::exercises::{EXERCISES, Exercise};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Columns on a terminal: marks above a letter take none.
fn width(line: &str) -> usize {
    line.chars().filter(|c| !('\u{300}'..'\u{370}').contains(c)).count()
}

#[test]
fn each_has_a_file_a_hole_hints_and_a_solution_that_is_there() {
    let manifest: toml::Table = text("exercises/Cargo.toml").parse().unwrap();
    let programs: Vec<&str> =
        manifest["bin"].as_array().unwrap().iter().map(|bin| bin["name"].as_str().unwrap()).collect();
    assert_eq!(programs, EXERCISES.each_ref().map(|exercise| exercise.name), "exercises/Cargo.toml");
    for exercise in &EXERCISES {
        let Exercise { name, title, hints, solution } = exercise;
        let page = text(&format!("exercises/{name}.rs"));
        let first = page.lines().next().unwrap();
        assert!(first.starts_with(&format!("//! {title}")), "{name}: {first}");
        let file = exercise.file(root());
        let holes = text(&file).matches("todo!").count();
        assert_eq!(holes, 1, "{file}: holes; where you have filled it, `git restore exercises`");
        assert!(exercise.is_open(root()).unwrap());
        assert!(hints.len() >= 2, "{name}: hints");
        assert!(!solution.is_empty(), "{name}: no solution");
        for place in *solution {
            let (_, lines) = place.lines(root()).unwrap();
            assert!(lines.len() < 25, "{name}: {} lines of {}", lines.len(), place.file);
        }
        let wide = page.lines().filter(|line| line.starts_with("//!")).find(|line| width(line) > 80);
        assert_eq!(wide, None, "{name}");
    }
    for entry in fs::read_dir(root().join("exercises")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let of = name.split('.').next().unwrap();
        let known = EXERCISES.iter().any(|exercise| exercise.name == of);
        assert!(known || ["check.rs", "Cargo.toml"].contains(&name.as_str()), "exercises/{name} is in no list");
    }
}

/// `tapezoo exercise` with these words, in the repository: status, standard output, standard error.
fn exercise(words: &str) -> (Option<i32>, String, String) {
    program::outcome(program::program("exercise").args(words.split_whitespace()).current_dir(root()).output().unwrap())
}

#[test]
fn the_list_says_what_is_next() {
    let (status, list, _) = exercise("");
    assert_eq!(status, Some(0));
    for (line, exercise) in list.lines().zip(&EXERCISES) {
        let state = if exercise.name == EXERCISES[0].name { "next" } else { "to do" };
        assert!([state, exercise.name, exercise.title].iter().all(|word| line.contains(word)), "{line}");
    }
    assert!(list.contains("0 of 22 done. Next: edit exercises/derivative.rs"), "{list}");
}

#[test]
fn what_it_prints_fits_80_columns() {
    let mut all = exercise("").1 + &exercise("nonsense").2;
    for Exercise { name, hints, .. } in &EXERCISES {
        for n in 1..=hints.len() {
            all += &exercise(&format!("{name} --hint {n}")).1;
        }
    }
    let wide: Vec<&str> = all.lines().filter(|line| width(line) > 80).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn hints_come_one_at_a_time_and_a_solution_is_the_project_s_own() {
    let (status, first, _) = exercise("delta_step --hint");
    assert!(status == Some(0) && first.starts_with("Hint 1 of 3: ") && first.contains("--hint 2"), "{first}");
    let last = exercise("delta_step --hint 3").1;
    assert!(last.contains("--solution") && !last.contains("--hint"), "{last}");
    let (status, _, said) = exercise("delta_step --hint 4");
    assert!(status == Some(2) && said.contains("--hint 4: delta_step has hints 1 to 3"), "{said}");
    let solution = exercise("exercises/delta_step.rs --solution").1;
    let line = text("src/models/delta_net.rs").lines().position(|line| line.contains("let k = k.named")).unwrap() + 1;
    assert!(solution.starts_with(&format!("src/models/delta_net.rs:{line}\n")), "{solution}");
    assert!(solution.contains("let error = v.named"), "{solution}");
}

#[test]
fn what_is_not_there_is_said() {
    let (status, _, said) = exercise("delta_stp");
    assert!(status == Some(2) && said.contains("did you mean 'delta_step'"), "{said}");
    let elsewhere = Place::new();
    elsewhere.refuses("exercise", &["there are no exercises here", "clone"]);
    elsewhere.refuses("exercise delta_step", &["there are no exercises here"]);
}

/// The texts to replace in a file and their replacements, where the lines of the project do not fill its hole as they
/// are.
const FILLED: &[(&str, &[(&str, &str)])] = &[
    ("derivative", &[("", "sigmoid(x) + x * sigmoid(x) * sigmoid(-x)")]),
    (
        "cross_entropy",
        &[(
            "",
            "let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
             let e: Vec<f64> = logits.iter().map(|x| (x - top).exp()).collect();
             let sum: f64 = e.iter().sum();
             e.iter().enumerate().map(|(j, e)| e / sum - if j == target { 1.0 } else { 0.0 }).collect()",
        )],
    ),
    ("counter", &[("", "match token { '1' => (1.0, 1.0), 'r' => (0.0, 0.0), _ => (1.0, 0.0) }")]),
    (
        "linear_attention_step",
        &[(
            "",
            "let (s, z) = (s + outer(k, v), z + k);
             (recall(s, q) / ((q * z).sum_axis(2, true) + eps), [s, z])",
        )],
    ),
    (
        "delta_backward",
        &[(
            "",
            "let ds = add(ds, 1.0, &x.q, d_o);
             let de = recall(&ds, &x.k);
             let dv: Vec<f64> = de.iter().map(|de| x.beta * de).collect();
             let dk = times(&ds, &e).iter().zip(times(&x.s, &dv)).map(|(a, b)| a - b).collect();
             Gradients { dq: times(&after, d_o), dk, dbeta: dot(&de, &delta), ds: add(&ds, -1.0, &x.k, &dv), dv }",
        )],
    ),
    ("chunked_linear_attention", &[("", "(q.matmul(s) + q.matmul_t(k).tril_matmul(v), s + k.t_matmul(v))")]),
    (
        "lstm_backward",
        &[(
            "",
            "let slope = |x: f64| sigmoid(x) * sigmoid(-x);
             let dc = dc + dh * o / c.cosh().powi(2);
             let dz = [dc * g * slope(z[0]), dc * before * slope(z[1]), dc * i / z[2].cosh().powi(2)];
             ([dz[0], dz[1], dz[2], dh * c.tanh() * slope(z[3])], dc * f)",
        )],
    ),
    ("parity", &[("", "([1.0, 0.0], 0.0, 2.0 * f64::from(bit))")]),
    ("modulo_three", &[("", "[[1.0, 0.0], [0.5, 0.75f64.sqrt()]]")]),
    (
        "online_softmax",
        &[(
            "",
            "let now = scores.iter().copied().fold(state.m, f64::max);
             if now == f64::NEG_INFINITY { return; }
             let fade = (state.m - now).exp();
             state.m = now;
             state.l *= fade;
             state.y.iter_mut().for_each(|y| *y *= fade);
             for (x, v) in scores.iter().zip(values) {
                 let weight = (x - now).exp();
                 state.l += weight;
                 state.y.iter_mut().zip(v).for_each(|(y, v)| *y += weight * v);
             }",
        )],
    ),
    (
        "causal_convolution",
        &[(
            "",
            "let all = Var::concat(&[window, x], 1);
             let tap = |j: usize| w.narrow(1, j, 1).reshape([d]) * all.narrow(1, j, t);
             ((1..taps).fold(tap(0), |y, j| y + tap(j)), all.narrow(1, t, taps - 1))",
        )],
    ),
    (
        "barrier",
        &[
            ("todo!", ""),
            ("scratch[warp] = v;", "scratch[warp] = v; __syncthreads(); // not the last __syncthreads()"),
            ("return v;", "__syncthreads(); return v;"),
        ],
    ),
    ("coalesced", &[("todo!", ""), ("threadIdx.x * each + j", "j * blockDim.x + threadIdx.x")]),
];

/// Mistakes that a reader may make: the exercise, the right text in its filled file, the wrong one, and the check that
/// notices.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("derivative", "x * sigmoid(x) * sigmoid(-x)", "x * sigmoid(-x)", "it is what finite differences say"),
    ("cross_entropy", "(x - top).exp()", "x.exp()", "logits of 1000"),
    ("counter", "_ => (1.0, 0.0)", "_ => (0.0, 0.0)", "it counts"),
    ("linear_attention_step", "((q * z)", "((k * z)", "one token"),
    ("delta_step", "- s.t_matmul(k)", "- 0.0 * s.t_matmul(k)", "with β = 1"),
    ("delta_backward", "|(a, b)| a - b", "|(a, b)| *a", "nothing read"),
    (
        "delta_parallel",
        "bk.matmul_t(k).unit_lower_solve(beta * v - bk.matmul(s))",
        "beta * v - bk.matmul(s)",
        "two steps",
    ),
    ("chunked_linear_attention", "q.matmul_t(k).tril_matmul(v)", "q.matmul_t(k).matmul(v)", "a chunk of several steps"),
    (
        "gated_chunk",
        "let decay = g.segsum().exp();",
        "let sums = g.cumsum(2); let decay = (column(sums) - sums.reshape([b, h, 1, t])).exp();",
        "gates of −",
    ),
    ("lstm_step", "h = o.sigmoid() * c.tanh();", "h = o.sigmoid() * c;", "one step"),
    ("lstm_backward", "sigmoid(x) * sigmoid(-x)", "sigmoid(x) * (1.0 - sigmoid(x))", "a gate that is nearly 1"),
    ("slstm_stabiliser", "(n + (LEAST - from).exp())", "n", "an input gate of −∞"),
    (
        "mlstm_normaliser",
        "let positive",
        "let by = maximum(&[den, -den, (-m).exp()]) + eps; return (num / by, by); let positive",
        "m = −800",
    ),
    ("mlstm_normaliser", "by / half / half", "by", "the divisor is that"),
    (
        "complex_scan",
        "(hr, hi) = (lr * hr - li * hi + xr, lr * hi + li * hr + xi);",
        "hr = lr * hr - li * hi + xr; hi = lr * hi + li * hr + xi;",
        "i² = −1",
    ),
    ("selective_scan", " - (self.s - 1.0)", "", "s = 2"),
    ("parallel_scan", "late(a) * early(b) + late(b)", "early(a) * late(b) + early(b)", "two steps"),
    ("parallel_scan", "s *= 2;", "s *= 2; (0..steps).for_each(|_| a = a * 1.0);", "it takes rounds"),
    ("parity", "2.0 * f64::from(bit)", "f64::from(bit)", "a single one"),
    ("parity", "2.0 * f64::from(bit)", "1.99 * f64::from(bit)", "100,000 random bits"),
    ("modulo_three", "[0.5, 0.75f64.sqrt()]", "[0.0, 1.0]", "three ones"),
    ("online_softmax", "if now == f64::NEG_INFINITY { return; }", "", "a block of hidden scores"),
    (
        "causal_convolution",
        "all.narrow(1, t, taps - 1)",
        "x.narrow(1, t - t.min(taps - 1), t.min(taps - 1))",
        "in pieces",
    ),
    ("barrier", "__syncthreads(); return v;", "return v;", "several rows"),
    ("barrier", "sum = sum_of_block", "__syncthreads(); sum = sum_of_block", "barriers are needed"),
    ("coalesced", "j * blockDim.x + threadIdx.x", "threadIdx.x * each + j", "a warp's load"),
];

/// A file with its hole filled.
fn filled(exercise: &Exercise, text: &str) -> String {
    let hole = text.lines().find(|line| line.contains("todo!")).unwrap();
    match FILLED.iter().find(|filled| filled.0 == exercise.name) {
        Some((_, pairs)) => pairs.iter().fold(text.to_string(), |text, (from, to)| {
            let from = if from.is_empty() { hole } else { from };
            assert!(text.contains(from), "{}: no '{from}'", exercise.name);
            text.replacen(from, to, 1)
        }),
        None => text.replacen(hole, &exercise.solution[0].lines(root()).unwrap().1.join("\n"), 1),
    }
}

/// Compiles the library of the exercises; the flags for rustc to find it.
fn library() -> Vec<String> {
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(root()).args(["build", "--package", "exercises", "--lib", "--message-format=json"]);
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut flags = vec![];
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(|file| file.as_str());
        for file in files.filter(|file| ["exercises", "tapezoo"].contains(&name) && file.ends_with(".rlib")) {
            let deps = Path::new(file).parent().unwrap().join("deps");
            let deps = if deps.is_dir() { deps } else { PathBuf::from(Path::new(file).parent().unwrap()) };
            flags.extend(["--extern".into(), format!("{name}={file}"), "-L".into()]);
            flags.push(format!("dependency={}", deps.display()));
        }
    }
    flags
}

/// Compiles and runs an exercise of these files: a name and a text each, the program first.
fn run(files: &[(String, String)], library: &[String]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.current_dir(dir.path()).args(["--edition=2024", "--crate-name=exercise", "-o", "exercise"]).args(library);
    let compiled = rustc.arg(&files[0].0).output().unwrap();
    assert!(compiled.status.success(), "{}: {}", files[0].0, String::from_utf8_lossy(&compiled.stderr));
    assert!(compiled.stderr.is_empty(), "{}: {}", files[0].0, String::from_utf8_lossy(&compiled.stderr));
    Command::new(dir.path().join("exercise")).output().unwrap()
}

#[test]
#[ignore = "compiles every exercise three times: cargo test --test exercises -- --ignored"]
fn each_fails_as_shipped_passes_with_its_solution_and_notices_a_mistake() {
    let (library, only) = (library(), env::var("TAPEZOO_EXERCISE").ok());
    let mut wrong = vec![];
    for exercise in EXERCISES.iter().filter(|exercise| only.as_ref().is_none_or(|only| only == exercise.name)) {
        let name = exercise.name;
        let edited = exercise.file(root()).replace("exercises/", "");
        let files: Vec<String> = ["rs", "cu"].map(|ending| format!("{name}.{ending}")).into();
        let files = files.into_iter().filter(|file| root().join("exercises").join(file).is_file());
        let shipped: Vec<(String, String)> =
            files.map(|file| (file.clone(), text(&format!("exercises/{file}")))).collect();
        let changed = |change: &dyn Fn(&str) -> String| -> Vec<(String, String)> {
            let text = |file: &String, text: &String| if *file == edited { change(text) } else { text.clone() };
            shipped.iter().map(|(file, old)| (file.clone(), text(file, old))).collect()
        };
        let solved = changed(&|text| filled(exercise, text));
        let mistaken = |from: &str, to: &str| {
            changed(&|text| {
                let text = filled(exercise, text);
                assert!(text.contains(from), "{name}: no '{from}' in its solution");
                text.replacen(from, to, 1)
            })
        };
        let mistakes: Vec<_> = MISTAKES.iter().filter(|mistake| mistake.0 == name).collect();
        assert!(!mistakes.is_empty(), "{name}: no mistake is tried");
        let open = if edited.ends_with(".cu") { "" } else { "the hole is still open" };
        let mut states = vec![("as shipped", shipped.clone(), Some(open.to_string())), ("solved", solved, None)];
        states.extend(
            mistakes.iter().map(|(_, from, to, notices)| (*to, mistaken(from, to), Some(format!("FAIL  {notices}")))),
        );
        for (state, files, fails) in states {
            let output = run(&files, &library);
            let said = String::from_utf8_lossy(&output.stdout);
            println!("== {name}, {state}\n{said}");
            let right = match fails {
                None => output.status.code() == Some(0) && !said.contains("FAIL"),
                Some(why) => output.status.code() == Some(1) && said.contains("FAIL") && said.contains(&why),
            };
            if !right || said.lines().any(|line| width(line) > 80) {
                wrong.push(format!("{name}, {state}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The exercise as a reader sees it.
    let (status, said, _) = self::exercise("derivative");
    assert!(status == Some(1) && said.contains("the hole is still open") && said.contains("--hint"), "{said}");
}
