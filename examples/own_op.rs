//! An op of your own: a formula, and beside it a kernel that computes the same faster.
//!
//! cargo run --release --example own_op

use std::time::Instant;
use tapezoo::{
    autograd::{Candidates, Gen, Grad, In, Kernel, Kernels, Op, Outs, Tape, Value, Var},
    check,
    tensor::{Cx, DType, Real, Tensor},
    with_real,
};

/// The first thing to try, and often enough: a function of values is a formula, and the tape knows its gradient.
fn softcap_by_formula(x: Var<'_>, cap: f64) -> Var<'_> {
    x / ((x * (1.0 / cap)).square() + 1.0).sqrt()
}

/// y = x / √(1 + (x / c)²), element by element: x where it is small, and never beyond ±c, as long as x / c has a square
/// (in single precision, up to 1e19). As an op it has a name in errors and in profiles, and may have a kernel: one pass
/// over memory instead of five.
struct Softcap {
    cap: f64,
}

impl Op for Softcap {
    fn name(&self) -> &'static str {
        "softcap"
    }

    /// The shapes of the results, or a sentence that says why the inputs do not fit.
    fn infer(&self, x: In) -> Result<Outs, String> {
        match x[0].dtype() {
            DType::I32 => Err(format!("integers of shape {}: expected numbers to compute with", x[0].shape())),
            _ => Ok(x[0].shape().into()),
        }
    }

    /// The definition of the op, by which it is computed wherever there is no kernel.
    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        Some(vec![softcap_by_formula(x[0], self.cap)])
    }

    /// The kernels, the preferred first: here one, which is the op itself.
    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    /// Random instances, which the checks run on.
    fn sample(g: &mut Gen) -> (Softcap, Vec<Tensor>) {
        let shape = g.shape(3, 6);
        (Softcap { cap: g.uniform(0.5, 3.0) }, vec![g.normal(shape)])
    }
}

impl Kernel for Softcap {
    /// Only on the CPU. On a device the tape then runs the formula, by kernels of the ops in it. To compute there too,
    /// accept every `cx`, and launch under `Cx::Cuda` a kernel of a `.cu` file: `src/kernels/glu.rs` shows how.
    fn accepts(&self, _: In, cx: &Cx) -> bool {
        matches!(cx, Cx::Cpu(_))
    }

    /// Every element of every result is written: its buffer holds old numbers.
    fn forward(&self, _: &Cx, x: In, y: &mut [Value]) {
        fn cap<T: Real>(cap: f64, x: &[T], y: &mut [T]) {
            let over = T::of(1.0 / cap);
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = x / (x * over * (x * over) + T::ONE).sqrt());
        }
        with_real!(x[0].dtype(), T => cap::<T>(self.cap, x[0].host(), y[0].host_mut()))
    }

    /// dx = dy (1 + (x / c)²)^(−3/2), written to the slot or added to its contents. There may be no slot, if no gradient
    /// is asked for. (By y it would be (1 − (y / c)²)^(3/2), a difference without digits where y is near c.)
    fn backward(&self, _: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        fn slope<T: Real>(cap: f64, x: &[T], dy: &[T], (dx, add): (&mut [T], bool)) {
            let over = T::of(1.0 / cap);
            for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                let square = x * over * (x * over) + T::ONE;
                let own = dy / (square * square.sqrt());
                *dx = if add { *dx + own } else { own };
            }
        }
        let Some(dy) = &dy[0] else { return };
        with_real!(x[0].dtype(), T => if let Some(slot) = dx[0].slot::<[T]>() {
            slope::<T>(self.cap, x[0].host(), dy.host(), slot);
        })
    }
}

/// The op, as formulas call it.
#[track_caller]
fn softcap(x: Var<'_>, cap: f64) -> Var<'_> {
    x.tape().apply(Softcap { cap }, [x])
}

fn main() -> Result<(), String> {
    check::op::<Softcap>()?;
    println!("softcap: checked, its gradient by finite differences and its kernel against the formula");

    let logits = Gen::new(0).normal([256, 1024]).cast(DType::F32);
    // Without this kernel the formula is computed by the kernels of the ops in it.
    let without = Kernels::Without(vec!["softcap".into()]);
    for (name, kernels) in [("by its formula", without), ("by its kernel", Kernels::Fast)] {
        let mut tape = Tape::default().with_kernels(kernels);
        let start = Instant::now();
        for _ in 0..20 {
            let x = tape.leaf(&logits);
            tape.backward(softcap(x, 30.0).sum());
            tape.reset();
        }
        println!("{name:>15}: {:.2} ms, forward and backward", start.elapsed().as_secs_f64() * 1e3 / 20.0);
    }
    Ok(())
}
