//! Time and memory per token as the sequence grows: in training, and streamed token by token. Draws three figures
//! and prints the numbers as a table; `scripts/scaling.sh` puts both into docs/.
//!
//! ```text
//! scaling DIR [LONGEST]              figures into DIR, the table to the output; LONGEST: 65536 if absent
//! scaling --data FILE [LONGEST]      training alone, in the fastest form, of the mixers that FILE lacks, as lines of FILE
//!                                    (src/book/cost.tsv, from which the pages of `tapezoo book` are made); with none there,
//!                                    about half an hour on an idle core
//! scaling --train MODEL FORM T       one point: "ms per step, bytes"
//! scaling --stream MODEL T           one line for each power of two up to T: "t, ms per token, bytes of state, bytes of memory"
//! ```
//!
//! In training every point is measured in its own process: peak resident memory (Linux's VmHWM) minus resident memory
//! before the model was made; of a stream all lengths in one, by resident memory (VmRSS). Sizes: one block of width 16,
//! batch 1, one thread; processor time.

mod cpu_time;

use cpu_time::cpu_ms;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    error::Error,
    fs,
    path::Path,
    process::Command,
};
use tapezoo::{
    autograd::Tape,
    models::{Form, Model, looks_back, names},
    report::{
        plot::{Figure, Line, Point},
        scale::{Axis, short},
    },
    stamp::{self, BUILD, processor},
    tensor::{DType, Tensor},
    train::{Trainer, config::TrainConfig, rundir::write},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SHORTEST: usize = 256;
/// Attention's recurrent form holds every prefix of its cache, T² / 2 rows.
const LONGEST_QUADRATIC: usize = 2048;
const LONGEST_CACHE: usize = 16384;
/// A line of a figure ends when a step takes this many ms.
const PATIENCE: f64 = 20_000.0;
/// It also ends when the next point may take more bytes than this.
const MOST: f64 = 12e9;
/// The time of a streamed token is the median over this many tokens.
const LAST: usize = 200;

/// Bytes of memory of this process: VmRSS, the present value, or VmHWM, the peak.
fn memory(what: &str) -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(':'));
    Ok(line.and_then(|l| l.split_whitespace().next()).ok_or("no such line in /proc/self/status")?.parse::<f64>()?
        * 1024.0)
}

fn config(model: &str, form: Option<Form>, t: usize) -> Result<TrainConfig> {
    let form = form.map_or(String::new(), |form| format!("form = \"{form}\"\n"));
    let text = format!(
        "models = [\"{model}\"]\nbatch = 1\ntrain_len = {t}\neval_lens = [{t}]\neval_batch = 1\ndevice = \"cpu\"\n{form}\
         [model]\nlayers = 1\npositions = \"none\"\n"
    );
    Ok(TrainConfig::load(None, text.parse()?)?.for_model(model)?)
}

/// The fastest of some steps, and the bytes that training takes.
fn train(model: &str, form: Form, t: usize) -> Result<()> {
    // First allocate everything that does not depend on the model's size.
    Trainer::new(&config(model, Some(form), 8)?, 0)?.step()?;
    let before = memory("VmRSS")?;
    let mut trainer = Trainer::new(&config(model, Some(form), t)?, 0)?;
    let (begin, mut best, mut steps) = (cpu_ms(), f64::INFINITY, 0);
    while steps < 3 || (cpu_ms() - begin < 300.0 && steps < 1000) {
        let start = cpu_ms();
        trainer.step()?;
        (best, steps) = (best.min(cpu_ms() - start), steps + 1);
        if best > 2000.0 {
            break;
        }
    }
    println!("{best} {}", memory("VmHWM")? - before);
    Ok(())
}

