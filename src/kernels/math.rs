//! Scalar functions under the names that they have in CUDA, so that one formula serves both compilers.
//!
//! The `f32` versions are branch-free polynomials which vectorise, as the standard library's functions do not. Where
//! they round a product and a sum at once they say so, and so have the same bits on every processor. The coefficients of
//! log are those of the Cephes library (S. L. Moshier), which is within 2 units in the last place. exp, tanh, sigmoid and
//! softplus are within 3 for arguments up to 32 on either side of zero, and within 6 up to 87 (if the argument itself is off
//! by half a unit there, its exponential is off by 32 or more); then on their way to 0 or infinity.

use crate::tensor::Real;

/// A [`Real`] with the transcendental functions that the ops need.
pub trait Math: Real {
    /// eˣ
    fn exp(self) -> Self;
    /// eˣ for x ≤ 0, as of numbers less their largest: a step less than for any x. Also right for x up to 88; beyond that
    /// it may be anything, even negative.
    fn decay(self) -> Self;
    /// 2ˣ for x up to 127; beyond that, and of NaN other than arithmetic's own, it may be anything. A rate that is
    /// multiplied by log₂ e once makes every eˣ of it a 2ˣ, which takes fewer steps.
    fn exp2(self) -> Self;
    /// ln x
    fn ln(self) -> Self;
    /// ln(1 + x) for x ≥ 0, with the digits of a small one.
    fn ln_1p(self) -> Self;
    /// 1 / (1 + e⁻ˣ)
    fn sigmoid(self) -> Self;
    /// σ(x) and 1 − σ(x) = σ(−x), the latter with all its digits where σ is near one too.
    fn sigmoid_and_rest(self) -> (Self, Self);
    /// tanh x
    fn tanh(self) -> Self;
    /// σ(x) as the backward pass needs it, whose 1 − σ has no digits where σ is near one: the smaller of σ(x) and σ(−x), with
    /// the sign bit set if that is σ(−x).
    fn keep_sigmoid(self) -> Self;
    /// σ and 1 − σ from that.
    fn kept_sigmoid(self) -> (Self, Self);
    /// tanh x as the backward pass needs it: itself up to ½; beyond that what it lacks of 1, divided by the least normal
    /// number, which makes it 1 or more. It has the sign of x.
    fn keep_tanh(self) -> Self;
    /// tanh and 1 − tanh² from that.
    fn kept_tanh(self) -> (Self, Self);
    /// ln(1 + eˣ)
    fn softplus(self) -> Self;
    /// ln(1 + eˣ) and its slope, 1 / (1 + e⁻ˣ), for little more than one of them.
    fn softplus_and_slope(self) -> (Self, Self);
    /// x σ(2u), GELU's approximation by tanh, and its slope.
    fn gelu_and_slope(self) -> (Self, Self);
    /// x σ(x) and its slope.
    fn silu_and_slope(self) -> (Self, Self);
    /// The larger of two; NaN loses.
    fn max(self, other: Self) -> Self;
    /// Whether the sign bit is set: of −0 it is.
    fn sign_bit(self) -> bool;
    /// The fastest rate of decay.
    const FASTEST: Self;
}

/// So far from zero every σ, Φ and density is 0 or 1 to the last bit, in both precisions. A factor that multiplies what has
/// become 0 is taken no further out, as beyond it may be infinite, and 0 · ∞ is NaN.
pub const FAR: f64 = 1000.0;

