//! The launches of movement.cu.

use crate::{
    args,
    cuda::{Launch, Module},
    kernels::permute::Walk,
    ops::movement::Tril,
    tensor::{Cuda, MAX_RANK, Tensor},
};

/// The kernels that move elements.
pub(super) static MODULE: Module = Module::new("kernels/movement.cu", &[include_str!("movement.cu")]);

/// Rows of `run` elements: from x, `start` and then every `xs` elements, to y, `begin` and then every `ys`.
pub(super) fn runs_cuda(
    cu: &Cuda,
    (x, start, xs): (&Tensor, usize, usize),
    (y, begin, ys): (&mut Tensor, usize, usize),
    acc: bool,
    [rows, run]: [usize; 2],
) {
    let size = rows * run;
    let args = args![x, start, xs, &mut *y, begin, ys, acc, size, run];
    cu.launch(&MODULE, "runs", x.dtype(), cu.elements(size), args);
}

impl Walk {
    /// y (+)= x permuted; or, with `back`, the other way: what lies as y does into what lies as x does.
    pub(super) fn cuda(&self, cu: &Cuda, x: &Tensor, y: &mut Tensor, acc: bool, back: bool) {
        // (size, step in x, step in y) of the axes, outermost in y first.
        let mut axes = [(1, 0, 0); MAX_RANK];
        let (mut step, mut last) = (1, MAX_RANK);
        let all = self.outer.iter().chain([&self.rows, &self.inner]);
        for &(n, stride) in all.rev().filter(|axis| axis.0 != 1) {
            last -= 1;
            axes[last] = (n, stride, step);
            step *= n;
        }
        let (size, dtype) = (y.len(), y.dtype());
        let (n1, s1, _) = axes[MAX_RANK - 1];
        let contiguous = axes.iter().position(|a| a.1 == 1 && a.0 >= 8);
        if let (Some(p), true, true) = (contiguous, s1 > 1, n1 >= 8) {
            let (n2, _, s2) = axes[p];
            let mut rest = [(1, 0, 0); 3];
            let others = (0..MAX_RANK - 1).filter(|&i| i != p).map(|i| axes[i]);
            rest.iter_mut().zip(others).for_each(|(to, axis)| *to = axis);
            let tiles = n1.div_ceil(32) * n2.div_ceil(32) * rest.iter().map(|a| a.0).product::<usize>();
            let (mut inner, mut outer) = ([n1, s1], [n2, s2]);
            let (n, mut sx, mut sy) = (rest.map(|a| a.0), rest.map(|a| a.1), rest.map(|a| a.2));
            if back {
                std::mem::swap(&mut inner, &mut outer);
                std::mem::swap(&mut sx, &mut sy);
            }
            let launch = Launch::grid([cu.elements(256 * tiles).grid[0], 1, 1], [32, 8, 1]);
            let ([n1, s1], [n2, s2]) = (inner, outer);
            cu.launch(&MODULE, "transpose", dtype, launch, args![x, y, acc, tiles, n1, s1, n2, s2, n, sx, sy]);
        } else {
            let (n, mut sx, mut sy) = (axes.map(|a| a.0), axes.map(|a| a.1), axes.map(|a| a.2));
            if back {
                std::mem::swap(&mut sx, &mut sy);
            }
            cu.launch(&MODULE, "walk", dtype, cu.elements(size), args![x, y, acc, size, n, sx, sy]);
        }
    }
}

impl Tril {
    /// y (+)= the lower triangle of x.
    pub(super) fn cuda(&self, cu: &Cuda, x: &Tensor, y: &mut Tensor, acc: bool) {
        let (rows, cols, size) = (x.shape().at(-2), x.shape().at(-1), x.len());
        // Further diagonals are of a matrix no longer.
        let diag = self.diag.clamp(-(rows as isize), cols as isize) as i32;
        cu.launch(&MODULE, "tril", x.dtype(), cu.elements(size), args![x, y, acc, size, rows, cols, diag]);
    }
}
