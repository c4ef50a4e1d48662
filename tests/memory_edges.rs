//! The memories over long sequences and in bf16; tests/extremes has the other edges. On the emulator, or on a GPU with
//! `TAPEZOO_TEST_DEVICE=cuda`.
#![allow(clippy::unwrap_used)]

mod device;

use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{self, Form, Init, ModelConfig, State, delta_net, delta_product, gated_delta_net, linear_transformer},
    tensor::{DType, Device, Tensor},
};

const SCALE: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Linear,
    Normalized,
    Delta,
    Gated,
    /// Two steps of the delta rule per token.
    Product,
}
use Memory::*;

const ALL: [Memory; 5] = [Linear, Normalized, Delta, Gated, Product];

use Form::{Chunked, Parallel, Recurrent};

#[derive(Clone, Copy, Debug)]
struct Size {
    b: usize,
    t: usize,
    h: usize,
    k: usize,
    v: usize,
}

impl Memory {
    /// Steps per token.
    fn steps(self) -> usize {
        if self == Product { 2 } else { 1 }
    }

    /// q, k, v, β, g, S and z; keys are unit vectors, or positive features for normalised attention.
    fn inputs(self, g: &mut Gen, Size { b, t, h, k, v }: Size) -> Vec<Tensor> {
        let steps = t * self.steps();
        let rows = |g: &mut Gen, t: usize| {
            if self == Normalized {
                return g.range([b, t, h, k], 0.1, 1.0);
            }
            let x = g.normal([b, t, h, k]);
            let unit = |r: &[f64]| {
                let n = r.iter().map(|x| x * x).sum::<f64>().sqrt();
                r.iter().map(|x| x / n).collect::<Vec<_>>()
            };
            Tensor::from_vec(x.to_f64().chunks(k).flat_map(unit).collect(), x.shape())
        };
        let (q, key, val) = (rows(g, t), rows(g, steps), g.normal([b, steps, h, v]));
        let (beta, gate) = (g.range([b, steps, h], 0.0, 2.0), g.range([b, steps, h], -1.0, 0.0));
        let all = [q, key, val, beta, gate, g.normal([b, h, k, v]), g.range([b, h, k], 0.1, 1.0)];
        all.iter().map(|x| x.cast(DType::F32).cast(DType::F64)).collect()
    }

    /// The inputs that have a time axis.
    fn timed(self) -> usize {
        match self {
            Linear | Normalized => 3,
            Delta | Product => 4,
            Gated => 5,
        }
    }

    /// o, the last S, and for normalised attention the last z.
    fn run<'t>(self, form: Form, x: &[Var<'t>]) -> Vec<Var<'t>> {
        let (q, k, v, beta, g, s) = (x[0], x[1], x[2], x[3], x[4], x[5]);
        let (o, s) = match self {
            Linear | Normalized => {
                let z = (self == Normalized).then_some((x[6], 0.5));
                let mut m = linear_transformer::Memory { s, z };
                let o = linear_transformer::attention([q, k, v], &mut m, SCALE, form);
                return [o, m.s].into_iter().chain(m.z.map(|z| z.0)).collect();
            }
            Delta => delta_net::sequence([q, k, v, beta], s, SCALE, form),
            Gated => gated_delta_net::sequence([q, k, v, beta, g], s, SCALE, form),
            Product => delta_product::sequence([q, k, v, beta], s, 2, SCALE, form),
        };
        vec![o, s]
    }
}

/// Outputs, and the gradients of the inputs for random cotangents.
fn run(place: (Device, DType), m: Memory, form: Form, x: &[Tensor]) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let tape = Tape::new(place.0);
    tape.poison(true);
    // Logarithms of gates stay in single precision when the rest is bf16.
    let dtype = |i: usize| if i == 4 { place.1.real() } else { place.1 };
    let x: Vec<_> = x.iter().enumerate().map(|(i, x)| tape.leaf(&x.to_device_as(tape.cx(), dtype(i)))).collect();
    let y = m.run(form, &x);
    let values = y.iter().map(|y| y.value().to_f64()).collect();
    let mut g = Gen::new(1);
    let u: Vec<_> = y.iter().map(|y| g.normal(y.shape()).to_device_as(tape.cx(), y.dtype())).collect();
    tape.backward_from(y.into_iter().zip(u));
    let zeros = |x: &Var| vec![0.0; x.shape().len()];
    (values, x.iter().map(|x| x.grad().map_or_else(|| zeros(x), |g| g.to_f64())).collect())
}

/// Both sides of every switch between kernels.
fn size(g: &mut Gen, most: usize) -> Size {
    let (k, v) = [(1, 1), (3, 5), (4, 4), (16, 16), (20, 20), (17, 33), (32, 8)][g.below(7)];
    Size { b: g.size(3), t: 1 + g.below(most), h: g.size(3), k, v }
}

