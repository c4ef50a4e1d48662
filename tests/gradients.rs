//! Every op's gradient against finite differences, over random shapes.

use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Tape, Var, gradcheck},
    ops::OPS,
    tensor::{DType, Tensor},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_op_has_the_gradient_of_its_value(seed in any::<u64>()) {
        for (name, sample) in OPS {
            let (_, inputs) = sample(&mut Gen::new(seed));
            let build = |seed: u64| sample(&mut Gen::new(seed)).0;
            let error = gradcheck(|tape, x| tape.apply_dyn(build(seed), x), &inputs, seed, 2);
            prop_assert!(error <= 1e-6, "{name}: error {error:.1e} for inputs {inputs:?}");
        }
    }

    /// Outputs are written in full whatever the buffers held before, and equal inputs give equal bits.
    #[test]
    fn every_op_is_a_function_of_its_inputs(seed in any::<u64>()) {
        for (name, sample) in OPS {
            for dtype in [DType::F64, DType::F32] {
                let (op, inputs) = sample(&mut Gen::new(seed));
                let inputs: Vec<_> = inputs.iter().map(|x| if x.dtype() == DType::I32 { x.clone() } else { x.cast(dtype) }).collect();
                let run = |op, poison| {
                    let tape = Tape::default();
                    tape.poison(poison);
                    let x: Vec<_> = inputs.iter().map(|x| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(x) }).collect();
                    let y = tape.apply_dyn(op, &x);
                    let u: Vec<_> = y.iter().map(|y| Gen::new(seed).normal(y.shape()).cast(dtype)).collect();
                    let values: Vec<_> = y.iter().map(|y| y.value().to_f64()).collect();
                    tape.backward_from(y.iter().copied().zip(u));
                    let grads: Vec<_> = x.iter().map(|x| x.grad().map(|g| g.to_f64())).collect();
                    (values, grads)
                };
                let clean = run(op, false);
                let poisoned = run(sample(&mut Gen::new(seed)).0, true);
                prop_assert!(clean == poisoned, "{name} in {dtype}: {clean:?} is not {poisoned:?}");
            }
        }
    }

    /// The gradients of two uses of the same value are summed: twice the gradient of one.
    #[test]
    fn a_gradient_is_added_to_the_one_that_is_there(seed in any::<u64>()) {
        for (name, sample) in OPS {
            for (dtype, bound) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
                let single = |x: &Tensor| if x.dtype() == DType::I32 { x.clone() } else { x.cast(dtype) };
                let inputs: Vec<_> = sample(&mut Gen::new(seed)).1.iter().map(single).collect();
                let run = |uses: usize| {
                    let tape = Tape::default();
                    let place = |x: &Tensor| if x.dtype() == DType::I32 { tape.constant(x) } else { tape.leaf(x) };
                    let x: Vec<_> = inputs.iter().map(place).collect();
                    let y = (0..uses).flat_map(|_| tape.apply_dyn(sample(&mut Gen::new(seed)).0, &x));
                    let y: Vec<Var> = y.collect();
                    let u = |i: usize| Gen::new(seed.wrapping_add((i % (y.len() / uses)) as u64));
                    let seeds = y.iter().enumerate().map(|(i, y)| (*y, u(i).normal(y.shape()).cast(dtype)));
                    tape.backward_from(seeds.collect::<Vec<_>>());
                    x.iter().map(|x| x.grad().map_or(vec![], |g| g.to_f64())).collect::<Vec<_>>()
                };
                for (once, twice) in run(1).iter().zip(run(2)) {
                    prop_assert!(once.len() == twice.len(), "{name} in {dtype}: a gradient is missing");
                    // Numbers of size one are summed: of a sum near zero there is their rounding left.
                    let size = once.iter().fold(0.1, |m: f64, x| m.max(x.abs()));
                    for (once, twice) in once.iter().zip(twice) {
                        let off = (2.0 * once - twice).abs() / size;
                        prop_assert!(off <= bound, "{name} in {dtype}: twice {once} is not {twice}, for {inputs:?}");
                    }
                }
            }
        }
    }
}
