//! Adam and AdamW over flat slices, and clipping by the global norm.
//!
//! Adam (Kingma and Ba 2015, algorithm 1) and AdamW (Loshchilov and Hutter 2019, algorithm 2), with gradient g,
//! weight decay λ and learning rate η:
//! ```text
//! Adam:   g ← g + λ p        AdamW:  p ← p − η λ p
//! m ← m + (1 − β₁)(g − m)    v ← v + (1 − β₂)(g² − v)
//! p ← p − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)
//! ```
//! 1 − β is taken in double precision before it is rounded. β itself is not used: it would be a second rounded number,
//! and the two would not add up to 1.
//! The new v has the rounding error of the old one, so that β₂ may not be near 0: see [`LEAST_BETA2`].
//!
//! [`Noise`] may be added to the gradient behind clipping.

use crate::{
    models::Params,
    rng,
    tensor::{Cx, DType, Real, Tensor},
    with_real,
};
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use std::{f64::consts::TAU, ops::Range};

/// The least β₂. A new v has the rounding error of the old one, some 10⁻⁷ of it in single precision, and keeps β₂ of it.
/// With 10⁻³ the error is 10⁻⁴ of what is kept, and with less it is more.
pub const LEAST_BETA2: f64 = 1e-3;

/// Which of the two update rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "laboratory", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "laboratory", value(rename_all = "lowercase"))]
pub enum Rule {
    /// Weight decay, if any, is part of the gradient.
    #[default]
    Adam,
    /// Weight decay is apart from the gradient.
    AdamW,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Rule::Adam => "adam",
            Rule::AdamW => "adamw",
        })
    }
}

/// The constants of the update rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Adam or AdamW.
    pub rule: Rule,
    /// β₁ and β₂.
    pub betas: [f64; 2],
    /// ε
    pub eps: f64,
    /// λ
    pub weight_decay: f64,
}

impl Default for AdamConfig {
    /// As Kingma and Ba have it: Adam with β = 0.9, 0.999 and ε = 1e-8, without weight decay.
    fn default() -> AdamConfig {
        AdamConfig { rule: Rule::Adam, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 }
    }
}

/// A range of the flat parameters, and whether weight decay applies to it.
pub type Window = (Range<usize>, bool);

/// The state of Adam: both moments of every parameter.
pub struct Adam {
    config: AdamConfig,
    steps: i32,
    m: Tensor,
    v: Tensor,
}

/// The numbers of one update, in the order of `optimizer.cu`.
pub type Numbers = [f64; 11];

impl Adam {
    /// Fresh moments for `len` parameters of this dtype.
    pub fn new(len: usize, dtype: DType, config: AdamConfig) -> Adam {
        Adam { config, steps: 0, m: Tensor::zeros([len], dtype), v: Tensor::zeros([len], dtype) }
    }

    /// Fresh moments for the parameters of a model.
    pub fn of(params: &Params, config: AdamConfig) -> Adam {
        Adam::new(params.len(), params.flat().dtype(), config)
    }

    /// One update of a model's parameters in host memory at learning rate `lr`, by a gradient as
    /// [`Params::gradient`] gives it. Weight decay applies to matrices alone.
    ///
    /// # Panics
    /// When the gradient has not the length of the parameters, or these are still on a tape.
    #[track_caller]
    pub fn update(&mut self, lr: f64, params: &mut Params, grads: &Tensor) {
        let windows = windows(params, self.config.weight_decay);
        self.step(lr, params.flat_mut(), grads, &windows);
    }

    /// Keep the moments where parameters on `cx` are.
    pub fn to_device(&mut self, cx: &Cx) {
        (self.m, self.v) = (self.m.to_device(cx), self.v.to_device(cx));
    }

    /// The numbers of the next update for [`OnDevice`](super::on_device::OnDevice), at learning rate `lr`, with
    /// gradients clipped to the norm `clip`. The step counts as made.
    pub fn next(&mut self, lr: f64, clip: f64) -> Numbers {
        self.steps = self.steps.saturating_add(1);
        let u = self.numbers(lr, self.config.weight_decay);
        [u.l2, u.shrink, u.new1, u.new2, u.rate, u.root_bias2, u.eps, clip, 0.0, 0.0, 0.0]
    }

