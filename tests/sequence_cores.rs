//! The fused sequence cores against the formulas of their ops in `f64`: values, last states and all gradients, over
//! lengths around the chunk size.

use proptest::prelude::*;
use std::rc::Rc;
use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    ops::{
        lstm::lstm_sequence,
        quasi_lstm::quasi_lstm,
        scan::{linear_scan, linear_scan_parallel, lru_scan, lru_scan_parallel},
        selective::{SelectiveScan, selective_scan},
    },
    tensor::{DType, Tensor},
};

/// Which outputs the loss depends on.
type Pick = dyn Fn(usize) -> bool;
type Formula = dyn for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>;

/// A core with the inputs that have a time axis (axis 1), the initial states as (input, output that continues it), and
/// the number of outputs with a time axis.
struct Core {
    name: &'static str,
    core: Rc<Formula>,
    /// The op whose formula defines it.
    op: Rc<Formula>,
    inputs: Vec<Tensor>,
    timed: Vec<usize>,
    states: Vec<(usize, usize)>,
    outputs: usize,
}

/// Every core, with random inputs of these sizes.
fn cores(g: &mut Gen, [b, t, d]: [usize; 3], chunk: usize) -> Vec<Core> {
    let (seq, seq4, state) = ([b, t, d], [b, t, 4 * d], [b, d]);
    let lru = |g: &mut Gen| {
        let lambda = [g.range([d], -0.7, 0.7), g.range([d], -0.7, 0.7)];
        lambda.into_iter().chain([g.normal(seq), g.normal(seq), g.normal(state), g.normal(state)]).collect::<Vec<_>>()
    };
    let selective = |g: &mut Gen, n: usize, most: f64| {
        let (row, h) = ([b, t, n], [b, d, n]);
        let a = g.range([d, n], -3.0, most);
        vec![g.normal(seq), g.range(seq, 0.05, 1.0), a, g.normal(row), g.normal(row), g.normal(h)]
    };
    let linear = vec![g.range(seq, -1.2, 1.2), g.normal(seq), g.normal(state)];
    let quasi = vec![g.normal(seq4), g.normal(state)];
    // Weights of a model's size: larger weights amplify roundings with every step.
    let w_hh = g.tensor([4 * d, d], |g| g.gauss() * (d as f64).powf(-0.5));
    let lstm = vec![g.normal(seq4), w_hh, g.normal(state), g.normal(state)];
    let scan = |name, core: &Rc<Formula>, op: &Rc<Formula>| Core {
        name,
        core: core.clone(),
        op: op.clone(),
        inputs: linear.clone(),
        timed: vec![0, 1],
        states: vec![(2, 1)],
        outputs: 1,
    };
    let op: Rc<Formula> = Rc::new(move |x| {
        let (h, last) = linear_scan(x[0], x[1], x[2], chunk);
        vec![h, last]
    });
    let parallel: Rc<Formula> = Rc::new(|x| {
        let (h, last) = linear_scan_parallel(x[0], x[1], x[2]);
        vec![h, last]
    });
    let mut all = vec![scan("linear_scan", &op, &op), scan("linear_scan_parallel", &parallel, &op)];
    let inputs = lru(g);
    let scan = |name, core: &Rc<Formula>, op: &Rc<Formula>| Core {
        name,
        core: core.clone(),
        op: op.clone(),
        inputs: inputs.clone(),
        timed: vec![2, 3],
        states: vec![(4, 2), (5, 3)],
        outputs: 2,
    };
    let op = lru_op(chunk);
    let parallel: Rc<Formula> = Rc::new(|x| {
        let (h, last) = lru_scan_parallel((x[0], x[1]), (x[2], x[3]), (x[4], x[5]));
        vec![h.0, h.1, last.0, last.1]
    });
    all.extend([scan("lru_scan", &op, &op), scan("lru_scan_parallel", &parallel, &op)]);
    let own = |name, op: Rc<Formula>, inputs, timed, states| Core {
        name,
        core: op.clone(),
        op,
        inputs,
        timed,
        states,
        outputs: 1,
    };
    // A rate above zero lets a state grow: transitions are then computed in another way.
    for (s, n, most) in [(1.0, 3, -0.1), (2.0, 1, -0.1), (1.0, 8, 0.05), (2.0, 4, 0.05), (2.0, 3, -0.1), (1.0, 6, -0.1)]
    {
        let op: Rc<Formula> = if s == 1.0 {
            Rc::new(move |x| {
                let (y, h) = selective_scan(x[0], x[1], x[2], x[3], x[4], x[5], s, chunk);
                vec![y, h]
            })
        } else {
            Rc::new(move |x| x[0].tape().apply_dyn(Box::new(SelectiveScan { chunk, s }), x))
        };
        all.push(own("selective_scan", op, selective(g, n, most), vec![0, 1, 3, 4], vec![(5, 1)]));
    }
    let op: Rc<Formula> = Rc::new(|x| {
        let (h, h_last, c_last) = lstm_sequence(x[0], x[1], x[2], x[3]);
        vec![h, h_last, c_last]
    });
    all.push(own("lstm_sequence", op, lstm, vec![0], vec![(2, 1), (3, 2)]));
    let op: Rc<Formula> = Rc::new(move |x| {
        let (h, c) = quasi_lstm(x[0], x[1], 0.7, chunk);
        vec![h, c]
    });
    all.push(own("quasi_lstm", op, quasi, vec![0], vec![(1, 1)]));
    let taps = g.size(9);
    let op: Rc<Formula> = Rc::new(move |x| {
        let last = Var::concat(&[x[2], x[0]], 1).narrow(1, x[0].shape().at(1), taps - 1);
        vec![x[0].causal_conv1d(x[1], Some(x[3]), x[2]), last]
    });
    let inputs = vec![g.normal(seq), g.normal([d, taps]), g.normal([b, taps - 1, d]), g.normal([d])];
    all.push(own("causal_conv1d", op, inputs, vec![0], vec![(2, 1)]));
    all
}

