//! Memories that fade, by a gate for each head or each channel, on the device in larger sizes than `Op::sample` has:
//! several chunks and tiles, odd tails, chunks longer than a tile, axes of size 0, gates that close. These tests cover
//! fade.cuh, which the kernels of both memories share.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, follows, place};
use tapezoo::{
    autograd::{Gen, Op, Tape},
    ops::{erase_write::EraseWrite, gated_linear_attention::GatedLinearAttention},
    tensor::{DType, Tensor},
};

/// Half of the gates next to nothing, half in [−12, 0], and some that forget all, to rounding or altogether.
fn steep(g: &mut Gen) -> f64 {
    match g.below(20) {
        0 => -60.0,
        1 => f64::NEG_INFINITY,
        2 => -1e9,
        3..=10 => g.uniform(-12.0, 0.0),
        _ => 0.0,
    }
}

/// q, k, v, gates and the first state.
fn inputs(g: &mut Gen, [b, t, h, k, v]: [usize; 5], gates: usize, gate: fn(&mut Gen) -> f64) -> Vec<Tensor> {
    let a = 1.6 / (k.max(1) as f64).sqrt();
    let keys = |g: &mut Gen| g.range([b, t, h, k], -a, a);
    vec![keys(g), keys(g), g.normal([b, t, h, v]), g.tensor([b, t, h, gates], gate), g.normal([b, h, k, v])]
}

fn adding(chunk: usize) -> Box<dyn Op> {
    Box::new(GatedLinearAttention { chunk, parts: 1, scale: 0.7 })
}

/// q, k, v, keys to erase by, the first state and, if wanted, gates.
fn erasing_inputs(g: &mut Gen, size: [usize; 5], gated: bool, gate: fn(&mut Gen) -> f64) -> Vec<Tensor> {
    let x = inputs(g, size, size[3], gate);
    let p = inputs(g, size, size[3], gate).swap_remove(0);
    let [q, k, v, gates, s] = [0, 1, 2, 3, 4].map(|i| x[i].clone());
    [q, k, v, p, s].into_iter().chain(gated.then_some(gates)).collect()
}

fn erasing(chunk: usize) -> Box<dyn Op> {
    Box::new(EraseWrite { chunk, scale: 0.7 })
}

/// Sizes [B, T, H, K, V], and the chunk.
const SIZES: [([usize; 5], usize); 10] = [
    ([1, 130, 1, 20, 9], 64),
    ([1, 70, 1, 130, 3], 64),
    ([1, 40, 2, 36, 5], 32),
    ([1, 20, 1, 18, 20], 16),
    // Enough heads for blocks that go along them.
    ([1, 40, 64, 5, 33], 32),
    ([1, 70, 1, 5, 3], 100),
    ([1, 0, 2, 4, 3], 8),
    ([0, 5, 2, 4, 3], 8),
    ([1, 9, 2, 4, 0], 4),
    ([1, 9, 2, 0, 4], 4),
];

#[test]
fn gated_linear_attention_of_several_chunks() {
    for (size @ [b, t, h, k, v], chunk) in SIZES {
        for gates in [1, k] {
            let x = inputs(&mut Gen::new(2), size, gates, steep);
            let what = format!("{gates} gates, {b} {t} {h} {k} {v} {chunk}");
            follows(&what, &|| adding(chunk), &x, 2);
        }
    }
}

#[test]
fn keys_of_their_own_erase_in_several_chunks() {
    for (size @ [b, t, h, k, v], chunk) in SIZES {
        for gated in [true, false] {
            let x = erasing_inputs(&mut Gen::new(3), size, gated, steep);
            let what = format!("gates {gated}, {b} {t} {h} {k} {v} {chunk}");
            follows(&what, &|| erasing(chunk), &x, 2);
        }
    }
}

/// A change at a later step changes no bit of an earlier output.
#[test]
fn what_comes_later_reaches_nothing_before() {
    let Some(device) = device() else { return };
    let (size @ [b, t, h, k, _], cut) = ([1, 40, 1, 18, 17], 21);
    let g = &mut Gen::new(7);
    let adds = [1, k].map(|gates| (adding as fn(usize) -> Box<dyn Op>, inputs(g, size, gates, steep)));
    let erases = (erasing as fn(usize) -> Box<dyn Op>, erasing_inputs(g, size, true, steep));
    for (op, x) in adds.into_iter().chain([erases]) {
        for which in (0..x.len()).filter(|&i| x[i].shape().at(1) == t) {
            let inner = x[which].shape().len() / (b * t * h);
            let spoilt = |(i, x)| if i / inner < cut { x } else { f64::NAN };
            let mut changed = x.clone();
            let spoilt: Vec<f64> = x[which].to_f64().into_iter().enumerate().map(spoilt).collect();
            changed[which] = Tensor::from_vec(spoilt, x[which].shape());
            let read = |x: &[Tensor]| {
                let tape = Tape::new(device);
                let x: Vec<_> = x.iter().map(|x| tape.leaf(&place(x, tape.cx(), DType::F32, false))).collect();
                tape.apply_dyn(op(32), &x)[0].narrow(1, 0, cut).value().to_f64()
            };
            assert_eq!(read(&x), read(&changed), "{} with {} inputs, input {which}", op(32).name(), x.len());
        }
    }
}