    /// The numbers of the update of this step, for parameters with weight decay λ.
    fn numbers(&self, lr: f64, lambda: f64) -> Update<f64> {
        let AdamConfig { rule, betas: [beta1, beta2], eps, .. } = self.config;
        let (bias1, bias2) = (1.0 - beta1.powi(self.steps), 1.0 - beta2.powi(self.steps));
        // An ε that rounds to 0 would make 0 / 0 of a gradient that is always 0.
        let least = if self.m.dtype() == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
        let eps = if eps > 0.0 { eps.max(least) } else { eps };
        let (l2, shrink) = match rule {
            Rule::Adam => (lambda, 1.0),
            Rule::AdamW => (0.0, 1.0 - lr * lambda),
        };
        let (new1, new2) = (1.0 - beta1, 1.0 - beta2);
        Update { l2, shrink, new1, new2, rate: lr / bias1, root_bias2: bias2.sqrt(), eps }
    }

    /// m and v.
    pub fn moments(&self) -> [&Tensor; 2] {
        [&self.m, &self.v]
    }

    /// m and v, to update.
    pub(super) fn moments_mut(&mut self) -> [&mut Tensor; 2] {
        [&mut self.m, &mut self.v]
    }

    /// The next update is the one after `steps`. The moments, m and v, are for the caller to set.
    pub fn go_to(&mut self, steps: usize) -> [&mut Tensor; 2] {
        self.steps = i32::try_from(steps).unwrap_or(i32::MAX);
        [&mut self.m, &mut self.v]
    }

    /// One update at learning rate `lr`. The windows cover all parameters; each says whether weight decay applies.
    ///
    /// # Panics
    /// When `params` or `grads` have not the length given to [`Adam::new`], or `params` is shared.
    #[track_caller]
    pub fn step(&mut self, lr: f64, params: &mut Tensor, grads: &Tensor, windows: &[Window]) {
        self.steps = self.steps.saturating_add(1);
        let (lambda, n) = (self.config.weight_decay, self.m.len());
        assert!(params.len() == n && grads.len() == n, "{n} moments for {} and {} numbers", params.len(), grads.len());
        let [with, without] = [lambda, 0.0].map(|lambda| self.numbers(lr, lambda));
        with_real!(params.dtype(), T => {
            let (p, g) = (params.host_mut::<T>(), grads.host::<T>());
            let (m, v) = (self.m.host_mut::<T>(), self.v.host_mut::<T>());
            for (r, decays) in windows.iter().cloned() {
                let u = if decays { with } else { without };
                update(u.cast::<T>(), &mut p[r.clone()], &g[r.clone()], &mut m[r.clone()], &mut v[r]);
            }
        });
    }
}

/// The numbers of one update.
#[derive(Clone, Copy)]
struct Update<T> {
    l2: T,
    shrink: T,
    /// 1 − β₁
    new1: T,
    /// 1 − β₂
    new2: T,
    /// η / (1 − β₁ᵗ)
    rate: T,
    /// √(1 − β₂ᵗ)
    root_bias2: T,
    eps: T,
}

impl Update<f64> {
    fn cast<T: Real>(self) -> Update<T> {
        let Update { l2, shrink, new1, new2, rate, root_bias2, eps } = self;
        Update {
            l2: T::of(l2),
            shrink: T::of(shrink),
            new1: T::of(new1),
            new2: T::of(new2),
            rate: T::of(rate),
            root_bias2: T::of(root_bias2),
            eps: T::of(eps),
        }
    }
}

#[versions::versions]
fn update<T: Real>(u: Update<T>, p: &mut [T], g: &[T], m: &mut [T], v: &mut [T]) {
    let (g, m, v) = (&g[..p.len()], &mut m[..p.len()], &mut v[..p.len()]);
    for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        let g = g + u.l2 * *p;
        *m += u.new1 * (g - *m);
        // A square beyond the largest number is infinite, and stays: the parameter then rests, where ∞ − ∞ would be
        // NaN.
        *v = if *v < T::of(f64::INFINITY) { *v + (u.new2 * g * g - u.new2 * *v) } else { *v };
        *p = u.shrink * *p - u.rate * (*m / ((*v).sqrt() / u.root_bias2 + u.eps));
    }
}

