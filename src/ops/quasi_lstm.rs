//! The quasi-LSTM: an LSTM whose gates see the input alone, so that only c is recurrent, and linearly (Bradbury et al.
//! 2017, "Quasi-Recurrent Neural Networks", ifo-pooling; in this form in the Languini baselines). Gates in the order f,
//! i, z, o:
//!
//! ```text
//! f = σ(x_f + forget_bias);  i = σ(x_i);  z = tanh(x_z);  o = σ(x_o)
//! c_t = f c_{t-1} + i z;  h_t = o tanh c_t
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        same_dtype, some_steps,
        words::{over_time, split, token},
    },
    tensor::Tensor,
};

/// x [B, T, 4D] (gates f, i, z, o before their nonlinearities) and c0 [B, D] to h [B, T, D] and the last c [B, D].
pub struct QuasiLstm {
    /// Steps of a chunk, on which no result depends: a CPU goes through all steps, a device through groups of its own.
    pub chunk: usize,
    /// Added to x_f: 1 makes a fresh model remember.
    pub forget_bias: f64,
}

impl Op for QuasiLstm {
    fn name(&self) -> &'static str {
        "quasi_lstm"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [v, c0] = [0, 1].map(|i| x[i].shape());
        let [b, t, d4] = v.array()?;
        if d4 % 4 != 0 || c0 != [b, d4 / 4].into() {
            return Err(format!("x {v} and c0 {c0} do not fit: expected [B, T, 4D] and [B, D]"));
        }
        same_dtype(self.name(), x).and(some_steps(self.chunk))?;
        Ok([[b, t, d4 / 4].into(), c0].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, d4], mut c) = (x[0].dims(), x[1]);
        let h = over_time(t, x[0].narrow(2, 0, d4 / 4), |t| {
            let [f, i, z, o] = split(token(x[0], t));
            c = (f + self.forget_bias).sigmoid() * c + i.sigmoid() * z.tanh(); // (f) (i) (z) (c_t)
            o.sigmoid() * c.tanh() // (o) (h_t)
        });
        Some(vec![h, c])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, d) = (g.size(3), g.size(7), g.size(5));
        let op = QuasiLstm { chunk: g.size(5), forget_bias: g.uniform(-1.0, 1.0) };
        (op, vec![g.normal([b, t, 4 * d]), g.normal([b, d])])
    }
}

/// (h, c_last) of [`QuasiLstm`]: x [B, T, 4D], c0 [B, D] to h [B, T, D] and the last c [B, D] (c0 when T = 0).
#[track_caller]
pub fn quasi_lstm<'t>(x: Var<'t>, c0: Var<'t>, forget_bias: f64, chunk: usize) -> (Var<'t>, Var<'t>) {
    let [h, last] = x.tape().apply_many(QuasiLstm { chunk, forget_bias }, [x, c0]);
    (h, last)
}
