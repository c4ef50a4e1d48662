//! Is the gradient right? ⟨u, J v⟩ by finite differences against ⟨Jᵀ u, v⟩ by backprop.

use super::{Gen, Tape, Var};
use crate::tensor::{DType, Device, Tensor};

/// The worst relative error over `directions` random directions v and cotangents u, in `f64`.
///
/// A five-point stencil: four evaluations for each step size, of which each direction tries up to four, whatever the
/// number of inputs. The cotangent is random so that ops whose outputs sum to a constant (softmax) are tested too. `f`
/// may return several values; integer inputs are held fixed. NaN in a gradient, or in the values at every step size,
/// gives an infinite error.
pub fn gradcheck<F>(f: F, inputs: &[Tensor], seed: u64, directions: usize) -> f64
where
    F: for<'t> Fn(&'t Tape, &[Var<'t>]) -> Vec<Var<'t>>,
{
    gradcheck_on(Device::Cpu, f, inputs, seed, directions)
}

/// The same with all values and gradients computed on `device`.
pub fn gradcheck_on<F>(device: Device, f: F, inputs: &[Tensor], seed: u64, directions: usize) -> f64
where
    F: for<'t> Fn(&'t Tape, &[Var<'t>]) -> Vec<Var<'t>>,
{
    let mut g = Gen::new(seed);
    let mut worst: f64 = 0.0;
    for _ in 0..directions {
        let tape = Tape::new(device);
        tape.poison(true);
        let x = leaves(&tape, inputs);
        let y = f(&tape, &x);
        let u: Vec<Tensor> = y.iter().map(|y| g.normal(y.shape())).collect();
        tape.backward_from(y.iter().copied().zip(u.iter().cloned()));
        let v: Vec<Tensor> = inputs.iter().map(|x| g.normal(x.shape())).collect();
        let exact: f64 = x.iter().zip(&v).map(|(x, v)| x.grad().map_or(0.0, |g| dot(&g, v))).sum();

        let value = |h: f64| -> f64 {
            let tape = Tape::new(device);
            let moved: Vec<Tensor> = inputs.iter().zip(&v).map(|(x, v)| moved(x, v, h)).collect();
            let y = f(&tape, &leaves(&tape, &moved));
            y.iter().zip(&u).map(|(y, u)| dot(&y.value(), u)).sum()
        };
        // Relative to what the sum over elements would be, had it not cancelled by chance.
        let typical =
            |x: &Var, v: &Tensor| x.grad().map_or(0.0, |g| norm(&g) * norm(v) / (g.len().max(1) as f64).sqrt());
        let size: f64 = x.iter().zip(&v).map(|(x, v)| typical(x, v)).sum();
        // A wrong gradient is wrong at every step size; a right one agrees where neither curvature nor rounding wins.
        let error = |h: f64| {
            let numeric = (8.0 * (value(h) - value(-h)) - (value(2.0 * h) - value(-2.0 * h))) / (12.0 * h);
            let error = (numeric - exact).abs() / numeric.abs().max(exact.abs()).max(size).max(1e-6);
            if error.is_nan() { f64::INFINITY } else { error }
        };
        let mut best = error(1e-4);
        for h in [1e-5, 1e-6, 1e-7] {
            if best > 1e-8 {
                best = best.min(error(h));
            }
        }
        worst = worst.max(best);
    }
    worst
}

fn leaves<'t>(tape: &'t Tape, x: &[Tensor]) -> Vec<Var<'t>> {
    x.iter().map(|x| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(x) }).collect()
}

fn moved(x: &Tensor, v: &Tensor, h: f64) -> Tensor {
    if x.dtype() == DType::I32 {
        return x.clone();
    }
    Tensor::from_vec(x.to_f64().iter().zip(v.to_f64()).map(|(x, v)| x + h * v).collect(), x.shape())
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum()
}

fn norm(a: &Tensor) -> f64 {
    dot(a, a).sqrt()
}
