//! Our kernels, each that this processor can run, beside the sums in their order: to the bit, but for a zero's sign.

use tapezoo::{
    kernels::gemm::{Epilogue, Mat, at_level, gemm},
    tensor::simd::Level,
};

/// (m, k, n) around a tile's rows, a vector and a block of k; and for tall, skinny, small-k and packed products.
const SIZES: [(usize, usize, usize); 53] = [
    (1, 1, 1),
    (3, 0, 5),
    (18, 0, 6),
    (33, 3, 4),
    (20, 3, 8),
    (5, 3, 7),
    (7, 4, 8),
    (16, 4, 4),
    (17, 4, 3),
    (16, 4, 7),
    (18, 4, 6),
    (17, 4, 13),
    (48, 6, 3),
    (71, 9, 1),
    (19, 4, 9),
    (18, 4, 16),
    (33, 4, 40),
    (17, 5, 4),
    (31, 34, 2),
    (40, 100, 1),
    (16, 512, 4),
    (64, 512, 1),
    (16, 513, 4),
    (4, 3000, 3),
    (6, 2100, 17),
    (8, 2, 24),
    (13, 17, 25),
    (25, 31, 33),
    (70, 64, 48),
    (64, 257, 19),
    (65, 300, 72),
    (100, 700, 40),
    (18, 1, 3),
    (33, 1, 7),
    (17, 2, 4),
    (16, 2, 6),
    (35, 7, 6),
    (50, 30, 8),
    (47, 33, 5),
    (16, 600, 6),
    (450, 300, 6),
    (18, 2, 90),
    (21, 1, 8),
    (20, 4, 8),
    (19, 8, 8),
    (20, 1, 20),
    (19, 2, 40),
    (33, 4, 70),
    (17, 8, 17),
    (40, 8, 33),
    (1030, 20, 12),
    (1025, 260, 65),
    (3, 70, 100),
];

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// A matrix in memory of its own: in rows, in columns, or with gaps.
fn mat(rows: usize, cols: usize, how: usize) -> (usize, Mat) {
    match how {
        0 => (rows * cols, Mat::new(rows, cols, cols)),
        1 => (rows * cols, Mat::new(cols, rows, rows).t()),
        2 => (rows * (cols + 3), Mat::new(rows, cols, cols + 3)),
        _ => (rows * (2 * cols + 1), Mat { rows, cols, rs: 2 * cols + 1, cs: 2 }),
    }
}

/// y from `start`, and alpha times the sums over `steps` numbers at a time.
fn plain(alpha: f32, a: (&[f32], Mat), b: (&[f32], Mat), y: &mut [f32], my: Mat, start: Epilogue<f32>, steps: usize) {
    for i in 0..my.rows {
        for j in 0..my.cols {
            let y = &mut y[i * my.rs + j * my.cs];
            let mut whole = match start {
                Epilogue::Set => 0.0,
                Epilogue::Add => *y,
                Epilogue::Bias(row) => row[j],
            };
            for p in (0..a.1.cols.max(1)).step_by(steps) {
                let (mut sum, end) = (0f32, (p + steps).min(a.1.cols));
                for p in p..end {
                    sum = a.0[i * a.1.rs + p * a.1.cs].mul_add(b.0[p * b.1.rs + j * b.1.cs], sum);
                }
                whole = alpha.mul_add(sum, whole);
            }
            *y = whole;
        }
    }
}

#[test]
fn every_instruction_set_sums_in_the_same_order() {
    for level in [Level::Avx2, Level::Avx512] {
        sums_in_order(level);
    }
}

fn sums_in_order(level: Level) {
    for (m, k, n) in SIZES {
        // Large products are tried in a fifth of the layouts, in which each operand has each of its four.
        for layout in (0..4 * 4 * 4).step_by(if m * k * n > 100_000 { 5 } else { 1 }) {
            let (how_a, how_b, how_y) = (layout % 4, layout / 4 % 4, layout / 16);
            let ((len_a, ma), (len_b, mb), (len_y, my)) = (mat(m, k, how_a), mat(k, n, how_b), mat(m, n, how_y));
            let (a, b, before, row) = (numbers(len_a, 1), numbers(len_b, 2), numbers(len_y, 3), numbers(n, 4));
            let alpha = if layout % 3 == 0 { 0.3 } else { 1.0 };
            for start in [Epilogue::Set, Epilogue::Add, Epilogue::Bias(&row)] {
                if matches!(start, Epilogue::Bias(_)) && my.cs != 1 {
                    continue;
                }
                let (mut y, mut want) = (before.clone(), before.clone());
                let Some(steps) = at_level(level, start, alpha, (&a, ma), (&b, mb), (&mut y, my)) else { continue };
                plain(alpha, (&a, ma), (&b, mb), &mut want, my, start, steps);
                let same = y.iter().zip(&want).all(|(y, want)| y == want);
                assert!(same, "{level:?}: {m} x {k} x {n}, layouts {how_a} {how_b} {how_y}, {start:?}: {y:?} {want:?}");
            }
        }
    }
}

/// A matrix is refused if its memory is shorter than its sizes say, whatever the distance between its rows.
#[test]
#[should_panic(expected = "too short")]
fn a_matrix_larger_than_any_memory_is_none() {
    let far = Mat { rows: 3, cols: 1, rs: usize::MAX / 2 + 1, cs: 1 };
    gemm(1.0_f32, (&[1.0; 3], far), (&[1.0], Mat::new(1, 1, 1)), (&mut [0.0; 3], Mat::new(3, 1, 1)), false);
}