fn lru_op(chunk: usize) -> Rc<Formula> {
    Rc::new(move |x| {
        let (h, last) = lru_scan((x[0], x[1]), (x[2], x[3]), (x[4], x[5]), chunk);
        vec![h.0, h.1, last.0, last.1]
    })
}

/// Values, and gradients of ⟨random, output⟩ over the outputs that `seeded` picks.
fn run(f: &Formula, inputs: &[Tensor], seeded: impl Fn(usize) -> bool, seed: u64) -> [Vec<Vec<f64>>; 2] {
    run_by(Kernels::Fast, f, inputs, seeded, seed)
}

/// The same, computed by these kernels.
fn run_by(
    kernels: Kernels,
    f: &Formula,
    inputs: &[Tensor],
    seeded: impl Fn(usize) -> bool,
    seed: u64,
) -> [Vec<Vec<f64>>; 2] {
    let tape = Tape::default().with_kernels(kernels);
    tape.poison(true);
    let x: Vec<_> = inputs.iter().map(|x| tape.leaf(x)).collect();
    let y = f(&x);
    let mut g = Gen::new(seed);
    let u: Vec<_> = y.iter().map(|y| g.normal(y.shape()).cast(y.dtype())).collect();
    tape.backward_from(y.iter().copied().zip(u).enumerate().filter(|(i, _)| seeded(*i)).map(|(_, pair)| pair));
    let grads = x.iter().map(|x| x.grad().map_or(vec![0.0; x.shape().len()], |g| g.to_f64())).collect();
    [y.iter().map(|y| y.value().to_f64()).collect(), grads]
}

/// The worst difference, relative to the largest number in each tensor. NaN counts as infinite.
fn distance(a: &[Vec<Vec<f64>>; 2], b: &[Vec<Vec<f64>>; 2]) -> f64 {
    let mut worst: f64 = 0.0;
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        assert_eq!(a.len(), b.len());
        let size = b.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
        for (a, b) in a.iter().zip(b) {
            let error = (a - b).abs() / size;
            worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
        }
    }
    worst
}

