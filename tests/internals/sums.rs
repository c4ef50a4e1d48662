//! Sums of rows in interleaved parts.

use tapezoo::kernels::{
    lane_sums::{LANES, parts, sum, sums},
    lanes::Avx512,
};

/// A sum is the same on any processor, and in any place among the sixteen.
#[test]
fn sums_side_by_side_are_those_of_single_rows_to_the_bit() {
    let mut can = vec![None];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor was just asked whether it has AVX-512.
        can.push(Some(unsafe { Avx512::assumed() }));
    }
    for n in [0, 1, 2, 15, 16, 17, 31, 32, 64, 100] {
        for rows in 0..=LANES {
            let x: Vec<f32> = (0..rows * n).map(|i| (1.0 + i as f32).ln().sin()).collect();
            let row = |l: usize| &x[l * n..(l + 1) * n];
            for &here in &can {
                let got = sums(here, rows, |l, to| parts(row(l), to, |x| x * x));
                for (l, got) in got.into_iter().enumerate() {
                    let want = if l < rows { sum(row(l), |x| x * x) } else { 0.0 };
                    assert_eq!(got.to_bits(), want.to_bits(), "{n} numbers, row {l} of {rows}");
                }
            }
        }
    }
}
