//! Double precision: the standard library's.

shared!(f64);

#[inline(always)]
pub fn exp(x: f64) -> f64 {
    x.exp()
}
#[inline(always)]
pub fn decay(x: f64) -> f64 {
    x.exp()
}
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    x.exp2()
}
#[inline(always)]
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
#[inline(always)]
pub fn sigmoid_and_rest(x: f64) -> (f64, f64) {
    let e = (-x).exp();
    let s = 1.0 / (1.0 + e);
    (s, select(x > 0.0, e * s, 1.0 - s))
}
#[inline(always)]
pub fn tanh(x: f64) -> f64 {
    x.tanh()
}
#[inline(always)]
pub fn tanh_and_slope(x: f64) -> (f64, f64) {
    (x.tanh(), tanh_slope(x))
}
#[inline(always)]
pub fn softplus(x: f64) -> f64 {
    max(x, 0.0) + (-x.abs()).exp().ln_1p()
}
#[inline(always)]
pub fn softplus_and_slope(x: f64) -> (f64, f64) {
    (softplus(x), sigmoid(x))
}
#[inline(always)]
pub fn max(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
#[inline(always)]
pub fn select(c: bool, a: f64, b: f64) -> f64 {
    if c { a } else { b }
}
#[inline(always)]
pub fn abs(a: f64) -> f64 {
    a.abs()
}
#[inline(always)]
pub fn sqrt(a: f64) -> f64 {
    a.sqrt()
}
/// Φ(x), the normal distribution function.
#[inline(always)]
pub fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}
/// Its density.
#[inline(always)]
pub fn normal_pdf(x: f64) -> f64 {
    let root = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    0.5 * root * exp(-0.5 * x * x)
}
#[inline(always)]
pub fn log(a: f64) -> f64 {
    a.ln()
}
/// The fastest rate of decay that a step is multiplied by: ∞ times a step of length 0 would be NaN. Gradients of its
/// size have room beside it.
pub const FASTEST: f64 = 1e300;
/// −eˣ, at most as fast as that.
#[inline(always)]
pub fn decay_rate(x: f64) -> f64 {
    let y = -exp(x);
    if y < -FASTEST { -FASTEST } else { y }
}
/// x − 2π n, between −π and π.
#[inline(always)]
pub fn wrap(x: f64) -> f64 {
    half_a_turn(x - (x / std::f64::consts::TAU).round_ties_even() * std::f64::consts::TAU)
}
#[inline(always)]
pub fn sin(a: f64) -> f64 {
    a.sin()
}
#[inline(always)]
pub fn cos(a: f64) -> f64 {
    a.cos()
}
#[inline(always)]
pub fn expm1(a: f64) -> f64 {
    a.exp_m1()
}