/// Streams tokens one by one and keeps only the state.
fn stream(model: &str, longest: usize) -> Result<()> {
    let before = memory("VmRSS")?;
    let model = Model::new(&config(model, None, longest)?.model, 0, DType::F32)?;
    let mut tape = Tape::default();
    let mut carried = model.zero_state(&tape, 1).tensors();
    let bytes = |state: &Vec<Vec<Tensor>>| state.iter().flatten().map(|t| 4 * t.len()).sum::<usize>();
    let mut held = bytes(&carried);
    let mut recent = [0.0; LAST];
    for t in 1..=longest {
        let start = cpu_ms();
        carried = {
            let p = model.params().bind_frozen(&tape);
            let mut state = model.state_from(&tape, t - 1, &carried);
            let token = tape.constant(&Tensor::from_vec(vec![(t * t % 7 % 2) as i32], [1, 1]));
            model.run(&p, token, &mut state, Form::Recurrent);
            state.tensors()
        };
        tape.reset();
        // A tape keeps buffers by length, and would keep one for every length of a growing cache.
        if bytes(&carried) != held {
            (held, tape) = (bytes(&carried), Tape::default());
        }
        recent[t % LAST] = cpu_ms() - start;
        if t.is_power_of_two() && t >= SHORTEST {
            let mut sorted = recent;
            sorted.sort_by(f64::total_cmp);
            println!("{t} {} {held} {}", sorted[LAST / 2], memory("VmRSS")? - before);
        }
    }
    Ok(())
}

