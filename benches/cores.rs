//! The cores of nine mixers (the ops in which they spend most time) alone: forward, and with the backward pass.
//!
//! Batch 32: (a) 4 heads of 4, T = 32 and 256; (b) 4 heads of 32, T = 256. Cores without heads have as many channels as all
//! heads together.
//! `cargo bench --bench cores` runs all, `-- b/T256/mamba` one.

#[path = "../examples/timing/inputs.rs"]
mod inputs;
#[path = "../examples/timing/ops.rs"]
mod ops;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use inputs::Inputs;
use ops::{Sizes, core};
use std::time::Duration;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::Form,
    tensor::{DType, Tensor},
};

const NAMES: [&str; 9] =
    ["lstm", "slstm", "quasi_lstm", "lru", "mamba", "linear_transformer", "mlstm", "delta_net", "attention"];

/// Batch 32, H heads of width K, N states of Mamba, chunk sizes as in the models on a CPU.
fn sizes(name: &str, t: usize, (h, k, n): (usize, usize, usize)) -> Sizes {
    let chunk = if ["quasi_lstm", "lru"].contains(&name) { 256 } else { Form::CHUNK };
    Sizes { b: 32, t, h, k, n, recurrent: [32, t, h * k], chunk, block: 1 << 20 }
}

fn cores(c: &mut Criterion) {
    for (size, t, heads) in [("a", 32, (4, 4, 8)), ("a", 256, (4, 4, 8)), ("b", 256, (4, 32, 16))] {
        let mut group = c.benchmark_group(format!("{size}/T{t}"));
        group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(10);
        for name in NAMES {
            let sizes = sizes(name, t, heads);
            let mut tape = Tape::default();
            let inputs = |seed| Inputs { tape: &tape, dtype: DType::F32, random: Gen::new(seed), block: sizes.block };
            let core = core(name, &mut inputs(0), &sizes);
            let shapes: Vec<_> = {
                let x: Vec<Var<'_>> = core.x.iter().map(|x| tape.constant(x)).collect();
                (core.run)(&x).iter().map(|y| y.shape()).collect()
            };
            let dy: Vec<Tensor> = shapes.iter().map(|&shape| inputs(1).normal(shape, 1.0)).collect();
            group.bench_function(BenchmarkId::new(name, "forward"), |b| {
                b.iter(|| {
                    tape.reset();
                    let x: Vec<Var<'_>> = core.x.iter().map(|x| tape.constant(x)).collect();
                    (core.run)(&x);
                });
            });
            group.bench_function(BenchmarkId::new(name, "both ways"), |b| {
                b.iter(|| {
                    tape.reset();
                    let x: Vec<Var<'_>> = core.x.iter().map(|x| tape.leaf(x)).collect();
                    let y = (core.run)(&x);
                    tape.backward_from(y.into_iter().zip(dy.iter().cloned()));
                });
            });
        }
    }
}

criterion_group!(benches, cores);
criterion_main!(benches);
