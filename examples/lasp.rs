//! LASP-2 (Sun et al. 2025, arXiv 2502.07563): one sequence of gated linear attention split over two threads, beside
//! one thread, and beside the same two threads with half of the heads each. Forward and backward, milliseconds by the
//! clock.
//!
//! ```text
//! cargo run --release --example lasp [T] > times.md        65536 if absent
//! python3 scripts/marks.py docs/zoo.md lasp < times.md     puts the table into the document
//! ```
//!
//! The threads have a half of the sequence each. All that they tell one another is a state: the second waits for the
//! first half's last state, S = Σ_s exp(g_{s+1} + … + g_{T/2}) k_s v_sᵀ, and the first for the gradient of that state,
//! dS = Σ_t exp(g_{T/2+1} + … + g_t) q_t do_tᵀ. Both are one product, made before anything else.

use std::{env, sync::mpsc::channel, thread, time::Instant};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::gated_linear_attention::gated_linear_attention,
    stamp::{BUILD, processor},
    tensor::{DType, Tensor},
};

const CHUNK: usize = 64;

/// q, k, v, g and the cotangent of o, each [1, T, H, ..].
fn inputs(t: usize, h: usize, k: usize) -> [Tensor; 5] {
    let g = &mut Gen::new(1);
    let gates = g.range([1, t, h, 1], -0.1, 0.0);
    [g.normal([1, t, h, k]), g.normal([1, t, h, k]), g.normal([1, t, h, k]), gates, g.normal([1, t, h, k])]
        .map(|x| x.cast(DType::F32))
}

/// Half i of a sequence.
fn half(x: &[Tensor; 5], i: usize) -> [Tensor; 5] {
    x.each_ref().map(|x| {
        let shape = x.shape();
        let [_, t, h, k] = *shape.dims() else { panic!("[1, T, H, ..]") };
        x.window(i * (t / 2) * h * k, [1, t / 2, h, k])
    })
}

/// The op forwards and backwards: the gradients of q, k, v and g.
fn run(x: &[Tensor; 5], s0: Option<Tensor>, ds: impl FnOnce() -> Option<Tensor>) -> [Tensor; 4] {
    let (shape, tape) = (x[0].shape(), Tape::default());
    let (h, k) = (shape.at(2), shape.at(3));
    let s0 = s0.unwrap_or_else(|| Tensor::zeros([1, h, k, k], DType::F32));
    let v: [Var; 4] = std::array::from_fn(|i| tape.leaf(&x[i]));
    let (o, s) = gated_linear_attention(v, tape.constant(&s0), 1.0, CHUNK);
    tape.backward_from([(o, x[4].clone())].into_iter().chain(ds().map(|ds| (s, ds))));
    v.map(|v| v.grad().expect("a gradient"))
}

/// Σ_t exp(the gates up to t, or after t) a_t b_tᵀ for each head.
fn product(a: &Tensor, b: &Tensor, g: &Tensor, after: bool) -> Tensor {
    let tape = Tape::default();
    let [a, b, g] = [a, b, g].map(|x| tape.constant(x).permute([0, 2, 1, 3])); // [1, H, T, ..]
    let so_far = g.cumsum(2);
    let t = g.dims::<4>()[2];
    let gates = if after { so_far.narrow(2, t - 1, 1) - so_far } else { so_far };
    (gates.exp() * a).t_matmul(b).value().clone()
}

/// Two threads, each with a half of the steps.
fn by_steps(halves: &[[Tensor; 5]; 2]) -> [[Tensor; 4]; 2] {
    let ((to_second, state), (to_first, cotangent)) = (channel(), channel());
    thread::scope(|scope| {
        let first = scope.spawn(move || {
            let [_, k, v, g, _] = &halves[0];
            to_second.send(product(k, v, g, true)).expect("the second half waits");
            run(&halves[0], None, || Some(cotangent.recv().expect("the second half sends it")))
        });
        let second = scope.spawn(move || {
            let [q, _, _, g, d_o] = &halves[1];
            to_first.send(product(q, d_o, g, false)).expect("the first half waits");
            run(&halves[1], Some(state.recv().expect("the first half sends it")), || None)
        });
        [first, second].map(|thread| thread.join().expect("a thread that ends"))
    })
}

/// The median of seven runs, in ms. `spread` grows to the distance of the shortest and the longest of them, as a share of the
/// median.
fn ms(spread: &mut f64, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..7)
        .map(|_| {
            let start = Instant::now();
            run();
            1e3 * start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    *spread = spread.max((times[6] - times[0]) / times[3]);
    times[3]
}

fn main() {
    let t = env::args().nth(1).map_or(65_536, |t| t.parse().expect("a number of steps"));
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    println!("T = {t}, batch 1, f32, forward and backward, medians of seven; {}, profile {profile},", processor());
    println!("{BUILD}.\n\n| heads | one thread, ms | two by steps | two by heads |\n|---|---|---|---|");
    let spread = &mut 0.0;
    for (h, k) in [(1, 32), (1, 64), (2, 32), (4, 32), (4, 64)] {
        let x = inputs(t, h, k);
        let halves = [half(&x, 0), half(&x, 1)];
        let (whole, parts) = (run(&x, None, || None), by_steps(&halves));
        for (i, whole) in whole.iter().enumerate() {
            let (whole, part) = (whole.to_f64(), parts.each_ref().map(|p| p[i].to_f64()).concat());
            let error = whole.iter().zip(&part).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let size = whole.iter().map(|a| a * a).sum::<f64>().sqrt();
            assert!(error <= 1e-4 * size, "gradient {i}: off by {error:e} of {size:e}");
        }
        let one = ms(spread, || drop(run(&x, None, || None)));
        let steps = ms(spread, || drop(by_steps(&halves)));
        let own = (h > 1).then(|| inputs(t, h / 2, k));
        let heads = own.map(|x| {
            ms(spread, || {
                thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| drop(run(&x, None, || None))))));
            })
        });
        let beside = |ms: f64| format!("{ms:.0} ({:.2}×)", one / ms);
        println!("| {h} of {k} | {one:.0} | {} | {} |", beside(steps), heads.map_or("–".into(), beside));
    }
    println!("\nThe seven times of a cell lie up to {:.0} % of their median apart.", 100.0 * *spread);
}
