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
    /// 1 / (1 + e⁻ˣ)
    fn sigmoid(self) -> Self;
    /// tanh x
    fn tanh(self) -> Self;
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
}

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
            fn sigmoid(self) -> Self {
                $m::sigmoid(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $m::tanh(self)
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
                // As `gelu_arg` has it, to the same bits, and `gelu_slope`, in fewer steps: 2u = x (a + b x²).
                const A: $t = (2.0 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2) as $t;
                const B: $t = 0.044715 * A;
                let z = self * self;
                let s = $m::sigmoid(self * z.mul_add(B, A));
                let y = self * s;
                (y, (y * (1.0 - s)).mul_add(z.mul_add(3.0 * B, A), s))
            }
            #[inline(always)]
            fn silu_and_slope(self) -> (Self, Self) {
                let s = $m::sigmoid(self);
                let y = self * s;
                (y, y.mul_add(1.0 - s, s))
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $m::max(self, other)
            }
        }
    };
}

math!(f32, m32);

math!(f64, m64);

/// Single precision.
#[allow(clippy::excessive_precision, missing_docs)]
pub mod m32 {
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
    /// √(2/π) (x + 0.044715 x³), inside the tanh of GELU's approximation, ½ (1 + tanh u) = σ(2u).
    #[inline(always)]
    pub fn gelu_arg(x: f32) -> f32 {
        const ROOT: f32 = (std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2) as f32;
        x * (x * x).mul_add(0.044715 * ROOT, ROOT)
    }
    /// The slope of GELU's approximation x σ(2u) at x, where the σ is s.
    #[inline(always)]
    pub fn gelu_slope(x: f32, s: f32) -> f32 {
        let root = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
        s + 2.0 * x * s * (1.0 - s) * root as f32 * (1.0 + 0.134145 * x * x)
    }
    /// erf, off by up to 3.2e-7: an odd rational function (that of Eigen), which is exactly ±1 from ±4 on.
    #[inline(always)]
    pub fn erf(x: f32) -> f32 {
        let x = if x > 4.0 { 4.0 } else { x };
        let x = if x < -4.0 { -4.0 } else { x };
        let z = x * x;
        let p = -2.72614225801306e-10_f32;
        let p = p.mul_add(z, 2.77068142495902e-8);
        let p = p.mul_add(z, -2.10102402082508e-6);
        let p = p.mul_add(z, -5.69250639462346e-5);
        let p = p.mul_add(z, -7.34990630326855e-4);
        let p = p.mul_add(z, -2.95459980854025e-3);
        let p = p.mul_add(z, -1.60960333262415e-2);
        let q = -1.45660718464996e-5_f32;
        let q = q.mul_add(z, -2.13374055278905e-4);
        let q = q.mul_add(z, -1.68282697438203e-3);
        let q = q.mul_add(z, -7.37332916720468e-3);
        let q = q.mul_add(z, -1.42647390514189e-2);
        x * p / q
    }
    /// Φ(x), the normal distribution function.
    #[inline(always)]
    pub fn normal_cdf(x: f32) -> f32 {
        0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
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
    /// √(2/π) (x + 0.044715 x³), inside the tanh of GELU's approximation, ½ (1 + tanh u) = σ(2u).
    #[inline(always)]
    pub fn gelu_arg(x: f64) -> f64 {
        const ROOT: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
        x * (x * x).mul_add(0.044715 * ROOT, ROOT)
    }
    /// The slope of GELU's approximation x σ(2u) at x, where the σ is s.
    #[inline(always)]
    pub fn gelu_slope(x: f64, s: f64) -> f64 {
        let root = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
        s + 2.0 * x * s * (1.0 - s) * root * (1.0 + 0.134145 * x * x)
    }
    #[inline(always)]
    pub fn erf(x: f64) -> f64 {
        libm::erf(x)
    }
    /// Φ(x), the normal distribution function.
    #[inline(always)]
    pub fn normal_cdf(x: f64) -> f64 {
        0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
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
mod tests {
    use super::{m32, m64};

    /// |got - want| in units in the last place of `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let w = want as f32;
        let ulp = f64::from(f32::from_bits(w.abs().to_bits() + 1)) - f64::from(w.abs());
        (f64::from(got) - want).abs() / ulp
    }

    #[test]
    fn single_precision_functions_are_within_three_ulps_of_double_and_six_far_from_zero() {
        type Pair = (&'static str, fn(f32) -> f32, fn(f64) -> f64);
        let pairs: [Pair; 8] = [
            ("exp", m32::exp, m64::exp),
            ("decay", m32::decay, m64::exp),
            ("exp2", m32::exp2, m64::exp2),
            ("sigmoid", m32::sigmoid, m64::sigmoid),
            ("tanh", m32::tanh, m64::tanh),
            ("softplus", m32::softplus, m64::softplus),
            ("softplus with its slope", |x| m32::softplus_and_slope(x).0, m64::softplus),
            ("slope of softplus", |x| m32::softplus_and_slope(x).1, m64::sigmoid),
        ];
        for (name, f, g) in pairs {
            // Near −16.6 the exponential in a sigmoid is as large as the last bit of one.
            let close = (-175_000..-155_000).map(|i| i as f32 * 1e-4);
            for x in (-43_500..=43_500).map(|i| i as f32 * 2e-3).chain(close) {
                let error = ulps(f(x), g(f64::from(x)));
                let bound = if x.abs() <= 32.0 { 3.0 } else { 6.0 };
                assert!(error <= bound, "{name}({x}) = {} is {error} ulp off {}", f(x), g(f64::from(x)));
            }
        }
    }

    #[test]
    fn logarithms_are_within_two_ulps_of_double() {
        // Every power of two and what lies between, subnormal numbers too; near one, where the logarithm is small.
        let powers = (0..0x7f80_0000u32).step_by(0x1_2345).map(f32::from_bits).skip(1);
        for x in powers.chain((1..4000).map(|i| i as f32 * 5e-4)) {
            let error = ulps(m32::log(x), m64::log(f64::from(x)));
            assert!(error <= 2.0 || x == 1.0 && m32::log(x) == 0.0, "ln {x} = {} is {error} ulp off", m32::log(x));
        }
        assert_eq!([0.0, -0.0, f32::INFINITY, 1.0].map(m32::log), [-f32::INFINITY, -f32::INFINITY, f32::INFINITY, 0.0]);
        assert!([-1.0, -f32::INFINITY, f32::NAN].map(m32::log).iter().all(|y| y.is_nan()));
    }

    #[test]
    fn erf_in_single_precision_is_off_by_less_than_three_roundings_of_one() {
        for i in -6_000..6_000 {
            let x = i as f32 * 1e-3;
            let error = (f64::from(m32::erf(x)) - m64::erf(f64::from(x))).abs();
            assert!(error < 3.0 * f64::from(f32::EPSILON), "erf({x}) is off by {error}");
        }
        // GELU multiplies what is left of 1 + erf by x, which may be large.
        assert_eq!([-1e30, -4.0, 4.0, 1e30].map(m32::erf), [-1.0, -1.0, 1.0, 1.0]);
        assert!(m32::erf(f32::NAN).is_nan());
    }

    #[test]
    fn extremes_saturate_and_nan_stays() {
        assert_eq!(m32::exp(1e4), f32::INFINITY);
        assert_eq!(m32::exp(f32::INFINITY), f32::INFINITY);
        assert!(m32::exp(-1e4) < 1e-38);
        // Up to the largest finite number, of which the logarithm is 88.72.
        for x in [88.0_f32, 88.3, 88.4, 88.5, 88.7] {
            let want = m64::exp(f64::from(x));
            assert!((f64::from(m32::exp(x)) / want - 1.0).abs() < 1e-5, "e^{x}");
        }
        assert!((f64::from(m32::decay(88.0)) / m64::exp(88.0) - 1.0).abs() < 1e-6);
        assert_eq!((m32::sigmoid(1e4), m32::tanh(-1e4), m32::tanh(1e4)), (1.0, -1.0, 1.0));
        assert!(m32::sigmoid(-1e4) < 1e-37);
        let ends = [f32::INFINITY, -f32::INFINITY];
        assert_eq!((ends.map(m32::sigmoid), ends.map(m32::tanh)), ([1.0, 0.0], [1.0, -1.0]));
        assert_eq!(m32::softplus(1e4), 1e4);
        assert_eq!([-1e4, f32::NEG_INFINITY].map(m32::decay), [0.0; 2]);
        assert_eq!([-127.0, -1e4, f32::NEG_INFINITY].map(m32::exp2), [0.0; 3]);
        // Whole powers are exact; between the last two normal ones and 0 it falls to no less than 0.
        (-126..=127).for_each(|n| assert_eq!(m32::exp2(n as f32), 2f32.powi(n)));
        assert!((0..=1000).all(|i| (0.0..=2.5e-38).contains(&m32::exp2(-127.0 + i as f32 * 2e-3))));
        for f in [m32::exp, m32::decay, m32::exp2, m32::sigmoid, m32::tanh, m32::softplus] {
            // Those of arithmetic.
            for bits in [0x7fc00000, 0xffc00000] {
                assert!(f(f32::from_bits(bits)).is_nan(), "{bits:x}");
            }
        }
        assert_eq!(m32::softplus_and_slope(1e4), (1e4, 1.0));
        assert!(<[f32; 2]>::from(m32::softplus_and_slope(f32::NAN)).iter().all(|y| y.is_nan()));
    }
}
