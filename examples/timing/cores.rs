//! The cores, at the sizes that kernels of this kind are usually compared at.

use super::{
    clock::{Clock, time},
    inputs::Inputs,
    row,
};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    cuda::guarded,
    error::{Error, Result},
    ops::{
        attention::causal_attention,
        delta::delta_rule,
        linear_attn::linear_attention,
        lstm::lstm_sequence,
        mlstm::{Memory, mlstm},
        quasi_lstm::quasi_lstm,
        scan::lru_scan_joined,
        selective::selective_scan,
        slstm::slstm_sequence,
    },
    tensor::{DType, Device, Shape, Tensor},
};

/// All that can be asked for; a copy and a matrix product are what the others are compared with.
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

/// Steps of a chunk, where a core has chunks.
const CHUNK: usize = 64;

struct Sizes {
    /// B, T, H, K = V of everything with heads; D = H K of the others.
    b: usize,
    t: usize,
    h: usize,
    k: usize,
    /// N of Mamba.
    n: usize,
    /// B, T, D of the recurrences that see their own output.
    recurrent: [usize; 3],
    /// Rows and columns of the matrix product.
    matmul: usize,
    /// Numbers of the copy.
    copy: usize,
    /// Random numbers that are drawn for a tensor, and then repeated.
    block: usize,
}

const FULL: Sizes = Sizes {
    b: 8,
    t: 4096,
    h: 16,
    k: 64,
    n: 16,
    recurrent: [64, 512, 512],
    matmul: 8192,
    copy: 1 << 28,
    block: 1 << 20,
};
const TINY: Sizes =
    Sizes { b: 2, t: 70, h: 2, k: 16, n: 4, recurrent: [3, 5, 32], matmul: 64, copy: 1 << 12, block: 1 << 7 };

/// An op with inputs for it.
struct Core {
    x: Vec<Tensor>,
    /// The outputs that a model goes on with.
    run: Run,
    /// The operations of its matrix products, forward and backward.
    flops: Option<[f64; 2]>,
}

/// 1/√K of q [B, T, H, K].
fn scale(q: Var<'_>) -> f64 {
    (q.shape().last() as f64).powf(-0.5)
}

fn core(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    match name {
        "lstm" | "slstm" => recurrent(name, g, s),
        "quasi_lstm" | "lru" | "mamba" => scans(name, g, s),
        _ => memories(name, g, s),
    }
}

/// The state is an input of the gates: lstm and slstm.
fn recurrent(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    let [b, t, d] = s.recurrent;
    let x = g.normal([b, t, 4 * d], 1.0);
    let weight = |n: usize| (n as f64).powf(-0.5);
    let products = |inner: usize| (8 * b * t * d * inner) as f64;
    let flops = |inner: usize| Some([products(inner), 2.0 * products(inner)]);
    match name {
        "lstm" => Core {
            x: vec![x, g.normal([4 * d, d], weight(d)), g.zeros([b, d]), g.zeros([b, d])],
            run: |x| vec![lstm_sequence(x[0], x[1], x[2], x[3]).0],
            flops: flops(d),
        },
        _ => {
            let r = g.normal([4, d / s.k, s.k, s.k], weight(s.k));
            let state = (0..5).map(|_| g.zeros([b, d]));
            Core {
                x: [x, r].into_iter().chain(state).collect(),
                run: |x| vec![slstm_sequence(x[0], x[1], [x[2], x[3], x[4], x[5], x[6]]).0],
                flops: flops(s.k),
            }
        }
    }
}

/// Linear in the state, a number a channel: quasi_lstm, lru, and mamba with N.
fn scans(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    let (b, t, d, n) = (s.b, s.t, s.h * s.k, s.n);
    match name {
        "quasi_lstm" => Core {
            x: vec![g.normal([b, t, 4 * d], 1.0), g.zeros([b, d])],
            run: |x| vec![quasi_lstm(x[0], x[1], 1.0, CHUNK).0],
            flops: None,
        },
        "lru" => {
            // |λ| = 0.99
            let lambda = [f64::cos, f64::sin].map(|part| {
                let mut i = 0.0;
                g.in_f32(|g| g.draw([d], |_| (i += 1.0, 0.99 * part(i)).1))
            });
            let rest = [g.normal([b, t, 2 * d], 1.0), g.zeros([b, d]), g.zeros([b, d])];
            Core {
                x: lambda.into_iter().chain(rest).collect(),
                run: |x| vec![lru_scan_joined((x[0], x[1]), x[2], (x[3], x[4]), CHUNK).0],
                flops: None,
            }
        }
        _ => {
            let mut i = 0;
            let a = g.in_f32(|g| g.draw([d, n], |_| (i += 1, -f64::from((i - 1) % 16 + 1)).1));
            let (u, delta) = (g.normal([b, t, d], 1.0), g.range([b, t, d], 0.001, 0.1));
            let (b_in, c_out) = (g.normal([b, t, n], 1.0), g.normal([b, t, n], 1.0));
            Core {
                x: vec![u, delta, a, b_in, c_out, g.zeros([b, d, n])],
                run: |x| vec![selective_scan(x[0], x[1], x[2], x[3], x[4], x[5], 1.0, CHUNK).0],
                flops: None,
            }
        }
    }
}

