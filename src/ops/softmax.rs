//! Softmax over the last axis: yᵢ = e^(xᵢ − m) / Σⱼ e^(xⱼ − m) with m = max x, so that nothing overflows; and
//! the causal one of attention, where row i sees columns j ≤ i + offset.
//!
//! With g the cotangent of y: dxᵢ = yᵢ (gᵢ − Σⱼ gⱼ yⱼ).
//!
//! An entry of −∞, and one that is hidden, has no weight: y is 0 there, and so is its gradient. The kernels do not look
//! at its cotangent, which the formula needs finite. A row of nothing but −∞, or with an entry of +∞, has no softmax: NaN.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::Tensor,
};

/// Softmax over the last axis.
pub struct Softmax;

/// Softmax of scores [.., T, S] in which row i sees columns 0..=i + `offset`; the others are exactly 0.
pub struct CausalSoftmax {
    /// How many columns before the first belong to the past of row 0.
    pub offset: usize,
}

fn sample_rows(g: &mut Gen) -> Tensor {
    let rank = g.below(3) + 1;
    let shape = g.shape(rank, 20);
    g.normal(shape)
}

fn same_shape(x: &Tensor, axes: usize) -> Result<Outs, String> {
    check_real(x)?;
    if x.shape().rank() < axes {
        return Err(format!("needs a shape of {axes} or more axes, got {}", x.shape()));
    }
    Ok(x.shape().into())
}

/// x − max x over the last axis, such that no exponential overflows.
fn shifted(x: Var<'_>) -> Var<'_> {
    x - x.max_axis(x.shape().rank().saturating_sub(1), true)
}

/// The formula of [`Softmax`].
fn normalised(x: Var<'_>) -> Var<'_> {
    let e = shifted(x).exp();
    e / e.sum_axis(x.shape().rank() - 1, true)
}

/// The formula of [`CausalSoftmax`]: a hidden entry becomes −∞ whatever it is.
fn causal(offset: usize, x: Var<'_>) -> Var<'_> {
    let (t, s) = (x.shape().at(-2), x.shape().at(-1));
    let hidden = |i: usize| if i % s > i / s + offset { f64::NEG_INFINITY } else { 0.0 };
    let mask = Tensor::from_vec((0..t * s).map(hidden).collect::<Vec<_>>(), [t, s]).cast(x.dtype());
    normalised(x.tril(offset as isize) + x.tape().constant(&mask))
}

macro_rules! softmax {
    ($Op:ident $name:literal, axes: $axes:literal, formula: $formula:expr, sample: $sample:expr) => {
        impl Op for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
                same_shape(&x[0], $axes)
            }

            fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
                let formula: for<'a> fn(&$Op, Var<'a>) -> Var<'a> = $formula;
                Some(vec![formula(self, x[0])])
            }

            fn kernels(&self) -> Candidates<'_> {
                self.into()
            }

            fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
                let sample: fn(&mut Gen) -> ($Op, Tensor) = $sample;
                let (op, x) = sample(g);
                (op, vec![x])
            }
        }
    };
}

softmax!(Softmax "softmax", axes: 1, formula: |_, x| normalised(x), sample: |g| (Softmax, sample_rows(g)));

softmax!(CausalSoftmax "causal_softmax", axes: 2, formula: |op, x| causal(op.offset, x), sample: |g| {
    let rank = g.below(2) + 2;
    let shape = g.shape(rank, 20);
    (CausalSoftmax { offset: g.below(4) }, g.normal(shape))
});

impl<'t> Var<'t> {
    /// Softmax over the last axis.
    #[track_caller]
    pub fn softmax(self) -> Var<'t> {
        self.tape().apply(Softmax, [self])
    }

    /// ln softmax over the last axis: x − ln Σ eˣ.
    #[track_caller]
    pub fn log_softmax(self) -> Var<'t> {
        let z = shifted(self);
        z - z.exp().sum_axis(z.shape().rank() - 1, true).log()
    }

    /// Softmax of scores [.., T, S] over the columns j ≤ i + `offset` of each row i; the others are exactly 0.
    #[track_caller]
    pub fn causal_softmax(self, offset: usize) -> Var<'t> {
        self.tape().apply(CausalSoftmax { offset }, [self])
    }
}
