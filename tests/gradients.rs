//! Every op's gradient against finite differences, over random shapes.

use proptest::prelude::*;
use tapezoo::{
    check::{Checked, OpCase},
    ops::OPS,
};

/// Assert that a check holds for every op.
fn each(check: impl Fn(OpCase) -> Checked) -> Result<(), TestCaseError> {
    OPS.iter().try_for_each(|entry| check(entry.into())).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_op_has_the_gradient_of_its_value(seed in any::<u64>()) {
        each(|op| op.gradient(seed))?;
    }

    /// Outputs are written in full whatever the buffers held before, and equal inputs give equal bits.
    #[test]
    fn every_op_is_a_function_of_its_inputs(seed in any::<u64>()) {
        each(|op| op.purity(seed))?;
    }

    /// The gradients of two uses of the same value are summed: twice the gradient of one.
    #[test]
    fn a_gradient_is_added_to_the_one_that_is_there(seed in any::<u64>()) {
        each(|op| op.sums(seed))?;
    }
}