/// A matrix a head, or all keys and values: linear_transformer, mlstm, delta_net and attention.
fn memories(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    let (b, t, h, k) = (s.b, s.t, s.h, s.k);
    let [q, v] = [(); 2].map(|()| g.normal([b, t, h, k], 1.0));
    let key = g.normal([b, t, h, k], (k as f64).powf(-0.5)); // |k| is about 1
    // The products of a chunk are [C, K] by [K, C], [C, C] by [C, K], [C, K] by [K, K]: alike where C = K.
    let product = (b * h * t * k * (CHUNK + k)) as f64;
    let products = |forward: f64, backward: f64| Some([forward * product, backward * product]);
    match name {
        "linear_transformer" => Core {
            x: vec![q, key, v, g.zeros([b, h, k, k])],
            run: |x| vec![linear_attention(x[0], x[1], x[2], x[3], scale(x[0]), CHUNK).0],
            flops: products(4.0, 11.0),
        },
        "mlstm" => {
            let gates = g.in_f32(|g| [g.normal([b, t, h], 1.0), g.range([b, t, h], 3.0, 6.0)]);
            let memory = [g.zeros([b, h, k, k]), g.zeros([b, h, k]), g.zeros([b, h]), g.zeros([b, h])];
            Core {
                x: [q, key, v].into_iter().chain(gates).chain(memory).collect(),
                run: |x| {
                    let mut memory = Memory { c: x[5], n: x[6], m: x[7], w: x[8] };
                    vec![mlstm([x[0], x[1], x[2]], [x[3], x[4]], &mut memory, 1e-6, CHUNK)]
                },
                flops: products(4.0, 11.0),
            }
        }
        "delta_net" => Core {
            x: vec![q, key, v, g.range([b, t, h], 0.0, 1.0), g.zeros([b, h, k, k])],
            run: |x| vec![delta_rule(x[0], x[1], x[2], x[3], x[4], scale(x[0]), CHUNK).0],
            flops: products(9.0, 26.0),
        },
        _ => Core {
            x: vec![q, key, v],
            run: |x| vec![causal_attention(x[0], x[1], x[2], scale(x[0]))],
            // Half of two products [T, K] by [K, T]; of five backward.
            flops: Some([2.0, 5.0].map(|n| n * (b * h * t * t * k) as f64)),
        },
    }
}

/// What this device reaches: bytes a second in a copy, and operations a second in a matrix product.
#[derive(Clone, Copy)]
struct Best {
    bytes: f64,
    flops: f64,
}

type Run = for<'t> fn(&[Var<'t>]) -> Vec<Var<'t>>;

/// Seconds of `run`, forward, as in training: with what the backward pass will need.
fn forward(tape: &mut Tape, x: &[Tensor], run: Run, clock: Clock) -> f64 {
    let gpu = tape.cx().gpu();
    time(gpu.as_ref(), clock, || {
        let x: Vec<_> = x.iter().map(|x| tape.constant(x)).collect();
        run(&x);
        tape.reset();
    })
}

/// Seconds of its backward pass, and the bytes of its outputs.
fn backward(g: &mut Inputs<'_>, x: &[Tensor], run: Run, clock: Clock) -> (f64, f64) {
    let (tape, gpu) = (g.tape, g.tape.cx().gpu());
    let x: Vec<_> = x.iter().map(|x| tape.leaf(x)).collect();
    let y = run(&x);
    let dy: Vec<_> = y.iter().map(|y| g.normal(y.shape(), 1.0)).collect();
    let from = |ends: &[Var<'_>]| {
        time(gpu.as_ref(), clock, || tape.backward_from(ends.iter().copied().zip(dy.iter().cloned())))
    };
    // The tape copies the cotangents that it is given; in a model it has them from the op above.
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

/// Print what a copy and a matrix product take, if that was asked for, and give what the device reaches in them.
fn best(tape: &mut Tape, dtype: DType, sizes: &Sizes, clock: Clock, asked: &[&str]) -> Best {
    let room = |tape: &Tape| tape.cx().pool().get(DType::F32, Shape::new(&[sizes.copy]));
    let (mut y, mut x) = (room(tape), room(tape));
    x.fill(1.5);
    let copy = time(tape.cx().gpu().as_ref(), clock, || y.assign(&x));
    let n = sizes.matmul;
    let mut g = Inputs { tape, dtype, random: Gen::new(0), block: sizes.block };
    let ab = [(); 2].map(|()| g.normal([n, n], 1.0));
    tape.reset();
    let product = forward(tape, &ab, |x| vec![x[0].matmul(x[1])], clock);
    let best = Best { bytes: 2.0 * bytes(&[y]) / copy, flops: 2.0 * (n * n * n) as f64 / product };
    if asked.contains(&"copy") && dtype == DType::F32 {
        row("copy", copy, &format!("{:.1} GB/s", best.bytes * 1e-9));
    }
    if asked.contains(&"matmul") {
        row(&format!("matmul {dtype}"), product, &format!("{:.1} TFLOP/s", best.flops * 1e-12));
    }
    best
}

/// What must at least be moved and computed, a second, and the share of what the device reaches.
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
    let forward = forward(tape, &core.x, core.run, clock);
    let (backward, out) =
        backward(&mut Inputs { tape, dtype, random: Gen::new(1), block: sizes.block }, &core.x, core.run, clock);
    tape.reset();
    // Forward reads x and writes y; backward reads x and dy and writes dx.
    for (i, (pass, took, moved)) in
        [("forward", forward, bytes(&core.x) + out), ("backward", backward, 2.0 * bytes(&core.x) + out)]
            .iter()
            .enumerate()
    {
        let notes = against(best, *took, *moved, core.flops.map(|flops| flops[i]));
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
            cores.for_each(|name| time_core(&mut tape, name, dtype, &sizes, best, clock));
        })?;
    }
    Ok(())
}
