//! Single precision.

shared!(f32);

/// (eʳ − 1, 2ⁿ) with x = n ln 2 + r and |r| ≤ ½ ln 2: eˣ = 2ⁿ + 2ⁿ (eʳ − 1). Near −88 2ⁿ becomes 0. From 88 on, if
/// BOUNDED, n stays the same and r grows, in the end to infinity; if not, the results mean nothing. NaN stays NaN.
#[inline(always)]
fn exp_parts<const BOUNDED: bool>(x: f32) -> (f32, f32) {
    let c = if x < -88.0 { -88.0 } else { x };
    // Adding 1.5 * 2^23 rounds to an integer; with 127 more its low bits are the exponent of 2^n.
    let t = c.mul_add(std::f32::consts::LOG2_E, 12582912.0 + 127.0);
    // Positive floats compare as their bits do, and the units for floating point are busy enough.
    let most = (12582912.0_f32 + 254.0).to_bits().cast_signed();
    let t = if BOUNDED { f32::from_bits(t.to_bits().cast_signed().min(most).cast_unsigned()) } else { t };
    let n = t - (12582912.0 + 127.0);
    // In single precision ln 2 happens to be only 2e-9 off: it needs no second part.
    let r = n.mul_add(-std::f32::consts::LN_2, c);
    // Degree 6 and minimax, relative to e^r - 1: 2e-8 off. The two halves do not wait for each other.
    let z = r * r;
    let high = z.mul_add(1.38825101e-3, r.mul_add(8.36658034e-3, 4.16672018e-2));
    let p = high.mul_add(z, r.mul_add(1.66665432e-1, 4.99999981e-1));
    (p.mul_add(z, r), f32::from_bits(t.to_bits() << 23))
}
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (q, power) = exp_parts::<true>(x);
    power.mul_add(q, power)
}
#[inline(always)]
pub fn decay(x: f32) -> f32 {
    let (q, power) = exp_parts::<false>(x);
    power.mul_add(q, power)
}
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = if x < -127.0 { -127.0 } else { x };
    // x = n + r without rounding. Adding 1.5 * 2^23 rounds to an integer, whose low bits are n.
    let t = x + 12582912.0;
    let r = x - (t - 12582912.0);
    // 2^r: degree 5 and minimax with 1 at 0, 9.1e-8 off.
    let p = r.mul_add(1.32647047e-3, 9.67151343e-3);
    let p = p.mul_add(r, 5.55073384e-2);
    let p = p.mul_add(r, 2.40222421e-1);
    let p = p.mul_add(r, 6.93146978e-1);
    let p = p.mul_add(r, 1.0);
    // Times 2^n by adding to the exponent. Between -126 and -127, where p is 1, the result falls to 0 along a line. The
    // NaN of arithmetic has zeros in those bits; to care for every other NaN would cost one more step.
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let (q, power) = exp_parts::<true>(-x);
    1.0 / (power.mul_add(q, 1.0) + power)
}
#[inline(always)]
pub fn sigmoid_and_rest(x: f32) -> (f32, f32) {
    let (q, power) = exp_parts::<true>(-x);
    let s = 1.0 / (power.mul_add(q, 1.0) + power);
    (s, select(x > 0.0, power.mul_add(q, power) * s, 1.0 - s))
}
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // (e^2x - 1) / (e^2x + 1); from 10 on that is 1.
    let c = if x > 10.0 { 10.0 } else { x };
    let (q, power) = exp_parts::<false>(c + c);
    let less_one = power.mul_add(q, power - 1.0);
    less_one / (less_one + 2.0)
}
#[inline(always)]
pub fn tanh_and_slope(x: f32) -> (f32, f32) {
    // With e = e^-2|x|: (1 - e) / (1 + e) and 4 e / (1 + e)^2.
    let (q, power) = exp_parts::<false>(-2.0 * abs(x));
    let less_one = power.mul_add(q, power - 1.0);
    let inverse = 1.0 / (less_one + 2.0);
    ((less_one * inverse).copysign(x), 4.0 * (power.mul_add(q, power) * inverse) * inverse)
}
/// (ln(1 + x) − x + x²/2) / x³ for x in [-0.29, 0.41].
#[inline(always)]
fn log_polynomial(x: f32) -> f32 {
    let p = 7.0376836292e-2_f32;
    let p = p.mul_add(x, -1.1514610310e-1);
    let p = p.mul_add(x, 1.1676998740e-1);
    let p = p.mul_add(x, -1.2420140846e-1);
    let p = p.mul_add(x, 1.4249322787e-1);
    let p = p.mul_add(x, -1.6668057665e-1);
    let p = p.mul_add(x, 2.0000714765e-1);
    let p = p.mul_add(x, -2.4999993993e-1);
    p.mul_add(x, 3.3333331174e-1)
}
/// ln(1 + u) for u in [0, 1]: 2 artanh s with s = u / (2 + u), by an odd polynomial that is 5e-9 off.
#[inline(always)]
pub fn log1p01(u: f32) -> f32 {
    let s = u / (2.0 + u);
    let z = s * s;
    let p = z.mul_add(2.80244576e-1, 2.79991414e-1);
    let p = p.mul_add(z, 4.00216990e-1);
    let p = p.mul_add(z, 6.66664131e-1);
    (p * z).mul_add(s, s + s)
}
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    max(x, 0.0) + log1p01(decay(-abs(x)))
}
#[inline(always)]
pub fn softplus_and_slope(x: f32) -> (f32, f32) {
    let u = decay(-abs(x));
    let slope = 1.0 / (1.0 + u);
    (max(x, 0.0) + log1p01(u), select(x > 0.0, slope, u * slope))
}
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
#[inline(always)]
pub fn select(c: bool, a: f32, b: f32) -> f32 {
    if c { a } else { b }
}
#[inline(always)]
pub fn abs(a: f32) -> f32 {
    a.abs()
}
#[inline(always)]
pub fn sqrt(a: f32) -> f32 {
    a.sqrt()
}
/// Φ(x), the normal distribution function: ½ erfc(−x/√2), with the digits of a small one too.
#[inline(always)]
pub fn normal_cdf(x: f32) -> f32 {
    // erfc z = t e^(−z² + p(t)) with t = 1 / (1 + z/2), p Chebyshev (Press et al., Numerical Recipes, section 6.2).
    let z = abs(x) * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (0.5 * z + 1.0);
    let p = 0.17087277_f32;
    let p = p.mul_add(t, -0.82215223);
    let p = p.mul_add(t, 1.48851587);
    let p = p.mul_add(t, -1.13520398);
    let p = p.mul_add(t, 0.27886807);
    let p = p.mul_add(t, -0.18628806);
    let p = p.mul_add(t, 0.09678418);
    let p = p.mul_add(t, 0.37409196);
    let p = p.mul_add(t, 1.00002368);
    let p = p.mul_add(t, -1.26551223);
    let half = 0.5 * t * decay((-z).mul_add(z, p));
    select(x > 0.0, 1.0 - half, half)
}
/// Its density.
#[inline(always)]
pub fn normal_pdf(x: f32) -> f32 {
    let root = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    (0.5 * root) as f32 * decay(-0.5 * x * x)
}
#[inline(always)]
pub fn log(x: f32) -> f32 {
    // x = 2^e m with m between √½ and √2, from the bits; numbers below the least normal one are scaled first.
    let small = x < f32::MIN_POSITIVE;
    let bits = select(small, x * 8388608.0, x).to_bits() as i32;
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let r = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = e as f32 - select(small, 23.0, 0.0);
    let z = r * r;
    let y = log_polynomial(r) * r * z + e * -2.12194440e-4 - 0.5 * z;
    let y = y + r + e * 0.693359375;
    let y = select(x < f32::INFINITY, y, x + x);
    let y = select(x > 0.0, y, select(x == 0.0, -f32::INFINITY, f32::NAN));
    select(x.is_nan(), x, y)
}
/// The fastest rate of decay that a step is multiplied by: ∞ times a step of length 0 would be NaN. Gradients of its
/// size have room beside it.
pub const FASTEST: f32 = 1e37;
/// −eˣ, at most as fast as that.
#[inline(always)]
pub fn decay_rate(x: f32) -> f32 {
    let y = -exp(x);
    if y < -FASTEST { -FASTEST } else { y }
}
/// x − 2π n, between −π and π. 2π is the sum of two numbers, of which the first has so few digits that n times it is
/// exact.
#[inline(always)]
pub fn wrap(x: f32) -> f32 {
    let n = (x * 0.15915494).round_ties_even();
    half_a_turn((x - n * 6.28125) - n * 0.001_935_307_2)
}
#[inline(always)]
pub fn sin(a: f32) -> f32 {
    a.sin()
}
#[inline(always)]
pub fn cos(a: f32) -> f32 {
    a.cos()
}
#[inline(always)]
pub fn expm1(a: f32) -> f32 {
    a.exp_m1()
}
