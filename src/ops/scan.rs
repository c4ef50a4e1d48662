//! The first-order linear recurrence, channel by channel.
//!
//! ```text
//! h_t = a_t h_{t-1} + b_t
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        same_dtype, some_steps,
        words::{over_time, token},
    },
    tensor::Tensor,
};

pub use super::{
    lru_scan::{LruScan, lru_scan, lru_scan_joined},
    scan_parallel::{linear_scan_parallel, lru_scan_parallel},
};

/// h_t = a_t h_{t-1} + b_t: a, b [B, T, D] and h0 [B, D] to h [B, T, D] and the last state [B, D]. Any a, negative
/// ones too.
pub struct LinearScan {
    /// Steps of a chunk, on which no result depends: a CPU goes through all steps, a device through groups of its own.
    pub chunk: usize,
}

impl Op for LinearScan {
    fn name(&self) -> &'static str {
        "linear_scan"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (a, b, h0) = (x[0].shape(), x[1].shape(), x[2].shape());
        let [n, _, d] = a.array()?;
        if b != a || h0 != [n, d].into() {
            return Err(format!("a {a}, b {b} and h0 {h0} do not fit: expected [B, T, D] twice and [B, D]"));
        }
        same_dtype(self.name(), x).and(some_steps(self.chunk))?;
        Ok([a, h0].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _], mut h) = (x[0].dims(), x[2]);
        let all = over_time(t, x[0], |t| {
            h = token(x[0], t) * h + token(x[1], t); // (h_t)
            h
        });
        Some(vec![all, h])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let shape = g.shape(3, 7);
        let h0 = [shape.at(0), shape.at(2)];
        (LinearScan { chunk: g.size(5) }, vec![g.range(shape, -1.2, 1.2), g.normal(shape), g.normal(h0)])
    }
}

/// h_t = a_t h_{t-1} + b_t by [`LinearScan`]: a, b [B, T, D], h0 [B, D] to all states [B, T, D] and the last [B, D]
/// (h0 when T = 0).
#[track_caller]
pub fn linear_scan<'t>(a: Var<'t>, b: Var<'t>, h0: Var<'t>, chunk: usize) -> (Var<'t>, Var<'t>) {
    let [h, last] = a.tape().apply_many(LinearScan { chunk }, [a, b, h0]);
    (h, last)
}