/// A chunk size, and a length around it.
fn sizes(g: &mut Gen) -> ([usize; 3], usize) {
    let chunk = [1, 2, 3, 4, 5, 8, 64][g.below(7)];
    let t = [0, 1, chunk - 1, chunk, chunk + 1, 13, 3 * chunk + 1][g.below(7)].min(70);
    // More than two groups of four sequences.
    ([g.size(9), t, [0, 1, 2, 4, 5, 8, 16, 21, 32, 33, 70][g.below(11)]], chunk)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_core_is_the_formula_of_its_op(seed in any::<u64>()) {
        let mut g = Gen::new(seed);
        let (mut size, chunk) = sizes(&mut g);
        size[0] = if g.below(8) == 0 { 0 } else { size[0] };
        for core in cores(&mut g, size, chunk) {
            let n = core.outputs;
            let seeds: [(&str, Box<Pick>); 3] = [
                ("all steps", Box::new(move |i| i < n)),
                ("the last state", Box::new(move |i| i >= n)),
                ("both", Box::new(|_| true)),
            ];
            for (what, seeded) in seeds {
                let got = run(&*core.core, &core.inputs, &seeded, seed);
                let want = run_by(Kernels::Plain, &*core.op, &core.inputs, &seeded, seed);
                let error = distance(&got, &want);
                prop_assert!(error < 1e-10, "{} {size:?}, chunk {chunk}, loss on {what}: off by {error:.1e}", core.name);
            }
            // The same inputs in two places: gradients are added.
            let twice = |f: Rc<Formula>| -> Box<Formula> { Box::new(move |x| [f(x), f(x)].concat()) };
            let got = run(&twice(core.core), &core.inputs, |_| true, seed);
            let error = distance(&got, &run_by(Kernels::Plain, &twice(core.op), &core.inputs, |_| true, seed));
            prop_assert!(error < 1e-10, "{} {size:?}, chunk {chunk}, twice: off by {error:.1e}", core.name);
        }
    }

    #[test]
    fn two_halves_with_the_state_carried_over_are_one_run(seed in any::<u64>()) {
        let mut g = Gen::new(seed);
        let (mut size, chunk) = sizes(&mut g);
        size[1] += 2;
        let cut = 1 + g.below(size[1] - 1);
        for core in cores(&mut g, size, chunk) {
            let (f, timed, states, n) = (core.core, core.timed, core.states, core.outputs);
            let whole = run(&*f, &core.inputs, |_| true, seed);
            let halves: Box<Formula> = Box::new(move |x| {
                let mut first = x.to_vec();
                for &i in &timed {
                    first[i] = x[i].narrow(1, 0, cut);
                }
                let y1 = f(&first);
                let mut second = x.to_vec();
                for &i in &timed {
                    second[i] = x[i].narrow(1, cut, x[i].shape().at(1) - cut);
                }
                for &(input, output) in &states {
                    second[input] = y1[output];
                }
                let y2 = f(&second);
                let join = |i: usize| if i < n { Var::concat(&[y1[i], y2[i]], 1) } else { y2[i] };
                (0..y1.len()).map(join).collect()
            });
            let error = distance(&run(&halves, &core.inputs, |_| true, seed), &whole);
            prop_assert!(error < 1e-11, "{} {size:?} cut at {cut}, chunk {chunk}: off by {error:.1e}", core.name);
        }
    }
}