/// The flat parameters in stretches that decay and stretches that do not.
pub fn windows(params: &Params, weight_decay: f64) -> Vec<Window> {
    let n = params.len();
    if weight_decay == 0.0 {
        return vec![(0..n, false)];
    }
    let mut windows: Vec<Window> = Vec::new();
    for e in params.entries() {
        let end = e.offset + e.shape.len();
        match windows.last_mut() {
            Some((range, decay)) if *decay == e.decay => range.end = end,
            _ => windows.push((e.offset..end, e.decay)),
        }
    }
    windows
}

/// Gaussian noise on the gradient (Neelakantan et al. 2015, arXiv 1511.06807), less of it with every update: after t
/// updates, of variance η / (1 + t)^0.55.
///
/// The noise of a parameter depends on the seed, the step and the parameter's place alone. It is counted and not drawn in
/// order (SplitMix64, Steele et al. 2014, at number 2 ⌊i/2⌋ and the next, and Box-Muller), so that a device has the
/// same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// The standard deviation.
    pub sigma: f64,
    /// Where the counting begins.
    pub key: u64,
}

/// How fast the variance goes down.
const GAMMA: f64 = 0.55;

impl Noise {
    /// The noise of the step after t updates; none for η = 0.
    pub fn of(eta: f64, seed: u64, t: usize) -> Option<Noise> {
        let sigma = (eta / (1.0 + t as f64).powf(GAMMA)).sqrt();
        (sigma > 0.0).then(|| Noise { sigma, key: rng::stream(seed, "gradient noise", t as u64).next_u64() })
    }

    /// The noise of parameter i.
    pub fn at(self, i: usize) -> f64 {
        let bits =
            |n: usize| split_mix(self.key.wrapping_add((n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 11;
        let (pair, one) = (i & !1, f64::EPSILON / 2.0);
        let (u, v) = ((bits(pair) + 1) as f64 * one, bits(pair + 1) as f64 * one);
        let (sin, cos) = (TAU * v).sin_cos();
        self.sigma * (-2.0 * u.ln()).sqrt() * if i == pair { cos } else { sin }
    }

    /// Add the noise to the gradient.
    pub fn add_to(self, grads: &mut Tensor) {
        with_real!(grads.dtype(), T => {
            grads.host_mut::<T>().iter_mut().enumerate().for_each(|(i, g)| *g += T::of(self.at(i)));
        });
    }

    /// Have the update with these numbers add the noise.
    pub fn put_into(self, numbers: &mut Numbers) {
        // Halves of the key are whole numbers in double precision too.
        numbers[8..].copy_from_slice(&[self.sigma, (self.key & 0xffff_ffff) as f64, (self.key >> 32) as f64]);
    }
}

/// The output of SplitMix64 at this counter.
fn split_mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Scale `grads` so that their global norm is at most `max` (0: leave them), and give the norm they had.
///
/// As torch's `clip_grad_norm_`: the factor is `max / (norm + 1e-6)`, if less than 1.
pub fn clip(grads: &mut Tensor, max: f64) -> f64 {
    with_real!(grads.dtype(), T => {
        let g = grads.host_mut::<T>();
        let norm = norm(g);
        let factor = factor(norm, max);
        if factor < 1.0 {
            g.iter_mut().for_each(|g| *g *= T::of(factor));
        }
        norm
    })
}

/// The factor that clips a gradient of this norm.
fn factor(norm: f64, max: f64) -> f64 {
    if max > 0.0 { max / (norm + 1e-6) } else { 1.0 }
}

/// √Σ g². Numbers of double precision whose squares overflow are scaled.
fn norm<T: Real>(g: &[T]) -> f64 {
    let plain = sum_of_squares(g, 1.0).sqrt();
    if plain.is_finite() { plain } else { sum_of_squares(g, DOWN).sqrt() / DOWN }
}

/// Their scale: the square of the largest number is then 2^848, and numbers whose squares underflow are too small to
/// count beside it.
const DOWN: f64 = f64::from_bits((1023 - 600) << 52);

/// Σ (scale g)² in double precision, in eight partial sums that do not wait for each other.
#[versions::versions]
fn sum_of_squares<T: Real>(g: &[T], scale: f64) -> f64 {
    let square = |g: &T| (scale * g.to_f64()) * (scale * g.to_f64());
    let mut sums = [0.0f64; 8];
    let (chunks, rest) = g.as_chunks::<8>();
    for chunk in chunks {
        for (sum, g) in sums.iter_mut().zip(chunk) {
            *sum += square(g);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
}