macro_rules! math {
    ($t:ident, $m:ident) => {
        impl Math for $t {
            #[inline(always)]
            fn exp(self) -> Self {
                $m::exp(self)
            }
            #[inline(always)]
            fn decay(self) -> Self {
                $m::decay(self)
            }
            #[inline(always)]
            fn exp2(self) -> Self {
                $m::exp2(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $m::log(self)
            }
            #[inline(always)]
            fn ln_1p(self) -> Self {
                // What is lost when one is added is made up for: ln(u) x / (u − 1) with u = 1 + x rounded.
                let u = 1.0 + self;
                let added = u - 1.0;
                $m::select(added > 0.0, $m::log(u) * (self / added), self)
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                $m::sigmoid(self)
            }
            #[inline(always)]
            fn sigmoid_and_rest(self) -> (Self, Self) {
                $m::sigmoid_and_rest(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $m::tanh(self)
            }
            #[inline(always)]
            fn keep_sigmoid(self) -> Self {
                $m::keep_sigmoid(self)
            }
            #[inline(always)]
            fn kept_sigmoid(self) -> (Self, Self) {
                let small = $m::abs(self);
                let large = 1.0 - small;
                let open = self.sign_bit();
                ($m::select(open, large, small), $m::select(open, small, large))
            }
            #[inline(always)]
            fn keep_tanh(self) -> Self {
                $m::keep_tanh(self)
            }
            #[inline(always)]
            fn kept_tanh(self) -> (Self, Self) {
                let kept = $m::abs(self);
                let (far, rest) = (kept >= 1.0, kept * $t::MIN_POSITIVE);
                let size = $m::select(far, 1.0 - rest, kept);
                (size.copysign(self), $m::select(far, rest, 1.0 - kept) * (1.0 + size))
            }
            #[inline(always)]
            fn softplus(self) -> Self {
                $m::softplus(self)
            }
            #[inline(always)]
            fn softplus_and_slope(self) -> (Self, Self) {
                $m::softplus_and_slope(self)
            }
            #[inline(always)]
            fn gelu_and_slope(self) -> (Self, Self) {
                // 2u = x (a + b x²), u = √(2/π) (x + 0.044715 x³): ½ (1 + tanh u) = σ(2u).
                const A: $t = (2.0 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2) as $t;
                const B: $t = 0.044715 * A;
                let low = $m::at_least(self, -FAR as $t);
                let x = $m::at_most(low, FAR as $t);
                let z = x * x;
                let s = $m::sigmoid(x * z.mul_add(B, A));
                (low * s, (x * s * (1.0 - s)).mul_add(z.mul_add(3.0 * B, A), s))
            }
            #[inline(always)]
            fn silu_and_slope(self) -> (Self, Self) {
                // Below zero a factor e^x in two halves: it may be less than a number holds where x e^x is not.
                let low = $m::at_least(self, -FAR as $t);
                let half = $m::decay(-0.5 * $m::abs(low));
                let (u, below) = (half * half, low < 0.0);
                let s = 1.0 / (1.0 + u);
                let rest = $m::select(below, s, u * s);
                let factor = $m::select(below, half, 1.0);
                let slope = $m::at_most(low, FAR as $t).mul_add(rest, 1.0);
                (low * factor * factor * s, slope * factor * factor * s)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $m::max(self, other)
            }
            #[inline(always)]
            fn sign_bit(self) -> bool {
                self.is_sign_negative()
            }
            const FASTEST: Self = $m::FASTEST;
        }
    };
}

math!(f32, m32);

math!(f64, m64);

/// What is one formula in both precisions.
macro_rules! shared {
    ($t:ident) => {
        use super::{FAR, Math};

        /// x, or `least` if that is more; NaN stays.
        #[inline(always)]
        pub fn at_least(x: $t, least: $t) -> $t {
            if x < least { least } else { x }
        }
        /// x, or `most` if that is less; NaN stays.
        #[inline(always)]
        pub fn at_most(x: $t, most: $t) -> $t {
            if x > most { most } else { x }
        }
        /// σ(x) σ(−x): σ (1 − σ) without the difference, which has few digits, or none, where σ is near one.
        #[inline(always)]
        pub fn sigmoid_slope(x: $t) -> $t {
            let u = decay(-abs(x));
            let s = 1.0 / (1.0 + u);
            u * s * s
        }
        /// 1 − tanh² x = 4 σ(2x) σ(−2x), without the difference.
        #[inline(always)]
        pub fn tanh_slope(x: $t) -> $t {
            4.0 * sigmoid_slope(x + x)
        }
        /// x σ(x)
        #[inline(always)]
        pub fn silu(x: $t) -> $t {
            x.silu_and_slope().0
        }
        /// Its slope.
        #[inline(always)]
        pub fn silu_slope(x: $t) -> $t {
            x.silu_and_slope().1
        }
        /// GELU's approximation by tanh.
        #[inline(always)]
        pub fn gelu_tanh(x: $t) -> $t {
            x.gelu_and_slope().0
        }
        /// Its slope.
        #[inline(always)]
        pub fn gelu_tanh_slope(x: $t) -> $t {
            x.gelu_and_slope().1
        }
        /// x Φ(x)
        #[inline(always)]
        pub fn gelu(x: $t) -> $t {
            at_least(x, -FAR as $t) * normal_cdf(x)
        }
        /// Its slope.
        #[inline(always)]
        pub fn gelu_slope(x: $t) -> $t {
            let x = at_most(at_least(x, -FAR as $t), FAR as $t);
            normal_cdf(x) + x * normal_pdf(x)
        }
    };
}

/// Single precision.
#[allow(clippy::excessive_precision, missing_docs)]
pub mod m32 {
    shared!(f32);

    /// (eʳ − 1, 2ⁿ) with x = n ln 2 + r and |r| ≤ ½ ln 2: eˣ = 2ⁿ + 2ⁿ (eʳ − 1). Near −88 2ⁿ becomes 0. From 88 on n stays
    /// if BOUNDED, and r grows, to infinity in the end; else what comes of it means nothing. NaN stays NaN.
    #[inline(always)]
    fn exp_parts<const BOUNDED: bool>(x: f32) -> (f32, f32) {
        let c = if x < -88.0 { -88.0 } else { x };
        // Adding 1.5 * 2^23 rounds to an integer; with 127 more its low bits are the exponent of 2^n.
        let t = c.mul_add(std::f32::consts::LOG2_E, 12582912.0 + 127.0);
        // Compared as integers, which is the same for what is positive: units for floating point have enough to do.
        let most = (12582912.0_f32 + 254.0).to_bits().cast_signed();
        let t = if BOUNDED { f32::from_bits(t.to_bits().cast_signed().min(most).cast_unsigned()) } else { t };
        let n = t - (12582912.0 + 127.0);
        // In single precision ln 2 is 2e-9 off, as it happens: no second part of it is needed.
        let r = n.mul_add(-std::f32::consts::LN_2, c);
        // Degree 6 and minimax, relative to e^r - 1: 2e-8 off; in two halves, which do not wait for one another.
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
        // Times 2^n by its exponent alone. Between -126 and -127, where p is 1, that falls to nothing, as a line does. Of
        // the NaN of arithmetic those bits are zero; to see to every other would be one step more.
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
    pub fn keep_sigmoid(x: f32) -> f32 {
        let u = decay(-abs(x));
        (u / (1.0 + u)).copysign(-x)
    }
    #[inline(always)]
    pub fn keep_tanh(x: f32) -> f32 {
        // With e = e^2|x|: (e - 1) / (e + 1), which lacks 2 / (e + 1); from 43.5 on that stays.
        let c = at_most(abs(x), 43.5);
        let (q, power) = exp_parts::<false>(c + c);
        let less_one = power.mul_add(q, power - 1.0);
        let inverse = 1.0 / (less_one + 2.0);
        let size = less_one * inverse;
        select(size <= 0.5, size, inverse * (2.0 / f32::MIN_POSITIVE)).copysign(x)
    }
    #[inline(always)]
    pub fn tanh(x: f32) -> f32 {
        // (e^2x - 1) / (e^2x + 1); from 10 on that is 1.
        let c = if x > 10.0 { 10.0 } else { x };
        let (q, power) = exp_parts::<false>(c + c);
        let less_one = power.mul_add(q, power - 1.0);
        less_one / (less_one + 2.0)
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
    /// ln(1 + u) for u in [0, 1]: 2 artanh s with s = u / (2 + u), an odd polynomial of which is 5e-9 off.
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
        // x = 2^e m with m between √½ and √2, by the bits; what is below the least normal number is scaled first.
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
    /// The fastest rate of decay that a step is multiplied by: ∞ times a step of length 0 would be NaN. Gradients of its size
    /// have room beside it.
    pub const FASTEST: f32 = 1e37;
    /// −eˣ, at most as fast as that.
    #[inline(always)]
    pub fn decay_rate(x: f32) -> f32 {
        let y = -exp(x);
        if y < -FASTEST { -FASTEST } else { y }
    }
    /// x − 2π n. 2π is the sum of two numbers, of which the first has so few digits that n times it is exact.
    #[inline(always)]
    pub fn wrap(x: f32) -> f32 {
        let n = (x * 0.15915494).round_ties_even();
        (x - n * 6.28125) - n * 0.001_935_307_2
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
}

/// Double precision: the standard library's.
#[allow(missing_docs)]
pub mod m64 {
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
    pub fn keep_sigmoid(x: f64) -> f64 {
        let u = (-x.abs()).exp();
        (u / (1.0 + u)).copysign(-x)
    }
    #[inline(always)]
    pub fn keep_tanh(x: f64) -> f64 {
        let (size, rest) = (x.abs().tanh(), 2.0 / (1.0 + (2.0 * x.abs()).exp()));
        select(size <= 0.5, size, at_least(rest / f64::MIN_POSITIVE, 1.0)).copysign(x)
    }
    #[inline(always)]
    pub fn tanh(x: f64) -> f64 {
        x.tanh()
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
    /// The fastest rate of decay that a step is multiplied by: ∞ times a step of length 0 would be NaN. Gradients of its size
    /// have room beside it.
    pub const FASTEST: f64 = 1e300;
    /// −eˣ, at most as fast as that.
    #[inline(always)]
    pub fn decay_rate(x: f64) -> f64 {
        let y = -exp(x);
        if y < -FASTEST { -FASTEST } else { y }
    }
    /// x − 2π n.
    #[inline(always)]
    pub fn wrap(x: f64) -> f64 {
        x - (x / std::f64::consts::TAU).round_ties_even() * std::f64::consts::TAU
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
}

#[cfg(test)]
mod tests;
