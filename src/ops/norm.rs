//! Normalisation of rows, the last axis, of n entries.
//!
//! - layer norm (Ba et al., 2016): y = x̂ w + b with x̂ = (x − mean x) r, r = 1 / √(var x + ε), var divided by n
//! - RMS norm (Zhang and Sennrich, 2019): y = x̂ w with x̂ = x r, r = 1 / √(mean x² + ε)
//! - L2 norm: y = x r with r = 1 / max(‖x‖, ε), or r = 1 / √(‖x‖² + ε) where it must be smooth

mod l2;

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, words::maximum},
    tensor::Tensor,
};

pub use l2::L2Norm;

/// Layer norm of x with weight w and, as third input, a bias or none.
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

/// RMS norm of x with weight w.
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f64,
}

fn norm_infer(x: In) -> Result<Outs, String> {
    let shape = x[0].shape();
    check_real(&x[0])?;
    if shape.rank() == 0 {
        return Err("needs one axis at least, got a scalar".into());
    }
    for i in 1..x.len() {
        let (name, w) = (["weight", "bias"][i - 1], &x[i]);
        if w.shape().dims() != [shape.last()] {
            return Err(format!("{name} of shape {} for rows of shape {shape}", w.shape()));
        }
        if w.dtype() != x[0].dtype() {
            return Err(format!("{name} is {}, the rows are {}", w.dtype(), x[0].dtype()));
        }
    }
    Ok(shape.into())
}

fn norm_sample(g: &mut Gen, inputs: usize) -> Vec<Tensor> {
    let rank = g.below(3) + 1;
    let shape = g.shape(rank, 20);
    let shape = if g.coin() { shape.with(rank - 1, 4) } else { shape };
    let x = g.normal(shape);
    std::iter::once(x).chain((1..inputs).map(|_| g.normal([shape.last()]))).collect()
}

macro_rules! norm {
    ($Op:ident, $name:literal, centre: $centre:literal, inputs: |$g:ident| $inputs:expr) => {
        impl Op for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
                norm_infer(x)
            }

            fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
                let axis = x[0].shape().rank() - 1;
                let centred = if $centre { x[0] - x[0].mean_axis(axis, true) } else { x[0] };
                let y = centred / (centred.square().mean_axis(axis, true) + self.eps).sqrt() * x[1];
                Some(vec![x.get(2).map_or(y, |&b| y + b)])
            }

            fn kernels(&self) -> Candidates<'_> {
                self.into()
            }

            fn sample($g: &mut Gen) -> (Self, Vec<Tensor>) {
                // A large eps, since rows of one or two entries may have next to no variance.
                let eps = $g.uniform(0.1, 0.5);
                let inputs = $inputs;
                ($Op { eps }, norm_sample($g, inputs))
            }
        }
    };
}

norm!(LayerNorm, "layer_norm", centre: true, inputs: |g| if g.coin() { 2 } else { 3 });

norm!(RmsNorm, "rms_norm", centre: false, inputs: |g| 2);

impl<'t> Var<'t> {
    /// Layer norm over the last axis: (x − mean) / √(var + eps) w (+ b).
    #[track_caller]
    pub fn layer_norm(self, w: Var<'t>, b: Option<Var<'t>>, eps: f64) -> Var<'t> {
        match b {
            Some(b) => self.tape().apply(LayerNorm { eps }, [self, w, b]),
            None => self.tape().apply(LayerNorm { eps }, [self, w]),
        }
    }

    /// RMS norm over the last axis: x / √(mean x² + eps) w.
    #[track_caller]
    pub fn rms_norm(self, w: Var<'t>, eps: f64) -> Var<'t> {
        self.tape().apply(RmsNorm { eps }, [self, w])
    }

    /// x / max(‖x‖, eps) over the last axis.
    #[track_caller]
    pub fn l2_norm(self, eps: f64) -> Var<'t> {
        self.tape().apply(L2Norm { eps, smooth: false }, [self])
    }

    /// x / √(Σ x² + eps) over the last axis.
    #[track_caller]
    pub fn l2_norm_smooth(self, eps: f64) -> Var<'t> {
        self.tape().apply(L2Norm { eps, smooth: true }, [self])
    }
}

/// The layer norm of each head, with weights of its own, and its slope.
#[derive(Clone, Copy)]
pub struct HeadNorm<'t> {
    /// Weight [H, K]
    pub w: Var<'t>,
    /// Bias [H, K]
    pub b: Var<'t>,
    /// ε
    pub eps: f64,
}

impl<'t> HeadNorm<'t> {
    /// x [B, H, T, K] normalised, and the root that it was divided by.
    fn parts(&self, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        let x = x - x.mean_axis(3, true);
        // Single precision holds no squares of large and of tiny numbers: a row is divided by its largest number, or by
        // √eps if that is larger. As the mean is 0, no magnitude is more than K − 1 times the largest number.
        let (most, least) = (x.tape().detached(x).max_axis(3, true), self.eps.sqrt());
        let least = x.tape().full(most.shape(), x.dtype(), least.max(f64::from(f32::MIN_POSITIVE)));
        let part = 1.0 / maximum(&[most, least]);
        let root = ((x * part).square().mean_axis(3, true) + (self.eps.sqrt() * part).square()).sqrt() / part;
        (x / root, root)
    }

    fn rows(&self) -> [Var<'t>; 2] {
        let [h, k] = self.w.dims();
        [self.w, self.b].map(|x| x.reshape([h, 1, k]))
    }

    /// LN(x) of x [B, H, T, K].
    pub fn apply(&self, x: Var<'t>) -> Var<'t> {
        let [w, b] = self.rows();
        w * self.parts(x).0 + b
    }

    /// ∂/∂z ½ ‖LN(z) − target‖² times a factor, [B, H, T, K].
    pub fn slope(&self, z: Var<'t>, target: Var<'t>, factor: Var<'t>) -> Var<'t> {
        let ((z, root), [w, b]) = (self.parts(z), self.rows());
        let e = w * (w * z + b - target);
        factor * (e - e.mean_axis(3, true) - z * (e * z).mean_axis(3, true)) / root
    }
}

impl<'t> Var<'t> {
    /// RMS norm of each of several groups of equal size that the last axis holds, with one weight for each element.
    #[track_caller]
    pub fn rms_norm_in_groups(self, groups: usize, w: Var<'t>, eps: f64) -> Var<'t> {
        if groups == 1 {
            return self.rms_norm(w, eps);
        }
        let (shape, size) = (self.shape(), self.shape().last() / groups);
        let rows = self.reshape([self.shape().rows() * groups, size]);
        rows.rms_norm(self.tape().full([size], self.dtype(), 1.0), eps).reshape(shape) * w
    }
}