/// Decays of almost 1 over several chunks, with a loss on the last step alone: a wrong factor between chunks has the
/// largest effect here.
#[test]
fn a_long_memory_keeps_its_gradient_in_single_precision() {
    let (mut g, b, t, d, chunk) = (Gen::new(3), 2, 300, 20, 64);
    let close = |name: &str, op: &Formula, inputs: &[Tensor], seeded: fn(usize) -> bool| {
        let single: Vec<_> = inputs.iter().map(|x| x.cast(DType::F32)).collect();
        let double: Vec<_> = single.iter().map(|x| x.cast(DType::F64)).collect();
        let error = distance(&run(op, &single, seeded, 1), &run_by(Kernels::Plain, op, &double, seeded, 1));
        assert!(error < 2e-4, "{name}: off by {error:.1e}");
    };
    let angle = g.range([d], 0.0, 3.0).to_f64();
    let part = |f: fn(f64) -> f64| Tensor::from_vec(angle.iter().map(|&x| 0.9999 * f(x)).collect::<Vec<_>>(), [d]);
    let seq = [b, t, d];
    let inputs = [part(f64::cos), part(f64::sin), g.normal(seq), g.normal(seq), g.normal([b, d]), g.normal([b, d])];
    let lru = lru_op(chunk);
    close("lru_scan, both parts", &*lru, &inputs, |i| i >= 2);
    close("lru_scan, real part", &*lru, &inputs, |i| i == 2);
    let sign = g.tensor(seq, |g| if g.coin() { 0.9999 } else { -0.9999 });
    let linear: Box<Formula> = Box::new(move |x| {
        let (h, last) = linear_scan(x[0], x[1], x[2], chunk);
        vec![h, last]
    });
    close("linear_scan", &linear, &[sign, g.normal(seq), g.normal([b, d])], |i| i == 1);
}

/// Recurrences of few channels compute several sequences at a time: which sequences, and how many, changes no bit.
#[test]
fn the_sequences_beside_it_do_not_change_a_sequence() {
    let mut g = Gen::new(6);
    for (b, d) in [(1, 16), (3, 4), (4, 1), (4, 16), (5, 6), (5, 21), (7, 24), (9, 16), (6, 32)] {
        let mut cores = cores(&mut g, [b, 7, d], 3);
        cores.retain(|core| core.name.contains("lstm"));
        assert!(cores.len() == 2, "LSTM and quasi-LSTM have these names");
        for core in cores {
            let each_has_its_own = |i: usize| core.timed.contains(&i) || core.states.iter().any(|s| s.0 == i);
            let run = |alone: bool| {
                let tape = Tape::default();
                tape.poison(true);
                let x: Vec<_> = core.inputs.iter().map(|x| tape.leaf(&x.cast(DType::F32))).collect();
                let mut parts = vec![x.clone()];
                if alone {
                    parts = vec![x.clone(); b];
                    for (k, part) in parts.iter_mut().enumerate() {
                        part.iter_mut()
                            .enumerate()
                            .filter(|x| each_has_its_own(x.0))
                            .for_each(|x| *x.1 = x.1.narrow(0, k, 1));
                    }
                }
                let y: Vec<Vec<_>> = parts.iter().map(|x| (core.core)(x)).collect();
                // Each output is its own cotangent, which is the same whether its sequence is alone or not.
                tape.backward_from(y.iter().flatten().map(|&y| (y, y.value())));
                let y = (0..y[0].len()).map(|i| Var::concat(&y.iter().map(|y| y[i]).collect::<Vec<_>>(), 0).value());
                let grads = (0..x.len()).filter(|&i| each_has_its_own(i)).map(|i| x[i].grad().unwrap());
                y.chain(grads).map(|x| x.to_f64()).collect::<Vec<_>>()
            };
            assert!(run(true) == run(false), "{} of {b} sequences and {d} channels", core.name);
        }
    }
}

#[test]
#[should_panic(expected = "linear_scan: a chunk needs one step at least, got chunk = 0")]
fn a_chunk_of_no_steps_is_refused() {
    let tape = Tape::default();
    let (x, h0) = (tape.full([1, 2, 3], DType::F32, 1.0), tape.full([1, 3], DType::F32, 1.0));
    linear_scan(x, x, h0, 0);
}

#[test]
#[should_panic(expected = "x [1, 2, 12], w_hh [12, 4], h0 [1, 3] and c0 [1, 3] do not fit")]
fn shapes_that_do_not_fit_are_named() {
    let tape = Tape::default();
    let full = |shape: &[usize]| tape.full(shape, DType::F32, 1.0);
    lstm_sequence(full(&[1, 2, 12]), full(&[12, 4]), full(&[1, 3]), full(&[1, 3]));
}
