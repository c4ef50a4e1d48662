//! Attention and the matrix memories on the device in larger sizes than `Op::sample` has: several chunks and tiles,
//! odd tails, chunks longer than a tile, states too long for shared memory, axes of size 0. These tests also cover
//! tiles.cuh and memories.cuh, which flash.cu and chunk.cu share.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, follows, place};
use tapezoo::{
    autograd::{Gen, Op, Tape},
    ops::{
        attention::CausalAttention,
        delta::{DeltaRule, GatedDeltaRule},
        linear_attn::LinearAttention,
    },
    tensor::{DType, Tensor},
};

/// A value that is not finite is left out of the tiles' products and added only to the steps that see it: it changes no
/// output before it.
#[test]
fn a_value_that_is_not_finite_reaches_no_step_before_it() {
    let Some(device) = device() else { return };
    let (b, t, h, k, v, bad) = (1, 20, 1, 20, 70, 13);
    let g = &mut Gen::new(7);
    let mut x = vec![g.normal([b, t, h, k]), g.range([b, t, h, k], -0.3, 0.3), g.normal([b, t, h, v])];
    x.extend([g.range([b, t, h], 0.0, 1.0), g.normal([b, h, k, v])]);
    let outputs = |x: &[Tensor]| {
        let tape = Tape::new(device);
        let x: Vec<_> = x.iter().map(|x| tape.leaf(&place(x, tape.cx(), DType::F32, false))).collect();
        let op: Box<dyn Op> = Box::new(DeltaRule { chunk: 32, scale: 1.0 });
        tape.apply_dyn(op, &x)[0].value().to_f64()
    };
    let finite = outputs(&x);
    for wrong in [f64::NAN, f64::INFINITY] {
        let mut values = x[2].to_f64();
        values[bad * v..(bad + 1) * v].fill(wrong);
        x[2] = Tensor::from_vec(values, x[2].shape());
        let got = outputs(&x);
        assert_eq!(got[..bad * v], finite[..bad * v], "{wrong} at step {bad}");
        assert!(got[bad * v..].iter().any(|o| !o.is_finite()), "{wrong} at step {bad}");
    }
}

/// The same for attention in bf16, whose tiles are larger: with narrow heads, whose values are checked only if a sum is
/// not finite, and with wide ones.
#[test]
fn a_value_that_is_not_finite_reaches_no_query_before_it() {
    let Some(device) = device() else { return };
    for k in [8, 72] {
        let (t, v, bad) = (140, 16, 75);
        let g = &mut Gen::new(8);
        let mut x = [g.normal([1, t, 1, k]), g.normal([1, t, 1, k]), g.normal([1, t, 1, v])];
        let outputs = |x: &[Tensor]| {
            let tape = Tape::new(device);
            let x: Vec<_> = x.iter().map(|x| tape.leaf(&place(x, tape.cx(), DType::BF16, false))).collect();
            tape.apply_dyn(Box::new(CausalAttention { scale: 0.3 }), &x)[0].value().to_f64()
        };
        let finite = outputs(&x);
        for wrong in [f64::NAN, f64::NEG_INFINITY] {
            let mut values = x[2].to_f64();
            values[bad * v..(bad + 1) * v].fill(wrong);
            x[2] = Tensor::from_vec(values, x[2].shape());
            let got = outputs(&x);
            assert_eq!(got[..bad * v], finite[..bad * v], "{wrong} at key {bad}");
            assert!(got[bad * v..].iter().all(|o| !o.is_finite()), "{wrong} at key {bad}");
        }
    }
}

#[test]
fn attention_of_several_tiles() {
    for (b, t, s, h, k, v) in [
        (2, 130, 130, 2, 20, 33),
        (1, 65, 129, 1, 65, 7),
        (1, 200, 290, 1, 3, 2),
        (1, 130, 200, 1, 64, 64),
        (1, 70, 70, 1, 72, 136),
        (1, 130, 130, 1, 200, 200),
        (1, 70, 70, 1, 64, 384),
        (1, 70, 70, 3, 24, 8),
        (1, 1, 200, 2, 8, 8),
        (1, 30, 30, 2, 5, 40),
        (0, 3, 3, 1, 2, 2),
        (1, 0, 3, 1, 2, 2),
    ] {
        let mut g = Gen::new(1);
        let mut x = vec![g.normal([b, t, h, k]), g.normal([b, s, h, k]), g.normal([b, s, h, v])];
        let op = || Box::new(CausalAttention { scale: (k as f64).powf(-0.5) }) as Box<dyn Op>;
        follows(&format!("attention {b} {t} {s} {h} {k} {v}"), &op, &x, 1);
        x.push(g.range([b, s, h], -0.2, 0.0));
        follows(&format!("fading attention {b} {t} {s} {h} {k} {v}"), &op, &x, 1);
    }
}

/// Scales of either sign, zero, and one that makes scores larger.
#[test]
fn attention_of_any_scale() {
    for scale in [-0.3, 0.0, 1.5] {
        let mut g = Gen::new(2);
        let x = [g.normal([1, 130, 1, 16]), g.normal([1, 150, 1, 16]), g.normal([1, 150, 1, 16])];
        let op = || Box::new(CausalAttention { scale }) as Box<dyn Op>;
        follows(&format!("attention of scale {scale}"), &op, &x, 1);
    }
}

