//! Recurrences whose transition is the same at every step, as convolutions: what powers of a matrix make of a row.

use crate::{
    autograd::Var,
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

/// R, R A, …, R A^(t−1) one below another, [S, t R, M], of rows [S, R, M] and A [S, M, M], in log t products.
pub fn powers<'t>(rows: Var<'t>, a: Var<'t>, t: usize) -> Var<'t> {
    let [_, r, _] = rows.dims();
    doubled(rows, a, t, |all, more| [all, more]).narrow(1, 0, t * r)
}

/// The same from the last power to the first, as a causal convolution has its taps: for one row.
pub fn taps<'t>(row: Var<'t>, a: Var<'t>, t: usize) -> Var<'t> {
    let all = doubled(row, a, t, |all, more| [more, all]);
    all.narrow(1, all.shape().at(1) - t, t)
}

fn doubled<'t>(rows: Var<'t>, mut a: Var<'t>, t: usize, order: impl Fn(Var<'t>, Var<'t>) -> [Var<'t>; 2]) -> Var<'t> {
    let (mut all, mut n) = (rows, 1);
    while n < t {
        all = Var::concat(&order(all, all.matmul(a)), 1);
        n *= 2;
        if n < t {
            a = a.matmul(a);
        }
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
