//! Matrix products over the last two axes, batched over the others, with either operand transposed.

use crate::{
    autograd::{Gen, In, Kernel, Op, Outs, Primitive, Var},
    tensor::{Shape, Tensor},
};

/// y = op(a) op(b), where op transposes or not. The outer axes of `a` and `b` must be equal, or `b` must be one
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

    fn primitive(&self) -> Option<&dyn Primitive> {
        Some(self)
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(self)
    }

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
