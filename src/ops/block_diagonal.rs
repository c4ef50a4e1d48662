//! y_g = W_g x_g + b_g: products with a block-diagonal matrix of small blocks.
//!
//! The outputs of a block may be of several kinds, as the sLSTM's gates are; each kind is then written together.
//! Further x, with matrices of their own, give further kinds.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::{Shape, Tensor},
};

/// x [.., G, I] and W [G, P O, I], N times, and, if `bias`, b [N P, G, O] → y [.., N P, G, O].
pub struct BlockDiagonal {
    /// P: how many kinds of outputs each x gives.
    pub parts: usize,
    /// Whether there is a last input, b.
    pub bias: bool,
}

impl Op for BlockDiagonal {
    fn name(&self) -> &'static str {
        "block_diagonal"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let (xs, dtype) = (x.len() / 2, x[0].dtype());
        for i in 0..xs {
            let (v, m) = (&x[2 * i], &x[2 * i + 1]);
            let (s, w) = (v.shape(), m.shape());
            let fits = s.rank() >= 2 && w.rank() == 3 && w.at(2) == s.last() && w.at(0) == s.at(-2);
            if !fits || v.dtype() != dtype || m.dtype() != dtype {
                let (a, b) = (v.dtype(), m.dtype());
                return Err(format!("x {s} of {a} and w {w} of {b} do not fit [.., G, I] and [G, O, I]"));
            }
            if self.parts == 0 || !w.at(1).is_multiple_of(self.parts) {
                return Err(format!("w {w}: {} outputs of a block do not make {} parts", w.at(1), self.parts));
            }
            let (s0, w0) = (x[0].shape(), x[1].shape());
            if s.dims()[..s.rank() - 1] != s0.dims()[..s0.rank() - 1] || w.at(1) != w0.at(1) {
                return Err(format!("x {s} with w {w} beside x {s0} with w {w0}: expected as many rows and outputs"));
            }
        }
        let (s, w) = (x[0].shape(), x[1].shape());
        let last = [xs * self.parts, w.at(0), w.at(1) / self.parts];
        if self.bias && (x[2 * xs].shape().dims() != last || x[2 * xs].dtype() != dtype) {
            let (b, of) = (x[2 * xs].shape(), x[2 * xs].dtype());
            return Err(format!("bias {b} of {of} should be {last:?} for w {w}"));
        }
        Ok(Shape::new(&[&s.dims()[..s.rank() - 2], &last].concat()).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let (pairs, b) = x.split_at(x.len() / 2 * 2);
        let (shape, rank) = (x[0].shape(), x[0].shape().rank());
        let (g, i, rows) = (shape.at(-2), shape.at(-1), shape.dims()[..rank - 2].iter().product());
        let (p, o) = (self.parts, x[1].shape().at(1) / self.parts);
        // [R, P, G, O] of each x and its W.
        let products = pairs.chunks_exact(2).map(|pair| {
            let blocks = pair[0].reshape([rows, g, i]).permute([1, 0, 2]).matmul_t(pair[1]);
            blocks.reshape([g, rows, p, o]).permute([1, 2, 0, 3])
        });
        let y = Var::concat(&products.collect::<Vec<_>>(), 1);
        let y = b.first().map_or(y, |&b| (y.cast(b.dtype()) + b).cast(y.dtype()));
        Some(vec![y.reshape(&[&shape.dims()[..rank - 2], &y.shape().dims()[1..]].concat()[..])])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (outer, bias, xs) = (g.shape(2, 4), g.coin(), g.below(2) + 1);
        let (groups, parts, o, i) =
            if g.coin() { (4 * g.size(12), 1, 4, 4) } else { (g.size(4), g.size(3), g.size(5), g.size(5)) };
        let mut x = vec![];
        for _ in 0..xs {
            x.extend([g.normal([outer.at(0), outer.at(1), groups, i]), g.normal([groups, parts * o, i])]);
        }
        x.extend(bias.then(|| g.normal([xs * parts, groups, o])));
        (BlockDiagonal { parts, bias }, x)
    }
}

/// y_g = W_g x_g (+ b_g), the outputs of each block in P parts: N times x [.., G, I] and W [G, P O, I], bias
/// [N P, G, O], to [.., N P, G, O].
///
/// # Panics
/// Without an x, and where shapes do not fit.
#[track_caller]
pub fn block_diagonal<'t>(x: &[(Var<'t>, Var<'t>)], parts: usize, bias: Option<Var<'t>>) -> Var<'t> {
    let inputs: Vec<_> = x.iter().flat_map(|&(x, w)| [x, w]).chain(bias).collect();
    inputs[0].tape().apply_dyn(Box::new(BlockDiagonal { parts, bias: bias.is_some() }), &inputs)[0]
}
