//! One matrix in many products.

use tapezoo::{
    kernels::gemm::{Mat, Packed, gemm},
    tensor::{Cpu, Real},
};

fn numbers<T: Real>(n: usize, by: usize) -> Vec<T> {
    (0..n).map(|i| T::of(((i * by) % 17) as f64 / 7.0 - 1.0)).collect()
}

/// The largest difference from a sum of products, over both ways for b to lie.
fn error<T: Real>(m: usize, k: usize, n: usize) -> f64 {
    let (cpu, a, b) = (Cpu::default(), numbers::<T>(m * k, 5), numbers::<T>(k * n, 3));
    let mut error = 0f64;
    for mat in [Mat::new(k, n, n), Mat::new(n, k, k).t()] {
        let mut y = vec![T::of(f64::NAN); m * n];
        Packed::new(&cpu, m, (&b, mat)).times(&a, &mut y);
        for (at, y) in y.iter().enumerate() {
            let (i, j) = (at / n, at % n);
            let want = (0..k).map(|p| a[i * k + p].to_f64() * b[p * mat.rs + j * mat.cs].to_f64()).sum::<f64>();
            error = error.max(if y.is_finite() { (y.to_f64() - want).abs() } else { f64::INFINITY });
        }
    }
    error
}

#[test]
fn every_way_gives_the_sums_of_products() {
    for (m, k, n) in [
        (1, 1, 1),
        (1, 3, 5),
        (3, 0, 4),
        (0, 4, 3),
        (4, 4, 16),
        (4, 16, 64),
        (5, 64, 16),
        (7, 17, 69),
        (32, 16, 64),
        (33, 64, 16),
        (9, 40, 164),
        (9, 40, 8),
        (70, 300, 9),
        (5, 700, 300),
    ] {
        let (single, double) = (error::<f32>(m, k, n), error::<f64>(m, k, n));
        assert!(single <= 2e-6 * k as f64, "{m} x {k} x {n} is {single} off in single precision");
        assert!(double <= 1e-14 * k as f64, "{m} x {k} x {n} is {double} off in double precision");
    }
}

/// The same where there are no panels, as with AVX-512: the result is then from [`gemm`] itself, or summed in its
/// order.
#[test]
fn a_shared_matrix_gives_the_same_products_to_the_bit() {
    let cpu = Cpu::default();
    for (m, k, n) in
        [(9, 40, 64), (33, 520, 8), (33, 256, 8), (33, 300, 130), (32, 64, 256), (32, 128, 512), (33, 512, 128)]
    {
        for mat in [Mat::new(k, n, n), Mat::new(n, k, k).t()] {
            let (a, b) = (numbers::<f32>(m * k, 5), numbers::<f32>(k * n, 3));
            let (mut y, mut want) = (vec![0f32; m * n], vec![0f32; m * n]);
            Packed::new(&cpu, m, (&b, mat)).times(&a, &mut y);
            gemm(1.0, (&a, Mat::new(m, k, k)), (&b, mat), (&mut want, Mat::new(m, n, n)), false);
            assert_eq!(y, want, "{m} x {k} x {n}");
        }
    }
}
