//! The cores, at sizes that are usual for comparing such kernels.

use super::{
    clock::{Clock, time},
    inputs::Inputs,
    ops::{Run, Sizes, core},
    row,
};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    cuda::guarded,
    error::{Error, Result},
    tensor::{DType, Device, Shape, Tensor},
};

/// All names; the cores are compared with a copy and a matrix product.
pub const NAMES: [&str; 11] = [
    "copy",
    "matmul",
    "lstm",
    "slstm",
    "quasi_lstm",
    "lru",
    "mamba",
    "linear_transformer",
    "mlstm",
    "delta_net",
    "attention",
];

/// Sizes of the cores, the copy and the matrix product.
struct Scale {
    cores: Sizes,
    /// Rows and columns of the matrix product.
    matmul: usize,
    /// Elements of the copy.
    copy: usize,
}

const CHUNK: usize = 64;
const FULL: Scale = Scale {
    cores: Sizes { b: 8, t: 4096, h: 16, k: 64, n: 16, recurrent: [64, 512, 512], chunk: CHUNK, block: 1 << 20 },
    matmul: 8192,
    copy: 1 << 28,
};
const TINY: Scale = Scale {
    cores: Sizes { b: 2, t: 70, h: 2, k: 16, n: 4, recurrent: [3, 5, 32], chunk: CHUNK, block: 1 << 7 },
    matmul: 64,
    copy: 1 << 12,
};

/// The operations of a core's matrix products, forward and backward, if these are most of it.
fn flops(name: &str, s: &Sizes) -> Option<[f64; 2]> {
    let ([b, t, d], tokens) = (s.recurrent, (s.b * s.h * s.t) as f64);
    let steps = |inner: usize| [1.0, 2.0].map(|n| n * (8 * b * t * d * inner) as f64);
    // The products of a chunk are [C, K] by [K, C], [C, C] by [C, K], [C, K] by [K, K]: alike where C = K.
    let chunks = |n: [f64; 2]| n.map(|n| n * tokens * (s.k * (s.chunk + s.k)) as f64);
    match name {
        "lstm" => Some(steps(d)),
        "slstm" => Some(steps(s.k)),
        "linear_transformer" | "mlstm" => Some(chunks([4.0, 11.0])),
        "delta_net" => Some(chunks([9.0, 26.0])),
        // Half of two products [T, K] by [K, T]; of five backward.
        "attention" => Some([2.0, 5.0].map(|n| n * tokens * (s.t * s.k) as f64)),
        _ => None,
    }
}

/// The device's bytes per second in a copy, and operations per second in a matrix product.
#[derive(Clone, Copy)]
struct Best {
    bytes: f64,
    flops: f64,
}

/// Seconds of `run`, forward as in training: it saves values for the backward pass.
fn forward(tape: &mut Tape, x: &[Tensor], run: &Run, clock: Clock) -> f64 {
    let gpu = tape.cx().gpu();
    time(gpu.as_ref(), clock, || {
        let x: Vec<_> = x.iter().map(|x| tape.constant(x)).collect();
        run(&x);
        tape.reset();
    })
}

/// Seconds of its backward pass, and the bytes of its outputs.
fn backward(g: &mut Inputs<'_>, x: &[Tensor], run: &Run, clock: Clock) -> (f64, f64) {
    let (tape, gpu) = (g.tape, g.tape.cx().gpu());
    let x: Vec<_> = x.iter().map(|x| tape.leaf(x)).collect();
    let y = run(&x);
    let dy: Vec<_> = y.iter().map(|y| g.normal(y.shape(), 1.0)).collect();
    let from = |ends: &[Var<'_>]| {
        time(gpu.as_ref(), clock, || tape.backward_from(ends.iter().copied().zip(dy.iter().cloned())))
    };
    // The tape copies cotangents that are given to it; in a model the op above computes them in place.
    let ends: Vec<_> = dy.iter().map(|dy| tape.leaf(dy)).collect();
    let (all, copies) = (from(&y), from(&ends));
    tape.backward_from(y.iter().copied().zip(dy.iter().cloned()));
    let finite = |t: Option<Tensor>| t.is_none_or(|t| t.all_finite());
    let fine = y.iter().all(|y| finite(Some(y.value()))) && x.iter().all(|x| finite(x.grad()));
    assert!(fine, "a value or a gradient is not finite: these times are worth nothing");
    ((all - copies).max(0.0), bytes(&dy))
}