/// A score and the largest score are one number, however large: else its weight would not be 1, and rounding would come
/// through as a gradient. (An emulator has no operation that rounds a product and a sum at once; a device has.)
#[test]
fn the_only_key_has_a_weight_of_one_and_no_gradient() {
    let Some(device) = device() else { return };
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let g = &mut Gen::new(3);
        let mut large = |n| g.range([1, 1, 2, n], -300.0, 300.0);
        let tape = Tape::new(device);
        let x = [large(64), large(64), large(64)].map(|x| tape.leaf(&place(&x, tape.cx(), dtype, false)));
        tape.backward(tape.apply_dyn(Box::new(CausalAttention { scale: 0.3 }), &x)[0].sum());
        for of in [0, 1] {
            let gradient = x[of].grad().map(|g| g.to_f64()).unwrap();
            assert!(gradient.iter().all(|&x| x == 0.0), "{dtype}, {of}: {gradient:?}");
        }
    }
}

#[test]
fn linear_attention_of_several_chunks() {
    for (b, t, h, k, v, chunk, normalize) in [
        (2, 150, 2, 20, 33, 64, None),
        (1, 131, 1, 70, 64, 64, Some(0.1)),
        (1, 70, 1, 64, 64, 64, Some(0.1)),
        (1, 70, 1, 72, 136, 64, None),
        (1, 40, 2, 32, 16, 32, Some(0.1)),
        (2, 75, 2, 17, 9, 32, Some(0.1)),
        // Enough heads for blocks that go along them.
        (2, 70, 32, 20, 33, 64, None),
        (1, 40, 16, 72, 136, 32, None),
        (1, 50, 1, 33, 70, 16, None),
        (1, 300, 1, 5, 3, 100, None),
        (1, 0, 2, 4, 3, 8, Some(0.1)),
        (0, 5, 2, 4, 3, 8, None),
        (1, 9, 2, 4, 0, 4, Some(0.1)),
        (1, 9, 2, 0, 4, 4, None),
    ] {
        let mut g = Gen::new(2);
        let mut x = vec![g.range([b, t, h, k], 0.1, 1.0), g.range([b, t, h, k], 0.1, 1.0)];
        x.extend([g.normal([b, t, h, v]), g.normal([b, h, k, v])]);
        if normalize.is_some() {
            x.push(g.range([b, h, k], 0.1, 2.0));
        }
        let op = || Box::new(LinearAttention { chunk, parts: 1, scale: 0.3, normalize }) as Box<dyn Op>;
        follows(&format!("linear attention {b} {t} {h} {k} {v} {chunk}"), &op, &x, 2);
    }
}

#[test]
fn delta_rule_of_several_chunks() {
    for (b, t, h, k, v, chunk) in [
        (2, 150, 2, 20, 33, 64),
        (1, 131, 1, 70, 64, 64),
        (1, 70, 1, 64, 64, 64),
        (1, 70, 1, 72, 136, 64),
        (1, 40, 2, 32, 16, 32),
        (2, 75, 2, 17, 9, 32),
        (1, 50, 1, 33, 70, 16),
        (1, 150, 1, 5, 3, 100),
        (1, 140, 1, 20, 20, 140),
        (1, 0, 2, 4, 3, 8),
        (0, 5, 2, 4, 3, 8),
        (1, 9, 2, 4, 0, 4),
        (1, 9, 2, 0, 4, 4),
        (1, 5, 1, 3300, 3, 4),
    ] {
        let mut g = Gen::new(3);
        let a = 1.6 / (k.max(1) as f64).sqrt();
        let mut x = vec![g.range([b, t, h, k], -a, a), g.range([b, t, h, k], -a, a), g.normal([b, t, h, v])];
        x.extend([g.range([b, t, h], 0.0, 2.0), g.normal([b, h, k, v])]);
        let op = || DeltaRule { chunk, scale: 0.7 };
        let what = format!("{b} {t} {h} {k} {v} {chunk}");
        follows(&format!("delta rule {what}"), &|| Box::new(op()) as Box<dyn Op>, &x, 2);
        x.push(g.range([b, t, h], -0.3, 0.0));
        follows(&format!("gated delta rule {what}"), &|| Box::new(GatedDeltaRule(op())) as Box<dyn Op>, &x, 2);
    }
}

/// Gates that forget everything, up to exp(−∞): nothing is NaN, and results equal the CPU's.
#[test]
fn gates_that_close() {
    let (b, t, h, k, v) = (1, 40, 2, 6, 5);
    let mut g = Gen::new(4);
    let mut x = vec![g.range([b, t, h, k], -0.6, 0.6), g.range([b, t, h, k], -0.6, 0.6), g.normal([b, t, h, v])];
    x.extend([g.range([b, t, h], 0.0, 2.0), g.normal([b, h, k, v])]);
    let gates = (0..b * t * h).map(|i| [0.0, -1e-3, -30.0, -2000.0, f64::NEG_INFINITY][i % 5]).collect();
    x.push(Tensor::from_vec(gates, [b, t, h]));
    let op = || Box::new(GatedDeltaRule(DeltaRule { chunk: 32, scale: 1.0 })) as Box<dyn Op>;
    follows("closing gates", &op, &x, 2);
}
