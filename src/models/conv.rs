//! The short causal convolutions in front of several mixers. Each remembers the inputs before a token.

use super::{
    Bound, Init, ModelConfig, P, State,
    maps::{SMALL_GAIN, xavier},
};
use crate::{
    autograd::{Gen, Var},
    tensor::Shape,
};

/// The last W − 1 inputs [B, W − 1, D] of a convolution after x [B, T, D]; `past` holds the W − 1 inputs before x.
#[track_caller]
pub fn remembered<'t>(past: Var<'t>, x: Var<'t>) -> Var<'t> {
    let ([_, window, _], [_, t, _]) = (past.dims(), x.dims());
    if t >= window { x.narrow(1, t - window, window) } else { Var::concat(&[past, x], 1).narrow(1, t, window) }
}

/// A causal convolution and SiLU, or SiLU alone.
pub struct Conv {
    filter: Option<(P, Option<P>)>, // [D, W] and its bias
    channels: usize,                // D
    past: usize,                    // W − 1
}

impl Conv {
    /// Filters of this width, none if it is 0, and, if `bias` is its name, a bias, as torch's `nn.Conv1d` draws them.
    pub fn new(init: &mut Init, name: &str, bias: Option<&str>, channels: usize, width: usize) -> Conv {
        let bound = (width.max(1) as f64).powf(-0.5);
        let draw = |g: &mut Gen, _| g.uniform(-bound, bound);
        let filter = (width > 0).then(|| {
            let w = init.custom(name, [channels, width], draw);
            (w, bias.map(|bias| init.custom(bias, [channels], draw)))
        });
        Conv { filter, channels, past: width.saturating_sub(1) }
    }

    /// Whether there are filters.
    pub fn exists(&self) -> bool {
        self.filter.is_some()
    }

    /// conv(x) of x [B, T, D] behind the past inputs; x itself without filters.
    #[track_caller]
    pub fn filtered<'t>(&self, p: &Bound<'t>, x: Var<'t>, past: Option<Var<'t>>) -> Var<'t> {
        // A `match`, because `#[track_caller]` does not pass through a closure.
        match self.filter.zip(past) {
            Some(((w, bias), past)) => x.causal_conv1d(p[w], bias.map(|b| p[b]), past),
            None => x,
        }
    }

    /// Puts x into the past inputs, entry `at` of the state, and gives those before it; none without filters.
    #[track_caller]
    pub fn remember<'t>(&self, x: Var<'t>, state: &mut State<'t>, at: usize) -> Option<Var<'t>> {
        self.filter.map(|_| {
            let past = state.s[at];
            state.s[at] = remembered(past, x);
            past
        })
    }

    /// SiLU(conv(x)) of x [B, T, D]; the past inputs move on.
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, at: usize) -> Var<'t> {
        let past = self.remember(x, state, at);
        self.filtered(p, x, past).silu()
    }

    /// The past inputs as an entry of the state, if there are filters.
    pub fn window(&self, name: &'static str, b: usize) -> Option<(&'static str, Shape)> {
        self.exists().then(|| (name, [b, self.past, self.channels].into()))
    }
}

/// N convolutions of the same input, without SiLU.
pub struct Convs<const N: usize>([Conv; N]);

impl<const N: usize> Convs<N> {
    /// As [`Conv::new`], each with a bias whose name has `_bias` behind it.
    pub fn new(init: &mut Init, names: [&str; N], channels: usize, width: usize) -> Convs<N> {
        Convs(names.map(|name| Conv::new(init, name, Some(&format!("{name}_bias")), channels, width)))
    }

    /// The convolutions of x [B, T, D]; the past inputs, entry `at` of the state, move on.
    #[track_caller]
    pub fn filtered<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, at: usize) -> [Var<'t>; N] {
        let past = self.0.first().and_then(|conv| conv.remember(x, state, at));
        self.0.each_ref().map(|conv| conv.filtered(p, x, past))
    }

    /// The past inputs as an entry of the state, if there are filters.
    pub fn window(&self, name: &'static str, b: usize) -> Option<(&'static str, Shape)> {
        self.0.first().and_then(|conv| conv.window(name, b))
    }
}

/// A linear map, its short convolution (if any) and SiLU, as DeltaNet and its kin make q, k and v.
pub struct Projection {
    w: P,
    conv: Conv,
}

impl Projection {
    /// `parts` matrices [H K, D], stacked.
    pub fn new(name: &str, parts: usize, c: &ModelConfig, init: &mut Init) -> Projection {
        let out = parts * c.inner();
        Projection {
            w: init.uniform(&format!("w_{name}"), [out, c.width], xavier(c.inner(), c.width, SMALL_GAIN)),
            conv: Conv::new(init, &format!("conv_{name}"), None, out, c.conv),
        }
    }

    /// x [B, T, D] to [B, T, out]; updates the convolution's window [B, W − 1, out], entry `at` of the state.
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, at: usize) -> Var<'t> {
        self.conv.apply(p, x.linear(p[self.w], None), state, at)
    }

    /// The windows of the convolutions for q, k and v, if there are any: entries of the state.
    pub fn windows<'a>(
        qkv: impl IntoIterator<Item = &'a Projection>,
        b: usize,
    ) -> impl Iterator<Item = (&'static str, Shape)> {
        let names = ["past q", "past k", "past v"];
        names.into_iter().zip(qkv).filter_map(move |(name, x)| x.conv.window(name, b))
    }
}

/// N mixtures of each token with the one before it: x_t + μ ⊙ (x_{t−1} − x_t).
pub struct TokenShift<const N: usize> {
    mu: [P; N],
    width: usize, // D
}

impl<const N: usize> TokenShift<N> {
    /// Each μ `[D]` has a name, and falls over the channels from 1 as 1 − (i / D)^power.
    pub fn new(init: &mut Init, width: usize, powers: [(&str, f64); N]) -> TokenShift<N> {
        let mu = |i: usize, power| 1.0 - (i as f64 / width as f64).powf(power);
        TokenShift { mu: powers.map(|(name, power)| init.custom(name, [width], |_, i| mu(i, power))), width }
    }

    /// The mixtures of x [B, T, D], each a convolution of two taps. The last token, entry `at` of the state, moves on.
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, at: usize) -> [Var<'t>; N] {
        let past = state.s[at];
        state.s[at] = remembered(past, x);
        let mut all = [x; N];
        // A loop, because `#[track_caller]` does not pass through a closure.
        for (y, &mu) in all.iter_mut().zip(&self.mu) {
            let mu = p[mu].reshape([self.width, 1]);
            *y = x.causal_conv1d(Var::concat(&[mu, 1.0 - mu], 1), None, past);
        }
        all
    }

    /// The last token as an entry of the state.
    pub fn last(&self, name: &'static str, b: usize) -> (&'static str, Shape) {
        (name, [b, 1, self.width].into())
    }
}
