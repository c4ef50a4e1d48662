//! A cell of an LSTM: the factors of its gradients.

use approx::abs_diff_eq;
use tapezoo::kernels::{
    lstm_cell::{read, write},
    math::{Math, m64},
};

/// Against the standard library's functions in double precision.
fn check<T: Math>(digits: f64, least: f64) {
    let sums = [0.0, -0.0, 1e-30, -1e-6, 0.3, -0.7, 2.0, -4.0, 9.0, 15.0, -16.7, 30.0, -40.0, 80.0, 1e4, -1e4];
    let ends = [f64::INFINITY, f64::NEG_INFINITY];
    let all: Vec<f64> = sums.into_iter().chain(ends).map(|x| T::of(x).to_f64()).collect();
    let n = all.len();
    for case in 0..n * n * n {
        let [i, f, g, o] = [case % n, case / n % n, case / n / n, (7 * case + 3) % n].map(|at| all[at]);
        for before in [0.0, 0.75, -20.0] {
            let ([to_i, to_f, to_g, keep], c) = write([i, f, g].map(|x| [T::of(x)]), [T::of(before)]);
            let ([to_o, through_u], h) = read([T::of(o)], c);
            let c = c[0].to_f64();
            let want = [
                g.tanh() * m64::sigmoid_slope(i),
                before * m64::sigmoid_slope(f),
                m64::sigmoid(i) * m64::tanh_slope(g),
                c.tanh() * m64::sigmoid_slope(o),
                m64::sigmoid(f),
                m64::sigmoid(o) * m64::tanh_slope(c),
                m64::sigmoid(o) * c.tanh(),
            ];
            let all = [to_i, to_f, to_g, to_o, keep, through_u, h];
            for (k, (got, want)) in all.into_iter().zip(want).enumerate() {
                let (got, least) = (got[0].to_f64(), least * before.abs().max(1.0));
                let right = abs_diff_eq!(got, want, epsilon = digits * want.abs() + least);
                assert!(right, "number {k} of {:?}: {got:e}, not {want:e}", [i, f, g, o, before]);
            }
            let want = m64::sigmoid(f) * before + m64::sigmoid(i) * g.tanh();
            assert!(
                abs_diff_eq!(c, want, epsilon = digits * before.abs().max(1.0)),
                "c of {:?} is {c}",
                [i, f, g, before]
            );
        }
    }
}

#[test]
fn every_factor_of_a_gradient_has_its_digits() {
    check::<f32>(2e-6, 1e-36); // below that e^x is on its way to 0
    check::<f64>(1e-14, 1e-300);
}
