//! The short causal convolution in front of Mamba, DeltaNet and mLSTM: each channel on its own, over time.
//!
//! y_t = b + Σⱼ w[:, j] ⊙ x_{t−W+1+j} for j in 0..W, so w[:, W−1] meets the current token. What comes before x_0 is
//! the state [B, W−1, D], the W−1 inputs before x: zeros at the start of a sequence.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::Tensor,
};

/// Depthwise causal convolution of x [B, T, D] with w [D, W] and state [B, W−1, D], and a bias `[D]` or none.
pub struct CausalConv1d;

impl Op for CausalConv1d {
    fn name(&self) -> &'static str {
        "causal_conv1d"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, w, state) = (x[0].shape(), x[1].shape(), x[2].shape());
        check_real(&x[0])?;
        let fail = |what: &str| Err(format!("{what} for x of shape {shape}, w {w}, state {state}"));
        let ([b, _, d], [dw, taps]) = (shape.array()?, w.array()?);
        if dw != d || taps == 0 {
            return fail("w is not [D, W] with W ≥ 1");
        }
        if state.dims() != [b, taps - 1, d] {
            return fail("state is not [B, W - 1, D]");
        }
        if x.len() > 3 && x[3].shape().dims() != [d] {
            return Err(format!("bias of shape {} for x of shape {shape}", x[3].shape()));
        }
        if (1..x.len()).any(|i| x[i].dtype() != x[0].dtype()) {
            return fail("dtypes differ");
        }
        Ok(shape.into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, d], [_, taps]) = (x[0].dims(), x[1].dims());
        let all = Var::concat(&[x[2], x[0]], 1);
        let y =
            (0..taps).map(|j| x[1].narrow(1, j, 1).reshape([d]) * all.narrow(1, j, t)).reduce(|y, term| y + term)?;
        Some(vec![x.get(3).map_or(y, |&b| y + b)])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, d, w) = (g.size(3), g.size(6), g.size(20), g.size(9));
        let mut x = vec![g.normal([b, t, d]), g.normal([d, w]), g.normal([b, w - 1, d])];
        if g.coin() {
            x.push(g.normal([d]));
        }
        (CausalConv1d, x)
    }
}

impl<'t> Var<'t> {
    /// Depthwise causal convolution of this [B, T, D] with w [D, W], a bias `[D]` or none, and the W−1 inputs before
    /// it, [B, W−1, D]: w[:, W−1] meets the current token.
    #[track_caller]
    pub fn causal_conv1d(self, w: Var<'t>, b: Option<Var<'t>>, state: Var<'t>) -> Var<'t> {
        match b {
            Some(b) => self.tape().apply(CausalConv1d, [self, w, state, b]),
            None => self.tape().apply(CausalConv1d, [self, w, state]),
        }
    }
}
