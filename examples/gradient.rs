//! The engine alone: values on a tape, a gradient, a check of it, and a line fitted by gradient descent.
//!
//! cargo run --release --example gradient

use tapezoo::{
    autograd::{Gen, Tape, Var, gradcheck},
    tensor::Tensor,
};

/// A neuron: o = tanh(x₁ w₁ + x₂ w₂ + b).
fn neuron<'t>(v: &[Var<'t>]) -> Var<'t> {
    (v[0] * v[1] + v[2] * v[3] + v[4]).tanh()
}

fn number(x: f64) -> Tensor {
    Tensor::from_vec(vec![x], [1])
}

fn main() {
    // Forward: each op is computed at once, and recorded. Backward: the record is walked in reverse. The numbers are
    // those of Karpathy's lecture on micrograd.
    let mut tape = Tape::default();
    let inputs = [2.0, -3.0, 0.0, 1.0, 6.881_373_587_019_543].map(number);
    let leaves = inputs.each_ref().map(|x| tape.leaf(x));
    let o = neuron(&leaves);
    tape.backward(o);
    println!("o = {:.4}, of {} recorded ops", o.value().item(), tape.len());
    for (name, v) in ["x1", "w1", "x2", "w2", "b"].iter().zip(leaves) {
        println!("∂o/∂{name:<2} = {:>7.4}", v.grad().map_or(0.0, |g| g.item()));
    }

    // The same gradient by finite differences, in random directions.
    let error = gradcheck(|_, v| vec![neuron(v)], &inputs, 0, 4);
    println!("relative to finite differences, it is off by {error:.0e}\n");
    assert!(error < 1e-6);

    // y = 3 x − 1 from 64 points: a loss, its gradient, a step down; and the tape is used again.
    let (mut w, mut b) = (0.0, 0.0);
    let x = Gen::new(0).normal([64]);
    for step in 0..=60 {
        tape.reset();
        let (x, leaf_w, leaf_b) = (tape.constant(&x), tape.leaf(&number(w)), tape.leaf(&number(b)));
        let loss = (x * leaf_w + leaf_b - (3.0 * x - 1.0)).square().mean_axis(0, false);
        tape.backward(loss);
        if step % 20 == 0 {
            println!("step {step:>2}: y = {w:.3} x {b:+.3}, loss {:.1e}", loss.value().item());
        }
        let slope = |v: Var| v.grad().map_or(0.0, |g| g.item());
        w -= 0.1 * slope(leaf_w);
        b -= 0.1 * slope(leaf_b);
    }
}
