//! The gain of the form `split` on one long sequence: the op and whole training steps beside `chunked`, by the clock.
//!
//! ```text
//! cargo run --release --example lasp [T]     prints the tables; T is 65536 if absent
//! scripts/reproduce.sh zoo-lasp              puts them into docs/zoo.md
//! ```

use std::{env, error::Error, time::Instant};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::gated_linear_attention::GatedLinearAttention,
    stamp::{BUILD, processor},
    tensor::{DType, Tensor},
    train::{Trainer, config::TrainConfig},
};

/// q, k, v, g and the cotangent of o, each [1, T, H, ..].
fn inputs(t: usize, h: usize, k: usize, gates: usize) -> [Tensor; 5] {
    let g = &mut Gen::new(1);
    let gates = g.range([1, t, h, gates], -0.1, 0.0);
    [g.normal([1, t, h, k]), g.normal([1, t, h, k]), g.normal([1, t, h, k]), gates, g.normal([1, t, h, k])]
        .map(|x| x.cast(DType::F32))
}

/// The op forwards and backwards, in so many parts.
fn run(tape: &mut Tape, x: &[Tensor; 5], parts: usize) {
    let (h, k) = (x[0].shape().at(2), x[0].shape().at(3));
    let v: [Var; 4] = std::array::from_fn(|i| tape.leaf(&x[i]));
    let s0 = tape.full([1, h, k, k], DType::F32, 0.0);
    let op = GatedLinearAttention { chunk: 32, parts, scale: 1.0 };
    let [o, _] = tape.apply_many(op, [v[0], v[1], v[2], v[3], s0]);
    tape.backward_from([(o, x[4].clone())]);
    tape.reset();
}

/// The median milliseconds of seven runs of each of two things, in turns and after one more. `spread` grows to the
/// distance of the shortest and the longest of a thing, as a share of the median.
fn ms(spread: &mut f64, mut run: impl FnMut(usize)) -> [f64; 2] {
    let mut times = [vec![], vec![]];
    for round in 0..8 {
        for (i, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            run(i);
            times.extend((round > 0).then(|| 1e3 * start.elapsed().as_secs_f64()));
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        *spread = spread.max((times[6] - times[0]) / times[3]);
        times[3]
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let t = env::args().nth(1).map_or(Ok(65_536), |t| t.parse())?;
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    println!("T = {t}, batch 1, f32, medians of seven; {}, profile {profile},", processor());
    println!("{BUILD}.\n\n| op, forward and backward | chunked, ms | split:2 |\n|---|---|---|");
    let spread = &mut 0.0;
    for (h, k) in [(1, 32), (1, 64), (4, 16), (4, 32), (4, 64)] {
        for (gates, name) in [(1, "head"), (k, "channel")] {
            let (x, mut tapes) = (inputs(t, h, k, gates), [Tape::default(), Tape::default()]);
            let [one, two] = ms(spread, |i| run(&mut tapes[i], &x, i + 1));
            println!("| {h} × {k}, a gate for each {name} | {one:.0} | {two:.0} ({:.2}×) |", one / two);
        }
    }
    println!("\n| a training step | chunked, ms | split:2 |\n|---|---|---|");
    for (name, heads, k) in [
        ("gla", 4, 16),
        ("gla", 4, 64),
        ("linear_transformer", 4, 16),
        ("linear_transformer", 4, 64),
        ("mamba2", 4, 32),
    ] {
        let width = heads * k;
        let trainer = |form: &str| {
            let config = format!(
                "models = [\"{name}\"]\nbatch = 1\ntrain_len = {t}\neval_lens = [32]\nform = \"{form}\"\n\
                 [model]\nwidth = {width}\nheads = {heads}\nhead_dim = {k}\nlayers = 2"
            );
            Trainer::new(&TrainConfig::load(None, config.parse()?)?.for_model(name)?, 0).map_err(Box::<dyn Error>::from)
        };
        let mut trainers = [trainer("chunked")?, trainer("split:2")?];
        let [one, two] = ms(spread, |i| {
            trainers[i].step().expect("finite numbers");
        });
        println!("| {name}, width {width}, heads {heads} × {k} | {one:.0} | {two:.0} ({:.2}×) |", one / two);
    }
    println!("\nThe seven times of a cell lie up to {:.0} % of their median apart.", 100.0 * *spread);
    Ok(())
}