/// Run this program with these arguments and return the numbers it prints, line by line.
fn ask(arguments: &[&str]) -> Result<Vec<Vec<f64>>> {
    let out = Command::new(env::current_exe()?).args(arguments).output()?;
    if !out.status.success() {
        return Err(format!("{}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr)).into());
    }
    let numbers = |line: &str| line.split_whitespace().map(|x| Ok(x.parse()?)).collect();
    String::from_utf8(out.stdout)?.lines().map(numbers).collect()
}

/// y over t, of one model.
type Series = BTreeMap<usize, f64>;

fn figure(name: &str, title: &str, unit: &str, x_label: &'static str, lines: &[(String, Series)]) -> Figure {
    let line = |(style, (label, series)): (usize, &(String, Series))| Line {
        label: label.clone(),
        style,
        points: series
            .iter()
            .map(|(&t, &y)| Point {
                x: t as f64,
                mean: y,
                lo: y,
                hi: y,
                about: format!("{label}, T = {t}: {} {unit}", short(y)),
            })
            .collect(),
    };
    let all = || lines.iter().flat_map(|(_, series)| series.iter());
    let (lo, hi) = all().fold((f64::INFINITY, 0f64), |(lo, hi), (_, &y)| (lo.min(y), hi.max(y)));
    let (first, last) = all().fold((usize::MAX, 0), |(lo, hi), (&t, _)| (lo.min(t), hi.max(t)));
    let ticks = (0..).map(|i| SHORTEST << (2 * i)).take_while(|t| *t <= last).map(|t| (t as f64, format!("{t}")));
    let ticks = ticks.collect();
    let x = Axis { ticks, ..Axis::log(first as f64 / 1.1, last as f64 * 1.1) };
    let y = Axis::log(lo / 1.3, hi * 1.3);
    let lines = lines.iter().enumerate().map(line).collect();
    Figure {
        name: name.into(),
        title: format!("{title}, {unit}"),
        x_label: x_label.into(),
        x,
        y,
        guess: None,
        trained: None,
        lines,
    }
}

/// The cost of a token in training, with sequences of `t` tokens.
struct Cost {
    t: usize,
    us: f64,
    bytes: f64,
}

/// From short sequences to long ones, until a step takes too long, or the next one may take more than `most` bytes: four
/// times as many, as attention does at twice the length.
fn points(model: &str, form: Form, longest: usize, most: f64) -> Result<Vec<Cost>> {
    let (mut all, mut t) = (vec![], SHORTEST);
    while t <= longest {
        let [ms, bytes] = ask(&["--train", model, &form.to_string(), &t.to_string()])?[0][..] else {
            return Err("expected two numbers of a point".into());
        };
        eprintln!("{model} {form} T={t}: {ms:.1} ms, {:.1} MB", bytes / 1e6);
        all.push(Cost { t, us: 1e3 * ms / t as f64, bytes: bytes / t as f64 });
        if ms > PATIENCE || 4.0 * bytes > most {
            break;
        }
        t *= 2;
    }
    Ok(all)
}

/// Time and bytes per token in training, for each model in the form that `pick` chooses.
fn training(longest: usize, pick: fn(&[Form]) -> Option<Form>) -> Result<[Vec<(String, Series)>; 2]> {
    let (mut times, mut bytes) = (vec![], vec![]);
    for model in names() {
        let forms = Model::new(&config(model, None, SHORTEST)?.model, 0, DType::F32)?.forms();
        let Some(form) = pick(&forms) else { continue };
        let quadratic = looks_back(model) && form == Form::Recurrent;
        let longest = if quadratic { longest.min(LONGEST_QUADRATIC) } else { longest };
        let points = points(model, form, longest, MOST)?;
        times.push((model.to_string(), points.iter().map(|point| (point.t, point.us)).collect()));
        bytes.push((model.to_string(), points.iter().map(|point| (point.t, point.bytes)).collect()));
    }
    Ok([times, bytes])
}

fn table(title: &str, lines: &[(String, Series)]) {
    let ts: Vec<usize> = lines.iter().flat_map(|l| l.1.keys().copied()).collect::<BTreeSet<_>>().into_iter().collect();
    let head: Vec<String> = ts.iter().map(usize::to_string).collect();
    println!("{title}\n\n| | {} |\n|---|{}", head.join(" | "), "---|".repeat(ts.len()));
    for (label, series) in lines {
        let cells: Vec<String> = ts.iter().map(|t| series.get(t).map_or("–".into(), |y| short(*y))).collect();
        println!("| {label} | {} |", cells.join(" | "));
    }
    println!();
}

fn draw(dir: &Path, longest: usize) -> Result<()> {
    let [time, bytes] = training(longest, |forms| forms.last().copied())?;
    let [by_definition, _] = training(longest, |forms| forms.first().copied())?;
    let (mut state, mut token, mut resident) = (vec![], vec![], vec![]);
    for model in names() {
        let longest = if looks_back(model) { longest.min(LONGEST_CACHE) } else { longest };
        let rows = ask(&["--stream", model, &longest.to_string()])?;
        let of = |i: usize, scale: f64| {
            (model.to_string(), rows.iter().map(|r| (r[0] as usize, scale * r[i])).collect::<Series>())
        };
        eprintln!("{model} streamed");
        token.push(of(1, 1e3));
        state.push(of(2, 1.0));
        resident.push(of(3, 1e-6));
    }
    let figures = [
        figure("scaling_time", "A training step, per token", "µs", "T, tokens in a sequence", &time),
        figure("scaling_memory", "Memory of a training step, per token", "bytes", "T, tokens in a sequence", &bytes),
        figure("scaling_streaming", "What is carried from token to token", "bytes", "tokens so far", &state),
    ];
    for f in &figures {
        write(&dir.join(format!("{}.svg", f.name)), f.file().as_bytes())?;
    }
    println!("`scripts/scaling.sh`; {}.\n", stamp::version().replace('\n', "; "));
    table("Training, the fastest form: µs a token.", &time);
    table("Training, the fastest form: bytes of memory a token.", &bytes);
    table("Training, the recurrent form, which records every step on the tape: µs a token.", &by_definition);
    table("Streaming: µs of one token.", &token);
    table("Streaming: bytes carried from token to token.", &state);
    table("Streaming: MB by which the process has grown.", &resident);
    Ok(())
}

/// Measures the mixers that a file of tab-separated lines lacks, and adds each as soon as it is measured.
fn data(path: &Path, longest: usize) -> Result<()> {
    for model in names() {
        let known = fs::read_to_string(path)?;
        if known.lines().any(|line| line.split('\t').next() == Some(model)) {
            continue;
        }
        let forms = Model::new(&config(model, None, SHORTEST)?.model, 0, DType::F32)?.forms();
        let Some(&form) = forms.last() else { continue };
        let line = |Cost { t, us, bytes }: Cost| {
            let (us, bytes) = (short(us), bytes.round());
            format!("{model}\t{}\t{t}\t{us}\t{bytes}\t{BUILD}\t{}\n", form.kind(), processor())
        };
        let lines: String = points(model, form, longest, 4e9)?.into_iter().map(line).collect();
        write(path, (known + &lines).as_bytes())?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--train", model, form, t] => train(model, form.parse()?, t.parse()?),
        ["--stream", model, t] => stream(model, t.parse()?),
        ["--data", file] => data(Path::new(file), 1 << 16),
        ["--data", file, longest] => data(Path::new(file), longest.parse()?),
        [dir] if !dir.starts_with('-') => draw(Path::new(dir), 1 << 16),
        [dir, longest] if !dir.starts_with('-') => draw(Path::new(dir), longest.parse()?),
        _ => Err("expected scaling DIR [LONGEST], or --data FILE [LONGEST]".into()),
    }
}
