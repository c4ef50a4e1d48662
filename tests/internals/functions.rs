//! The functions against those of double precision.

use approx::{abs_diff_eq, relative_eq};
use tapezoo::kernels::math::{Math, m32, m64};

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
    // Numbers at and between all powers of two, subnormal ones too; then numbers near one, where the logarithm is
    // small.
    let powers = (0..0x7f80_0000u32).step_by(0x1_2345).map(f32::from_bits).skip(1);
    for x in powers.chain((1..4000).map(|i| i as f32 * 5e-4)) {
        let error = ulps(m32::log(x), m64::log(f64::from(x)));
        assert!(error <= 2.0 || x == 1.0 && m32::log(x) == 0.0, "ln {x} = {} is {error} ulp off", m32::log(x));
    }
    assert_eq!([0.0, -0.0, f32::INFINITY, 1.0].map(m32::log), [-f32::INFINITY, -f32::INFINITY, f32::INFINITY, 0.0]);
    let none = [-1.0, -f32::INFINITY, f32::NAN].map(m32::log);
    assert!(none.iter().all(|y| y.is_nan()), "{none:?}");
}

#[test]
fn the_logarithm_of_a_little_more_than_one_has_its_digits() {
    for i in 0..4_000 {
        let x = 10f64.powf(f64::from(i) * 0.01 - 35.0);
        for (got, tolerance) in [(f64::from((x as f32).ln_1p()), 3e-7), (Math::ln_1p(x), 1e-15)] {
            let want = f64::ln_1p(if tolerance > 1e-10 { f64::from(x as f32) } else { x });
            assert!(
                relative_eq!(got, want, epsilon = 0.0, max_relative = tolerance),
                "ln(1 + {x}) = {got}, not {want}"
            );
        }
    }
    assert_eq!((Math::ln_1p(0.0_f32), Math::ln_1p(0.0_f64)), (0.0, 0.0));
}

#[test]
fn the_normal_distribution_in_single_precision_has_its_digits_in_both_tails() {
    for i in -9_000..9_000 {
        let x = i as f32 * 1e-3;
        let (got, want) = (f64::from(m32::normal_cdf(x)), m64::normal_cdf(f64::from(x)));
        // The exponent x²/2 is rounded.
        let bound = 4e-7 + 1.2e-7 * f64::from(x * x);
        assert!(relative_eq!(got, want, epsilon = 0.0, max_relative = bound), "Φ({x}) = {got}, not {want}");
    }
    assert_eq!([-1e30, -f32::INFINITY, 1e30, f32::INFINITY].map(m32::normal_cdf), [0.0, 0.0, 1.0, 1.0]);
    assert!(m32::normal_cdf(f32::NAN).is_nan(), "{}", m32::normal_cdf(f32::NAN));
}

#[test]
fn a_sigmoid_and_the_rest_of_one_both_have_their_digits() {
    for x in (-4_300..=4_300).map(|i| i as f32 * 2e-2) {
        let ((s, rest), same) = (m32::sigmoid_and_rest(x), m32::sigmoid(x));
        assert_eq!(s.to_bits(), same.to_bits());
        let wide = f64::from(x);
        for (got, want) in [(rest, m64::sigmoid(-wide)), (m32::sigmoid_slope(x), m64::sigmoid_slope(wide))] {
            assert!(
                relative_eq!(f64::from(got), want, epsilon = 0.0, max_relative = 2e-6),
                "at {x}: {got}, not {want}"
            );
        }
        if wide.abs() < 30.0 {
            let want = m64::sigmoid(wide) * m64::sigmoid(-wide);
            let slopes = [m64::sigmoid_slope(wide) / want - 1.0, m64::tanh_slope(wide) - (1.0 - wide.tanh().powi(2))];
            let close = abs_diff_eq!(slopes[0], 0.0, epsilon = 1e-14) && abs_diff_eq!(slopes[1], 0.0, epsilon = 1e-15);
            assert!(close, "at {x}: off by {slopes:?}");
        }
    }
    let ends = [f32::INFINITY, -f32::INFINITY, 1e30, -1e30];
    assert_eq!(ends.map(m32::sigmoid_and_rest), [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, 1.0)]);
    assert_eq!((ends.map(m32::sigmoid_slope), ends.map(m32::tanh_slope)), ([0.0; 4], [0.0; 4]));
}