/// The same inputs with `value` in one place of step `t` of input i, of one head of one sequence.
fn spoilt(x: &[Tensor], i: usize, t: usize, value: f64, g: &mut Gen) -> Vec<Tensor> {
    let mut x = x.to_vec();
    let (mut v, dims) = (x[i].to_f64(), x[i].shape().dims().to_vec());
    let row = dims[2..].iter().product::<usize>();
    v[(g.below(dims[0]) * dims[1] + t) * row + g.below(row)] = value;
    x[i] = Tensor::from_vec(v, &dims[..]);
    x
}

/// A bad number at a step changes no bit of the outputs before it. The other forms do not support bf16.
#[test]
fn what_comes_later_never_reaches_what_came_before_in_bf16() {
    let Some(device) = device::device() else { return };
    for seed in 0..4 {
        let mut g = Gen::new(seed);
        let z = size(&mut g, 80);
        for m in ALL {
            let x = m.inputs(&mut g, z);
            let form = Chunked([1, 2, 5, 8, 16, 17, 32, 33, 64, 65][g.below(10)]);
            let (i, n) = (g.below(m.timed()), m.steps());
            let at = g.below(if i == 0 { z.t } else { z.t * n });
            let token = if i == 0 { at } else { at / n };
            let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3e38][g.below(4)];
            let with = |value| {
                let x = spoilt(&x, i, at, value, &mut Gen::new(seed));
                run((device, DType::BF16), m, form, &x).0.swap_remove(0)
            };
            let (was, is, width) = (with(-0.25), with(bad), z.h * z.v);
            for (j, (was, is)) in was.iter().zip(&is).enumerate().filter(|(j, _)| j / width % z.t < token) {
                let step = j / width % z.t;
                assert!(
                    was == is,
                    "{m:?}, {form:?}, {z:?}, seed {seed}: {bad} in input {i} at step {at} makes output {j} of token {step} \
                     {is}, not {was}"
                );
            }
        }
    }
}

/// Decays over thousands of steps, where differences of gates summed from the start would have only four digits left.
#[test]
fn a_long_sequence_keeps_its_digits_in_single_precision() {
    let z = Size { b: 1, t: 4000, h: 1, k: 4, v: 4 };
    let mut g = Gen::new(3);
    let mut x = Gated.inputs(&mut g, z);
    let mut gates = g.range([1, z.t, 1], -5.0, 0.0).cast(DType::F32).to_f64();
    for (step, reset) in [(500, -1e9), (2500, f64::NEG_INFINITY), (2501, -1e9)] {
        gates[step] = reset;
    }
    x[4] = Tensor::from_vec(gates.clone(), [1, z.t, 1]);
    let (values, gradients) = run((Device::Cpu, DType::F64), Gated, Recurrent, &x);
    let want = [values, gradients].concat();
    for form in [Recurrent, Parallel, Chunked(64)] {
        let (values, gradients) = run((Device::Cpu, DType::F32), Gated, form, &x);
        let resets = gates.iter().zip(&gradients[4]).filter(|(gate, _)| **gate < -1e3);
        assert!(resets.clone().count() == 3 && resets.clone().all(|(_, dg)| *dg == 0.0), "{form:?}: {resets:?}");
        for (i, (got, want)) in [values, gradients].concat().iter().zip(&want).enumerate() {
            let off = off(got, want);
            assert!(off <= 1e-5, "{form:?}: output or gradient {i} is off by {off:.1e}");
        }
    }
}

/// ‖a − b‖ / ‖b‖; 0 where both are zeros.
fn off(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    if a == b { 0.0 } else { norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()) }
}

/// bf16 has no digits for the angles of a thousand steps, and no odd counts above 256.
#[test]
fn places_far_along_a_sequence_are_told_apart_in_bf16() {
    let Some(device) = device::device() else { return };
    let t = 700;
    for name in ["retnet", "seqboat", "ttt"] {
        let forms = models::find(name).unwrap();
        let run = |dtype: DType| {
            let tape = Tape::new(device);
            let config = ModelConfig { width: 8, heads: 1, head_dim: 8, state: 2, conv: 0, ..ModelConfig::default() };
            let mut init = Init::new(1, None);
            let mixer = forms(&config, &mut init).unwrap();
            let mut params = init.finish(dtype);
            if dtype == DType::BF16 {
                params.copy_in_bf16(tape.cx());
            }
            let mut state = State::zero(mixer.as_ref(), &tape, 1, dtype);
            let x = Gen::new(3).normal([1, t, 8]).to_device_as(tape.cx(), dtype);
            let form = if name == "retnet" { Form::Chunked(64) } else { Form::Parallel };
            let y = models::run(mixer.as_ref(), &params.bind(&tape), tape.constant(&x), &mut state, form);
            y.narrow(1, t - 100, 100).value().to_f64()
        };
        let (half, single) = (run(DType::BF16), run(DType::F32));
        let off = off(&half, &single);
        assert!(off < 0.05, "{name}: {off} off in bf16");
    }
}
