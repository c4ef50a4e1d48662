//! Cross-entropy.
//!
//! loss = mean over the rows that count of ln Σⱼ e^xⱼ − Σⱼ yⱼ xⱼ, whose derivative is (softmax(x) − y) / n for the n
//! rows that count. y is 1 at the target and 0 elsewhere, or, with label smoothing s (Szegedy et al. 2016, section 7),
//! 1 − s + s/C and s/C. Rows with the target `ignore_index` do not count. Where no row counts, loss and gradient are 0
//! and not the NaN of 0 / 0. The loss of logits in bf16 is in f32.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::{DType, Shape, Tensor},
};

/// Mean cross-entropy of logits [.., C] against integer targets [..].
pub struct CrossEntropy {
    /// The target of rows that do not count.
    pub ignore_index: i32,
    /// s: how much of the target is spread over all classes.
    pub smoothing: f64,
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, targets) = (x[0].shape(), x[1].shape());
        check_real(&x[0])?;
        let c = match shape.dims().split_last() {
            Some((&c, outer)) if outer == targets.dims() => c,
            _ => return Err(format!("targets of shape {targets} for logits of shape {shape}: expected one a row")),
        };
        if x[1].dtype() != DType::I32 {
            return Err(format!("targets of shape {targets} are {}, expected i32", x[1].dtype()));
        }
        let outs = [(Shape::scalar(), x[0].dtype().real())].into();
        // Targets computed on the device are not checked while a graph is recorded; a bad one gives NaN.
        let Some(targets) = x[1].integers() else { return Ok(outs) };
        let fits = |t: i32| t == self.ignore_index || usize::try_from(t).is_ok_and(|t| t < c);
        if let Some(t) = targets.iter().find(|&&t| !fits(t)) {
            let ignore = self.ignore_index;
            return Err(format!("target {t} is neither in 0..{c} nor {ignore}, which is ignored (logits {shape})"));
        }
        Ok(outs)
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let (shape, tape) = (x[0].shape(), x[0].tape());
        let (rows, c) = (shape.rows(), shape.last());
        let targets: Vec<i32> = x[1].value().to_f64().iter().map(|&id| id as i32).collect();
        let counted: Vec<i32> = (0..rows as i32).filter(|&i| targets[i as usize] != self.ignore_index).collect();
        if counted.is_empty() {
            return Some(vec![tape.full(Shape::scalar(), DType::F32, 0.0).cast(x[0].dtype().real())]);
        }
        let ints = |list: Vec<i32>| tape.constant(&Tensor::from_vec(list.clone(), [list.len()]));
        let classes = counted.iter().map(|&i| targets[i as usize]).collect();
        // Rows that do not count are not looked at.
        let log_p = x[0].reshape([rows, c]).embedding(ints(counted)).log_softmax();
        let of_target = log_p.gather(ints(classes)).mean();
        // A weight of 0 leaves its term out, also where a logit is −∞ and the term ∞.
        let mean = match self.smoothing {
            0.0 => of_target,
            1.0 => log_p.mean(),
            s => (1.0 - s) * of_target + s * log_p.mean(),
        };
        Some(vec![-mean])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let x = g.shape(rank, 20);
        // Half of the samples have two classes.
        let x = if g.coin() { x.with(rank - 1, 2) } else { x };
        // Class 0 may be ignored.
        let ignore_index = if g.coin() { 0 } else { -1 };
        let smoothing = if g.coin() { 0.0 } else { g.uniform(0.0, 1.0) };
        (
            CrossEntropy { ignore_index, smoothing },
            vec![g.normal(x), g.ints(Shape::new(&x.dims()[..rank - 1]), x.last())],
        )
    }
}

impl<'t> Var<'t> {
    /// Mean over the rows of logits [.., C] of −ln softmax at the integer targets [..]. Rows with the target
    /// `ignore_index` do not count; 0 if none does.
    #[track_caller]
    pub fn cross_entropy(self, targets: Var<'t>, ignore_index: i32) -> Var<'t> {
        self.cross_entropy_smoothed(targets, ignore_index, 0.0)
    }

    /// The same against targets of which `smoothing`, from 0 to 1, is spread over all classes evenly.
    #[track_caller]
    pub fn cross_entropy_smoothed(self, targets: Var<'t>, ignore_index: i32, smoothing: f64) -> Var<'t> {
        self.tape().apply(CrossEntropy { ignore_index, smoothing }, [self, targets])
    }
}
