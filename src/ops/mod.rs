//! Everything that can be differentiated: one file for each op, with its meaning.
//!
//! An op is one of the [`primitives`], in plain loops, or a formula over other ops. Where an op has no kernel the tape
//! runs its formula and records the ops in the formula, down to primitives, so their derivatives give its gradient. How
//! an op is computed fast, and how its gradient is then computed, is in [`kernels`](crate::kernels).
//!
//! A function of [`Var`](crate::autograd::Var)s is a formula, and needs no op: [`words`] has some. To add a function of
//! one number: a line in [`elementwise`], and one for its kernel in [`kernels`](crate::kernels::elementwise). To add
//! any other op: a file with a struct that implements [`Op`], and its name in the list below. The gradient check and
//! the other tests of all ops run over both. An op of your own crate needs no place here: `Tape::apply` takes any, and
//! [`check::op`](crate::check::op) checks it.
//!
//! # Panics
//! The functions of these modules, and the methods of [`Var`](crate::autograd::Var) that they define, panic where their
//! inputs do not fit: in shape or type, or as values of two tapes. The message has the op, the shapes and the caller's line.

pub mod attention;
pub mod block_diagonal;
pub mod conv;
pub mod decay;
pub mod delta;
pub mod erase_write;
pub mod gated_linear_attention;
pub mod gated_skip;
pub mod glu;
pub mod heads;
pub mod linear;
pub mod linear_attn;
pub mod logsumexp;
pub mod loss;
pub mod lru_scan;
pub mod lstm;
pub mod mlstm;
pub mod norm;
pub mod primitives;
pub mod quasi_lstm;
pub mod scan;
pub mod scan_parallel;
pub mod segsum;
pub mod selective;
pub mod slstm;
pub mod softmax;
pub mod stabiliser;
pub mod tril_matmul;
pub mod words;

pub use primitives::{arith, cast, cumsum, elementwise, embed, matmul, movement, permute, reduce, triangular};

use crate::{
    autograd::{Gen, In, Kernels, Op},
    tensor::{DType, Tensor},
};
use std::sync::OnceLock;

/// A random instance of an op with inputs for it.
pub type Sample = (Box<dyn Op>, Vec<Tensor>);

/// A registered op: the name of its type, and a source of samples.
pub type Entry = (&'static str, fn(&mut Gen) -> Sample);

macro_rules! ops {
    ($($module:ident: $($Op:ident),+ $(,)?;)*) => {
        /// Every op but the functions of one number.
        const OTHERS: &[Entry] = &[$($((stringify!($Op), |g| {
            let (op, x) = <$module::$Op as Op>::sample(g);
            (Box::new(op), x)
        })),+),*];
    };
}

ops! {
    arith: Add, Sub, Mul, Div, Affine;
    matmul: Matmul;
    tril_matmul: TrilMatmul;
    linear: Linear;
    cast: Cast;
    block_diagonal: BlockDiagonal;
    movement: Narrow, Concat, Tril;
    permute: Permute;
    reduce: SumAxis, MaxAxis;
    logsumexp: Logsumexp;
    cumsum: Cumsum;
    segsum: Segsum;
    stabiliser: Stabiliser;
    softmax: Softmax, CausalSoftmax;
    norm: LayerNorm, RmsNorm, L2Norm;
    embed: Embedding, Gather;
    linear_attn: LinearAttention;
    delta: DeltaRule, GatedDeltaRule;
    gated_linear_attention: GatedLinearAttention;
    erase_write: EraseWrite;
    triangular: UnitLowerSolve;
    attention: CausalAttention;
    conv: CausalConv1d;
    glu: Glu;
    gated_skip: GatedSkip;
    loss: CrossEntropy;
    scan: LinearScan, LruScan;
    selective: SelectiveScan;
    lstm: LstmSequence;
    quasi_lstm: QuasiLstm;
    slstm: SlstmSequence;
    mlstm: Mlstm;
}

/// Every op of the crate: the functions of one number, and the others.
pub const OPS: &[Entry] = &{
    let (of_one, n) = (elementwise::OPS, elementwise::OPS.len());
    let mut all = [of_one[0]; elementwise::OPS.len() + OTHERS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < n { of_one[i] } else { OTHERS[i - n] };
        i += 1;
    }
    all
};

/// The inputs of an op that stay f32 where the others are bf16: rates, phases and gates. A recurrence would multiply
/// their rounding at every step.
pub fn in_f32(op: &str) -> &'static [usize] {
    match op {
        "gated_delta_rule" => &[5], // the logarithms of the gates
        "lru_scan" => &[0, 1],      // λ, whose powers the states are made of
        "mlstm" => &[3, 4],         // the gates, which stand in exponents
        "selective_scan" => &[2],   // A, the rates of decay
        _ => &[],
    }
}

/// Check that the inputs have one type, but for [`in_f32`].
fn same_dtype(op: &str, x: In) -> Result<(), String> {
    let in_f32 = in_f32(op);
    let all = (0..x.len()).find(|i| !in_f32.contains(i)).map_or(DType::F32, |i| x[i].dtype());
    let expected = |i: usize| if in_f32.contains(&i) { all.real() } else { all };
    match (0..x.len()).find(|&i| x[i].dtype() != expected(i)) {
        Some(i) => {
            let (shape, dtype) = (x[i].shape(), x[i].dtype());
            Err(format!("input {i} of shape {shape} is {dtype}, expected {} beside {all}", expected(i)))
        }
        None => Ok(()),
    }
}

/// Check that `x` holds real numbers: `infer` asks this of inputs that are not indices.
fn check_real(x: &Tensor) -> Result<(), String> {
    if x.dtype() == DType::I32 {
        return Err(format!("integers of shape {} take no part in arithmetic, expected f32 or f64", x.shape()));
    }
    Ok(())
}

/// An error for chunks of no steps.
fn some_steps(chunk: usize) -> Result<(), String> {
    if chunk == 0 { Err("a chunk needs one step at least, got chunk = 0".into()) } else { Ok(()) }
}

/// Every op that has a kernel, and every kernel of an op that has several: the op's type, and the name that `--kernels`
/// takes.
pub fn kernels() -> &'static [(&'static str, &'static str)] {
    static ALL: OnceLock<Vec<(&'static str, &'static str)>> = OnceLock::new();
    ALL.get_or_init(all_kernels)
}

/// Drawing samples of every op takes milliseconds, and every configuration of a sweep or a test asks for these names.
fn all_kernels() -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = vec![];
    // One op may have several names, as a sum and a mean do: several samples find them all.
    for (of, sample) in OPS {
        for seed in 0..16 {
            let op = sample(&mut Gen::new(seed)).0;
            let all = op.kernels().iter().map(|kernel| kernel.name().unwrap_or(op.name()));
            for name in [op.name()].into_iter().filter(|_| op.kernels().iter().next().is_some()).chain(all) {
                if !found.iter().any(|(_, known)| *known == name) {
                    found.push((of, name));
                }
            }
        }
    }
    found
}

/// Check that there are kernels, or ops with kernels, of these names.
///
/// # Errors
/// When a name is unknown: the name, and the names that there are.
pub(crate) fn check_names(kernels: &Kernels) -> Result<(), String> {
    let known: Vec<&str> = self::kernels().iter().map(|&(_, name)| name).collect();
    match kernels.names().iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(format!("kernels: no kernel has the name '{name}'; there are {}", known.join(", "))),
        None => Ok(()),
    }
}
