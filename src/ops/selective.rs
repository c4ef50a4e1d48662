//! The selective scan of Mamba (Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
//! algorithm 2). Channel e has a state of N elements; step size Δ, input map b and output map c depend on the input:
//!
//! ```text
//! ā_t = s exp(Δ_t a) − (s − 1)      h_t = ā_t h_{t-1} + Δ_t b_t u_t      y_t = Σ_n c_t h_t
//! ```
//!
//! s = 1 is Mamba. s = 2 stretches the transitions from (0, 1) to (−1, 1): the state can then change its sign, as state
//! tracking needs (Grazzi et al. 2025, "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues").
//!
//! A rate a of −∞ counts as −[`fastest`]: a step of length 0 keeps the state, any other forgets it.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        elementwise::fastest,
        same_dtype, some_steps,
        words::{insert_axis, maximum, over_time, token},
    },
    tensor::Tensor,
};

/// u and Δ > 0 [B, T, E], a [E, N], b and c [B, T, N], h0 [B, E, N] to y [B, T, E] and the last state [B, E, N].
pub struct SelectiveScan {
    /// Steps between the states that are kept for the backward pass.
    pub chunk: usize,
    /// ā = s exp(Δ a) − (s − 1): 1 for transitions in (0, 1), 2 for (−1, 1).
    pub s: f64,
}

impl Op for SelectiveScan {
    fn name(&self) -> &'static str {
        "selective_scan"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [u, delta, a, b, c, h0] = std::array::from_fn(|i| x[i].shape());
        let [batch, t, e] = u.array()?;
        let [_, n] = a.array()?;
        let fits =
            delta == u && a == [e, n].into() && b == [batch, t, n].into() && c == b && h0 == [batch, e, n].into();
        if !fits {
            return Err(format!(
                "u {u}, Δ {delta}, a {a}, b {b}, c {c} and h0 {h0} do not fit: expected [B, T, E] twice, [E, N], \
                 [B, T, N] twice and [B, E, N]"
            ));
        }
        same_dtype(self.name(), x).and(some_steps(self.chunk))?;
        Ok([u, h0].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _], a, mut h) = (x[0].dims(), x[2].cast(x[0].dtype()), x[5]);
        let a = bounded(a);
        let y = over_time(t, x[0], |t| {
            let [u, dt, b, c] = [0, 1, 3, 4].map(|i| token(x[i], t));
            let transition = self.s * (insert_axis(dt, 2) * a).exp() - (self.s - 1.0); // (ā_t) [B, E, N]
            h = transition * h + insert_axis(dt * u, 2) * insert_axis(b, 1); // (h_t)
            (h * insert_axis(c, 1)).sum_axis(2, false) // (y_t)
        });
        Some(vec![y, h])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (batch, t, e, n) = (g.size(3), g.size(7), g.size(20), g.size(4));
        let op = SelectiveScan { chunk: g.size(5), s: if g.coin() { 1.0 } else { 2.0 } };
        let (row, state) = ([batch, t, e], [batch, t, n]);
        let scan = vec![g.normal(row), g.range(row, 0.1, 1.0), g.range([e, n], -2.0, -0.1)];
        let rest = vec![g.normal(state), g.normal(state), g.normal([batch, e, n])];
        (op, scan.into_iter().chain(rest).collect())
    }
}

/// A rate with −[`fastest`] in place of −∞, since −∞ times a step of length 0 is NaN.
#[track_caller]
pub fn bounded(a: Var<'_>) -> Var<'_> {
    maximum(&[a, a.tape().full(a.shape(), a.dtype(), -fastest(a.dtype()))])
}

/// [`SelectiveScan`]: u, Δ [B, T, E], a [E, N], b, c [B, T, N], h0 [B, E, N] to y [B, T, E] and the last h [B, E, N],
/// which is h0 when T = 0. Softplus, the skip D u and the gate are the caller's.
#[track_caller]
pub fn selective_scan<'t>(
    u: Var<'t>,
    delta: Var<'t>,
    a: Var<'t>,
    b: Var<'t>,
    c: Var<'t>,
    h0: Var<'t>,
    s: f64,
    chunk: usize,
) -> (Var<'t>, Var<'t>) {
    let op = SelectiveScan { chunk, s };
    let [y, last] = u.tape().apply_many(op, [u, delta, a, b, c, h0]);
    (y, last)
}
