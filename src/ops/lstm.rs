//! The LSTM's recurrence over a whole sequence (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000), as
//! torch's nn.LSTM computes it. x_t holds the input's share W_ih u_t + b_ih + b_hh, gates in the order i, f, g, o:
//!
//! ```text
//! (ĩ, f̃, g̃, õ) = x_t + W_hh h_{t-1};  i, f, o = σ(ĩ, f̃, õ);  g = tanh g̃
//! c_t = f c_{t-1} + i g;  h_t = o tanh c_t
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::heads::schedules,
    ops::{
        same_dtype,
        words::{over_time, split, token},
    },
    tensor::Tensor,
};

/// x [B, T, 4D] (gates i, f, g, o before the recurrent share), W_hh [4D, D], h0 and c0 [B, D] to h [B, T, D] and the
/// last h and c [B, D].
pub struct LstmSequence;

impl Op for LstmSequence {
    fn name(&self) -> &'static str {
        "lstm_sequence"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [v, w, h0, c0] = [0, 1, 2, 3].map(|i| x[i].shape());
        let [b, t, _] = v.array()?;
        let [d4, d] = w.array()?;
        if d4 != 4 * d || v.at(2) != d4 || h0 != [b, d].into() || c0 != h0 {
            return Err(format!(
                "x {v}, w_hh {w}, h0 {h0} and c0 {c0} do not fit: expected [B, T, 4D], [4D, D] and [B, D] twice"
            ));
        }
        same_dtype(self.name(), x)?;
        Ok([[b, t, d].into(), h0, h0].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _], w_hh, mut h, mut c) = (x[0].dims(), x[1], x[2], x[3]);
        let y = over_time(t, x[0].narrow(2, 0, w_hh.shape().at(1)), |t| {
            let [i, f, g, o] = split(token(x[0], t) + h.linear(w_hh, None)); // (ĩ, f̃, g̃, õ)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh(); // (i, f, o) (g) (c_t)
            h = o.sigmoid() * c.tanh(); // (h_t)
            h
        });
        Some(vec![y, h, c])
    }

    fn kernels(&self) -> Candidates<'_> {
        schedules(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, d) = (g.size(3), g.size(5), g.size(5));
        (LstmSequence, vec![g.normal([b, t, 4 * d]), g.normal([4 * d, d]), g.normal([b, d]), g.normal([b, d])])
    }
}

/// (h, h_last, c_last) of [`LstmSequence`]: x [B, T, 4D], w_hh [4D, D], h0 and c0 [B, D] to h [B, T, D] and the last h
/// and c [B, D] (h0 and c0 when T = 0).
#[track_caller]
pub fn lstm_sequence<'t>(x: Var<'t>, w_hh: Var<'t>, h0: Var<'t>, c0: Var<'t>) -> (Var<'t>, Var<'t>, Var<'t>) {
    let [h, h_last, c_last] = x.tape().apply_many(LstmSequence, [x, w_hh, h0, c0]);
    (h, h_last, c_last)
}