#[test]
fn a_gate_and_its_slope_both_have_their_digits() {
    let ends = [0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4, f32::INFINITY, -f32::INFINITY];
    for x in (-8_600..=8_600).map(|i| i as f32 * 1e-2).chain(ends) {
        let (wide, (s, s_slope), (t, t_slope)) = (f64::from(x), x.sigmoid_and_slope(), x.tanh_and_slope());
        let want = [m64::sigmoid(wide), m64::sigmoid_slope(wide), wide.tanh(), m64::tanh_slope(wide)];
        for (got, want) in [s, s_slope, t, t_slope].into_iter().zip(want) {
            assert!(
                relative_eq!(f64::from(got), want, epsilon = 4e-38, max_relative = 1e-6),
                "at {x}: {got:e}, not {want:e}"
            );
        }
        let both = [wide.sigmoid_and_slope().0 - want[0], wide.tanh_and_slope().0 - want[2]];
        assert!(both.iter().all(|error| abs_diff_eq!(*error, 0.0, epsilon = 1e-15)), "at {x}: off by {both:?}");
    }
    let none = [f32::NAN.sigmoid_and_slope(), f32::NAN.tanh_and_slope()];
    assert!(none.into_iter().all(|(value, slope)| value.is_nan() && slope.is_nan()), "{none:?}");
}

#[test]
fn extremes_saturate_and_nan_stays() {
    assert_eq!(m32::exp(1e4), f32::INFINITY);
    assert_eq!(m32::exp(f32::INFINITY), f32::INFINITY);
    assert!(m32::exp(-1e4) < 1e-38, "{:e}", m32::exp(-1e4));
    // Up to the largest finite number, of which the logarithm is 88.72.
    for x in [88.0_f32, 88.3, 88.4, 88.5, 88.7] {
        let want = m64::exp(f64::from(x));
        assert!(relative_eq!(f64::from(m32::exp(x)), want, epsilon = 0.0, max_relative = 1e-5), "e^{x}");
    }
    let off = f64::from(m32::decay(88.0)) / m64::exp(88.0) - 1.0;
    assert!(abs_diff_eq!(off, 0.0, epsilon = 1e-6), "e^88 is off by {off:e} of itself");
    assert_eq!((m32::sigmoid(1e4), m32::tanh(-1e4), m32::tanh(1e4)), (1.0, -1.0, 1.0));
    assert!(m32::sigmoid(-1e4) < 1e-37, "{:e}", m32::sigmoid(-1e4));
    let ends = [f32::INFINITY, -f32::INFINITY];
    assert_eq!((ends.map(m32::sigmoid), ends.map(m32::tanh)), ([1.0, 0.0], [1.0, -1.0]));
    assert_eq!(m32::softplus(1e4), 1e4);
    assert_eq!([-1e4, f32::NEG_INFINITY].map(m32::decay), [0.0; 2]);
    assert_eq!([-127.0, -1e4, f32::NEG_INFINITY].map(m32::exp2), [0.0; 3]);
    // Whole powers are exact; between the last two normal ones and 0 it falls to no less than 0.
    (-126..=127).for_each(|n| assert_eq!(m32::exp2(n as f32), 2f32.powi(n)));
    for y in (0..=1000).map(|i| m32::exp2(-127.0 + i as f32 * 2e-3)) {
        assert!((0.0..=2.5e-38).contains(&y), "{y:e}");
    }
    for f in [m32::exp, m32::decay, m32::exp2, m32::sigmoid, m32::tanh, m32::softplus] {
        // The NaNs that arithmetic gives.
        for bits in [0x7fc00000, 0xffc00000] {
            assert!(f(f32::from_bits(bits)).is_nan(), "{bits:x}");
        }
    }
    assert_eq!(m32::softplus_and_slope(1e4), (1e4, 1.0));
    let none = <[f32; 2]>::from(m32::softplus_and_slope(f32::NAN));
    assert!(none.iter().all(|y| y.is_nan()), "{none:?}");
}
