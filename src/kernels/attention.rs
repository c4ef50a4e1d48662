//! The kernels of [`CausalAttention`], in memory linear in the length (Dao et al. 2022, arXiv 2205.14135).
//!
//! ```text
//! δ_t = do_t·o_t                       dx_ts = p_ts (do_t·v_s − δ_t)
//! dq_t = scale Σ_s dx_ts k_s           dk_s = scale Σ_t dx_ts q_t           dv_s = Σ_t p_ts do_t
//! ```
//!
//! A tile of queries sees its keys at once, so no more of the T × S scores is ever kept than one tile's. The backward
//! pass computes them again from lse. It is saved as two numbers, the largest score m_t and ln Σ_s exp(x_ts − m_t),
//! because a sum of the two would lose the digits of the second where scores are large. A score and the largest score
//! are computed in the same order, so their difference is never above 0.
//!
//! Gates add sums to the scores. The sum from a key to a query has two parts for keys before the query's tile: the
//! gates between the key and the tile, a sum that grows from tile to tile, and the gates from the tile's first query
//! on. Inside a tile each segment has a sum of its own. All terms have one sign, no sum is a difference, and sums of
//! many gates are doubles. Backwards, the gradients of the scores are added up over the keys, from the first: before
//! key u comes, the sum is over s < u, and dg_u is the total of these sums for the queries from u on.
//!
//! Where one weight is 1 and the others are almost 0, do·v_s equals δ_t up to rounding, and large q and k would amplify
//! the rounding: dx is 0 there.

mod flash;
mod side_by_side;
mod tiles;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        heads::{Heads, Schedule},
        math::Math,
    },
    ops::{attention::CausalAttention, heads::Dims},
    tensor::{Cx, Shape, Tensor},
    with_real,
};

/// Sizes: `d.t` queries and `s` keys.
#[derive(Clone, Copy)]
struct Plan<T> {
    d: Dims,
    s: usize,
    scale: T,
}

impl<T: Math> Plan<T> {
    fn keys(&self) -> Heads {
        Heads { t: self.s, ..self.d.keys() }
    }

    fn values(&self) -> Heads {
        Heads { t: self.s, ..self.d.values() }
    }

    fn gates(&self) -> Heads {
        Heads { t: self.s, ..self.d.scalars() }
    }

    /// The wider of keys and values. Narrow heads are computed side by side, others by matrix products.
    fn width(&self) -> usize {
        self.d.k.max(self.d.v)
    }

    /// The first query that sees key `s`.
    fn first(&self, s: usize) -> usize {
        (s + self.d.t).saturating_sub(self.s)
    }

    /// How many keys query `t` sees.
    fn seen(&self, t: usize) -> usize {
        self.s - self.d.t + t + 1
    }
}

/// Where there are gates, a smaller weight counts as 0. Gates make many tiny weights; their products have fewer digits,
/// and many processors take a hundred cycles more for each such number.
fn faint<T: Math>() -> T {
    T::of(if size_of::<T>() == 4 { 1e-30 } else { 1e-290 })
}

/// The inputs as slices.
struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    /// The logarithms of the gates, if there are any.
    g: Option<&'a [T]>,
}

impl<'a, T: Math> Inputs<'a, T> {
    fn of(x: &'a In) -> Inputs<'a, T> {
        Inputs { q: x[0].host(), k: x[1].host(), v: x[2].host(), g: (x.len() > 3).then(|| x[3].host()) }
    }
}

/// The results of the forward pass that the backward pass reads.
struct Outputs<'a, T> {
    o: &'a [T],
    /// The largest score of each query, and the logarithm of the sum.
    lse: [&'a [T]; 2],
    d_o: &'a [T],
}

impl CausalAttention {
    fn plan<T: Math>(&self, x: In) -> Plan<T> {
        let [q, k, v] = [0, 1, 2].map(|i| x[i].shape());
        let d = Dims { b: q.at(0), t: q.at(1), h: q.at(2), k: q.at(3), v: v.last() };
        Plan { d, s: k.at(1), scale: T::of(self.scale) }
    }
}

impl<const FUSED: bool> Kernel for Schedule<CausalAttention, FUSED> {
    fn name(&self) -> Option<&'static str> {
        Some(if FUSED { "causal_attention.side_by_side" } else { "causal_attention.tiles" })
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        let width = x[0].shape().last().max(x[2].shape().last());
        !FUSED || matches!(cx, Cx::Cpu(_)) && width <= side_by_side::WIDEST
    }

    fn saves(&self, x: In) -> Outs {
        let Dims { b, t, h, .. } = self.0.plan::<f64>(x).d;
        // The largest score of each query, and the logarithm of the sum.
        Shape::from([2 * b, h, t]).into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [o, lse] = y else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                let (plan, lse) = (self.0.plan::<T>(x), lse.host_mut::<T>());
                let run = match plan.width() {
                    _ if !FUSED => tiles::forward,
                    0..=4 => side_by_side::forward::<T, 4>,
                    _ => side_by_side::forward::<T, { side_by_side::WIDEST }>,
                };
                let lse = lse.split_at_mut(lse.len() / 2);
                run(cpu, plan, &Inputs::of(&x), o.host_mut(), lse);
            }),
            Cx::Cuda(cu) => flash::forward(cu, self.0.plan::<f64>(x), x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => if let [dq, dk, dv, dg @ ..] = dx {
                let (plan, lse) = (self.0.plan::<T>(x), y[1].host::<T>());
                let y = Outputs { o: y[0].host(), lse: lse.split_at(lse.len() / 2).into(), d_o: g.host() };
                let run = match plan.width() {
                    _ if !FUSED => tiles::backward,
                    0..=4 => side_by_side::backward::<T, 4>,
                    _ => side_by_side::backward::<T, { side_by_side::WIDEST }>,
                };
                let [dq, dk] = [dq.slot_or_scratch(cpu, &x[0]), dk.slot_or_scratch(cpu, &x[1])];
                let dg = dg.first_mut().map(|dg| dg.slot_or_scratch(cpu, &x[3]));
                run(cpu, plan, &Inputs::of(&x), &y, [dq, dk, dv.slot_or_scratch(cpu, &x[2])], dg);
            }),
            Cx::Cuda(cu) => flash::backward(cu, self.0.plan::<f64>(x), x, y, g, dx),
        }
    }
}
