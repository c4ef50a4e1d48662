//! Scalar functions under the names that they have in CUDA, so that one formula serves both compilers.
//!
//! The `f32` versions are branch-free polynomials which vectorise, as the standard library's functions do not. A
//! product and a sum that are rounded together are written as one `mul_add`, so the bits are the same on every
//! processor. The coefficients of log are those of the Cephes library (S. L. Moshier), which is within 2 units in the
//! last place. exp, tanh, sigmoid and softplus are within 3 units for arguments up to 32 on either side of zero, and
//! within 6 up to 87 (if the argument itself is off by half a unit there, its exponential is off by 32 or more). Beyond
//! that they approach 0 or infinity.

use crate::tensor::Real;

/// A [`Real`] with the transcendental functions that the ops need.
pub trait Math: Real {
    /// eˣ
    fn exp(self) -> Self;
    /// eˣ for x ≤ 0, such as a number less the largest: one step less than for any x. Also right for x up to 88; beyond
    /// that the result may be anything, even negative.
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
    /// σ(x) and its slope σ(x) σ(−x), which has all its digits where σ is near one too.
    fn sigmoid_and_slope(self) -> (Self, Self);
    /// tanh x
    fn tanh(self) -> Self;
    /// tanh x and its slope 1 − tanh² x, which has all its digits where tanh is near one too.
    fn tanh_and_slope(self) -> (Self, Self);
    /// ln(1 + eˣ)
    fn softplus(self) -> Self;
    /// ln(1 + eˣ) and its slope, 1 / (1 + e⁻ˣ), for little more than one of them.
    fn softplus_and_slope(self) -> (Self, Self);
    /// x σ(2u), GELU's approximation by tanh, and its slope.
    fn gelu_and_slope(self) -> (Self, Self);
    /// x σ(x) and its slope.
    fn silu_and_slope(self) -> (Self, Self);
    /// The first, if it is larger, and otherwise the second: the second also where one of them is NaN.
    fn max(self, other: Self) -> Self;
    /// Whether the sign bit is set: of −0 it is.
    fn sign_bit(self) -> bool;
    /// The fastest rate of decay.
    const FASTEST: Self;
}

/// This far from zero every σ, Φ and density is 0 or 1 to the last bit, in both precisions. A factor of a function that
/// has become 0 is taken no further out, since it may become infinite, and 0 · ∞ is NaN.
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
                // ln(u) x / (u − 1), with u = 1 + x rounded, corrects the digits that x loses when 1 is added.
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
            fn sigmoid_and_slope(self) -> (Self, Self) {
                $m::sigmoid_and_slope(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $m::tanh(self)
            }
            #[inline(always)]
            fn tanh_and_slope(self) -> (Self, Self) {
                $m::tanh_and_slope(self)
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
                // Below zero eˣ is two factors: eˣ itself may be too small for its type where x eˣ is not.
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

/// The functions that have one formula in both precisions.
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
        /// An angle within π of 0, even if it was so large that its digits do not tell turns apart.
        #[inline(always)]
        pub fn half_a_turn(x: $t) -> $t {
            at_most(at_least(x, -std::$t::consts::PI), std::$t::consts::PI)
        }
        /// σ(x) and σ(x) σ(−x): σ (1 − σ) without the difference, which has few digits, or none, where σ is near one.
        #[inline(always)]
        pub fn sigmoid_and_slope(x: $t) -> ($t, $t) {
            let u = decay(-abs(x));
            let large = 1.0 / (1.0 + u);
            let small = u * large;
            (select(x > 0.0, large, small), small * large)
        }
        /// The slope σ(x) σ(−x) alone.
        #[inline(always)]
        pub fn sigmoid_slope(x: $t) -> $t {
            sigmoid_and_slope(x).1
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

#[allow(clippy::excessive_precision, missing_docs)]
pub mod m32;
#[allow(missing_docs)]
pub mod m64;
