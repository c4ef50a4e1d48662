//! Recurrences whose transition is the same at every step, as convolutions: what powers of a matrix make of a row.

use crate::{
    autograd::{Tape, Var},
    error::{Error, Result},
    tensor::{DType, Tensor},
};

/// See that a dense transition has no more states than its powers, N³ operations each, are soon made of.
///
/// # Errors
/// When it has more: how many there may be.
pub fn check_order(n: usize) -> Result<()> {
    const MOST: usize = 512;
    if n <= MOST {
        return Ok(());
    }
    let why = "its transition is a dense matrix, of which powers are taken";
    Err(Error::Config(format!("state = {n}: expected at most {MOST} for this mixer: {why}")))
}

/// A, A², A⁴, … of A [S, M, M]: as many as [`powers`] up to t take.
pub fn squares<'t>(a: Var<'t>, t: usize) -> Vec<Var<'t>> {
    let mut all = vec![a];
    while 1 << all.len() < t {
        let last = all[all.len() - 1];
        all.push(last.matmul(last));
    }
    all
}

/// R, R A, …, R A^(t−1) one below another, [S, t R, M], of rows [S, R, M] and the [`squares`] of A, in log t products.
pub fn powers<'t>(rows: Var<'t>, squares: &[Var<'t>], t: usize) -> Var<'t> {
    let [_, r, _] = rows.dims();
    doubled(rows, squares, t, |all, more| [all, more]).narrow(1, 0, t * r)
}

/// The same from the last power to the first, as a causal convolution has its taps: for one row.
pub fn taps<'t>(row: Var<'t>, squares: &[Var<'t>], t: usize) -> Var<'t> {
    let all = doubled(row, squares, t, |all, more| [more, all]);
    all.narrow(1, all.shape().at(1) - t, t)
}

fn doubled<'t>(
    rows: Var<'t>,
    squares: &[Var<'t>],
    t: usize,
    order: impl Fn(Var<'t>, Var<'t>) -> [Var<'t>; 2],
) -> Var<'t> {
    let (mut all, mut n) = (rows, 1);
    for square in squares {
        if n >= t {
            break;
        }
        all = Var::concat(&order(all, all.matmul(*square)), 1);
        n *= 2;
    }
    all
}

/// A^n for n ≥ 1.
pub fn power<'t>(mut a: Var<'t>, mut n: usize) -> Var<'t> {
    let mut product: Option<Var<'t>> = None;
    loop {
        if n % 2 == 1 {
            product = Some(product.map_or(a, |product| product.matmul(a)));
        }
        n /= 2;
        match product {
            Some(product) if n == 0 => return product,
            _ if n == 0 => return a,
            _ => a = a.matmul(a),
        }
    }
}

/// x' = A x + B u held over a step of 1, Ā (N by N) and B̄ (N): exp [[A, B], [0, 0]] = [[Ā, B̄], [0, 1]], or by Euler's rule
/// its first two terms. `entry(i, j)` is A_ij, or B_i for j = N.
pub fn zero_order_hold(n: usize, euler: bool, entry: impl Fn(usize, usize) -> f64) -> (Vec<f64>, Vec<f64>) {
    let size = n + 1;
    let at = |k: usize| if k / size == n { 0.0 } else { entry(k / size, k % size) };
    let rate: Vec<f64> = (0..size * size).map(at).collect();
    let product = |a: &[f64], b: &[f64]| -> Vec<f64> {
        let tape = Tape::default();
        let [a, b] = [a, b].map(|x| tape.constant(&Tensor::from_vec(x.to_vec(), [size, size])));
        a.matmul(b).value().to_f64()
    };
    let largest = rate.chunks(size).map(|row| row.iter().map(|x| x.abs()).sum::<f64>()).fold(0.0, f64::max);
    // Taylor's series of a part of the step that is small, and squares of it.
    let halvings = if euler { 0 } else { largest.max(1.0).log2().ceil() as i32 + 3 };
    let small: Vec<f64> = rate.iter().map(|x| x / 2f64.powi(halvings)).collect();
    let mut sum: Vec<f64> = (0..size * size).map(|i| if i % (size + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let mut term = sum.clone();
    let terms = if euler { 1 } else { 16 };
    for k in 1..=terms {
        term = product(&term, &small).into_iter().map(|x| x / f64::from(k)).collect();
        sum.iter_mut().zip(&term).for_each(|(sum, x)| *sum += x);
    }
    for _ in 0..halvings {
        sum = product(&sum, &sum);
    }
    let rows = || sum.chunks(size).take(n);
    (rows().flat_map(|row| row[..n].to_vec()).collect(), rows().map(|row| row[n]).collect())
}

/// x' = A x + B u over steps of dt [D, 1, 1] by the bilinear rule, or with another share than ½ of the step's end: Ā [D,
/// N, N] and B̄ [D, 1, N] of a lower triangular A [N, N], B [N, 1] and the identity [N, N].
pub fn bilinear<'t>([a, input, one]: [Var<'t>; 3], dt: Var<'t>, share: f64) -> (Var<'t>, Var<'t>) {
    let (n, d) = (one.shape().last(), dt.shape().at(0));
    let (implicit, explicit) = (one - share * dt * a, one + (1.0 - share) * dt * a);
    // The rows divided by the diagonal make a unit triangular system.
    let diagonal = (implicit * one).sum_axis(2, true);
    let right = Var::concat(&[explicit, dt * input], 2) / diagonal;
    let solved = (implicit / diagonal).unit_lower_solve(right);
    (solved.narrow(2, 0, n), solved.narrow(2, n, 1).reshape([d, 1, n]))
}

/// Numbers that are part of a mixer and not learned. They stay in memory, since a recorded step reads them again.
pub struct Fixed {
    /// In f32 and in f64.
    numbers: [Tensor; 2],
}

impl Fixed {
    /// In this shape.
    pub fn new(values: Vec<f64>, shape: &[usize]) -> Fixed {
        let all = Tensor::from_vec(values, shape);
        Fixed { numbers: [DType::F32, DType::F64].map(|dtype| all.cast(dtype)) }
    }

    /// On x's tape, in f64 if x is, else in f32.
    pub fn beside<'t>(&self, x: Var<'t>) -> Var<'t> {
        x.tape().constant(&self.numbers[usize::from(x.dtype() == DType::F64)])
    }
}