fn bytes(x: &[Tensor]) -> f64 {
    x.iter().map(|x| x.len() * x.dtype().bytes()).sum::<usize>() as f64
}

/// Time a copy and a matrix product, print them if asked for, and return the rates.
fn best(tape: &mut Tape, dtype: DType, sizes: &Scale, clock: Clock, asked: &[&str]) -> Best {
    let room = |tape: &Tape| tape.cx().pool().get(DType::F32, Shape::new(&[sizes.copy]));
    let (mut y, mut x) = (room(tape), room(tape));
    x.fill(1.5);
    let copy = time(tape.cx().gpu().as_ref(), clock, || y.assign(&x));
    let n = sizes.matmul;
    let mut g = Inputs { tape, dtype, random: Gen::new(0), block: sizes.cores.block };
    let ab = [(); 2].map(|()| g.normal([n, n], 1.0));
    tape.reset();
    let matmul: Run = Box::new(|x| vec![x[0].matmul(x[1])]);
    let product = forward(tape, &ab, &matmul, clock);
    let best = Best { bytes: 2.0 * bytes(&[y]) / copy, flops: 2.0 * (n * n * n) as f64 / product };
    if asked.contains(&"copy") && dtype == DType::F32 {
        row("copy", copy, &format!("{:.1} GB/s", best.bytes * 1e-9));
    }
    if asked.contains(&"matmul") {
        row(&format!("matmul {dtype}"), product, &format!("{:.1} TFLOP/s", best.flops * 1e-12));
    }
    best
}

/// The bytes and operations needed at least, per second, and as a share of the device's rates.
fn against(best: Best, seconds: f64, bytes: f64, flops: Option<f64>) -> String {
    let mut text =
        format!("{:.1} GB/s, {:.0}% of a copy", bytes / seconds * 1e-9, 100.0 * bytes / seconds / best.bytes);
    if let Some(flops) = flops {
        let rate = flops / seconds;
        text += &format!("; {:.1} TFLOP/s, {:.0}% of a product", rate * 1e-12, 100.0 * rate / best.flops);
    }
    text
}

/// Print the two rows of a core.
fn time_core(tape: &mut Tape, name: &str, dtype: DType, sizes: &Sizes, best: Best, clock: Clock) {
    let core = core(name, &mut Inputs { tape, dtype, random: Gen::new(0), block: sizes.block }, sizes);
    tape.reset();
    let forward = forward(tape, &core.x, &core.run, clock);
    let (backward, out) =
        backward(&mut Inputs { tape, dtype, random: Gen::new(1), block: sizes.block }, &core.x, &core.run, clock);
    tape.reset();
    // Forward reads x and writes y; backward reads x and dy and writes dx.
    for (i, (pass, took, moved)) in
        [("forward", forward, bytes(&core.x) + out), ("backward", backward, 2.0 * bytes(&core.x) + out)]
            .iter()
            .enumerate()
    {
        let notes = against(best, *took, *moved, flops(name, sizes).map(|flops| flops[i]));
        row(&format!("{name} {dtype} {pass}"), *took, &notes);
    }
}

/// Time these cores and print their rows.
pub fn time_all(names: &[&str], device: Device, dtypes: &[DType], tiny: bool, clock: Clock) -> Result<()> {
    let sizes = if tiny { TINY } else { FULL };
    for &dtype in dtypes {
        let mut tape = Tape::open(device).map_err(Error::Device)?;
        guarded(tape.cx().gpu(), || {
            let best = best(&mut tape, dtype, &sizes, clock, names);
            let cores = names.iter().filter(|name| !["copy", "matmul"].contains(name));
            cores.for_each(|name| time_core(&mut tape, name, dtype, &sizes.cores, best, clock));
        })?;
    }
    Ok(())
}
