//! Matrix products over the last two axes, batched over the others, with either operand transposed.

use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Primitive, Var, zeroed},
    ops::{check_real, same_dtype},
    tensor::{Real, Shape, Tensor},
    with_real,
};

/// y = a b, each transposed first if `ta`, `tb`. The outer axes of `a` and `b` must be equal, or `b` must be one
/// matrix, which then serves every batch.
pub struct Matmul {
    /// Transpose the last two axes of `a`.
    pub ta: bool,
    /// Transpose the last two axes of `b`.
    pub tb: bool,
}

impl Op for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x).and(check_real(&x[0]))?;
        let (a, b) = (x[0].shape(), x[1].shape());
        if a.rank() < 2 || b.rank() < 2 {
            return Err(format!("needs two axes at least, got shapes {a} and {b}"));
        }
        let outer = |s: Shape| Shape::new(&s.dims()[..s.rank() - 2]);
        let size = |s: Shape, t: bool| if t { [s.at(-1), s.at(-2)] } else { [s.at(-2), s.at(-1)] };
        let ([rows, inner], [inner_b, cols]) = (size(a, self.ta), size(b, self.tb));
        if inner != inner_b || !(b.rank() == 2 || outer(a) == outer(b)) {
            let t = |on| if on { "ᵀ" } else { "" };
            return Err(format!("shapes {a}{} and {b}{} do not fit", t(self.ta), t(self.tb)));
        }
        Ok(a.with(a.rank() - 2, rows).with(a.rank() - 1, cols).into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (m, k, n) = (g.size(5), g.size(5), g.size(5));
        let op = Matmul { ta: g.coin(), tb: g.coin() };
        let outer = g.shape(2, 3);
        let mat = |g: &mut Gen, batched: bool, t: bool, r: usize, c: usize| {
            let (r, c) = if t { (c, r) } else { (r, c) };
            let outer = if batched { outer.dims() } else { &[] };
            let dims: Vec<usize> = outer.iter().copied().chain([r, c]).collect();
            g.normal(&dims[..])
        };
        let batched = g.coin();
        let (a, b) = (mat(g, true, op.ta, m, k), mat(g, batched, op.tb, k, n));
        (op, vec![a, b])
    }
}

/// y_i = Σ a_j b_k over the terms (i, j, k), so da_j = Σ dy_i b_k and db_k = Σ a_j dy_i over the same terms.
impl Primitive for Matmul {
    fn value(&self, x: In, y: &mut Tensor) {
        let shape = y.shape();
        with_real!(y.dtype(), T => {
            let (a, b, y) = (x[0].host::<T>(), x[1].host::<T>(), y.host_mut::<T>());
            y.fill(T::ZERO);
            self.terms(x[0].shape(), x[1].shape(), shape, |i, j, k| y[i] += a[j] * b[k]);
        });
    }

    fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
        let (a_shape, b_shape, shape) = (x[0].shape(), x[1].shape(), dy.shape());
        with_real!(dy.dtype(), T => {
            let (a, b, dy) = (x[0].host::<T>(), x[1].host::<T>(), dy.host::<T>());
            if let Some(da) = dx[0].slot::<[T]>().map(zeroed) {
                self.terms(a_shape, b_shape, shape, |i, j, k| da[j] += dy[i] * b[k]);
            }
            if let Some(db) = dx[1].slot::<[T]>().map(zeroed) {
                self.terms(a_shape, b_shape, shape, |i, j, k| db[k] += a[j] * dy[i]);
            }
        });
    }
}

impl Matmul {
    /// Calls `term(i, j, k)`, places in y, a and b, for every product a_j b_k in the sum y_i.
    fn terms(&self, a: Shape, b: Shape, y: Shape, mut term: impl FnMut(usize, usize, usize)) {
        let (rows, cols) = (y.at(-2), y.at(-1));
        let inner = a.at(if self.ta { -2 } else { -1 });
        // One matrix b serves every batch, or each has its own.
        let step_b = if b.rank() == 2 { 0 } else { inner * cols };
        for i in 0..y.len() {
            let (batch, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
            for l in 0..inner {
                let in_a = if self.ta { l * rows + row } else { row * inner + l };
                let in_b = if self.tb { col * inner + l } else { l * cols + col };
                term(i, batch * rows * inner + in_a, batch * step_b + in_b);
            }
        }
    }
}

impl<'t> Var<'t> {
    /// self · b, over the last two axes; `b` may be one matrix for every batch.
    #[track_caller]
    pub fn matmul(self, b: Var<'t>) -> Var<'t> {
        self.tape().apply(Matmul { ta: false, tb: false }, [self, b])
    }

    /// self · bᵀ
    #[track_caller]
    pub fn matmul_t(self, b: Var<'t>) -> Var<'t> {
        self.tape().apply(Matmul { ta: false, tb: true }, [self, b])
    }

    /// selfᵀ · b
    #[track_caller]
    pub fn t_matmul(self, b: Var<'t>) -> Var<'t> {
        self.tape().apply(Matmul { ta: true, tb: false }, [self, b])
    }
}
