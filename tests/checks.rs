//! The checks themselves: deliberate errors must be caught. And properties of the tape.
#![allow(clippy::unwrap_used)]

use tapezoo::{
    autograd::{Candidates, Gen, Grad, In, Kernel, Op, Outs, Tape, Value, Var, gradcheck, zeroed},
    tensor::{Cx, DType, Tensor},
};

/// x², with a derivative that is wrong by a given factor.
struct Square(f64);

impl Op for Square {
    fn name(&self) -> &'static str {
        "wrong_square"
    }
    fn infer(&self, x: In) -> Result<Outs, String> {
        Ok(x[0].shape().into())
    }
    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }
    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        (Square(1.0), vec![g.normal([3])])
    }
}

impl Kernel for Square {
    fn forward(&self, _: &Cx, x: In, y: &mut [Value]) {
        let x = x[0].host::<f64>();
        y[0].host_mut::<f64>().iter_mut().zip(x).for_each(|(y, x)| *y = x * x);
    }
    fn backward(&self, _: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        if let Some(d) = dx[0].slot::<[f64]>().map(zeroed) {
            for ((d, x), g) in d.iter_mut().zip(x[0].host::<f64>()).zip(g.host::<f64>()) {
                *d += 2.0 * self.0 * x * g;
            }
        }
    }
}

#[test]
fn a_wrong_derivative_fails_the_gradient_check() {
    let x = [Gen::new(0).normal([4])];
    let error = |factor: f64| gradcheck(|tape, x| vec![tape.apply(Square(factor), [x[0]])], &x, 0, 2);
    assert!(error(1.0) < 1e-9, "{}", error(1.0));
    for factor in [0.0, -1.0, 0.5, 1.00001] {
        assert!(error(factor) > 1e-6, "a factor of {factor} passes: {:.1e}", error(factor));
    }
    assert_eq!(error(f64::NAN), f64::INFINITY);
}

/// Poisoned memory shows an op that leaves an element unwritten.
#[test]
fn an_unwritten_output_fails_the_gradient_check() {
    struct Lazy;
    impl Op for Lazy {
        fn name(&self) -> &'static str {
            "lazy"
        }
        fn infer(&self, x: In) -> Result<Outs, String> {
            Ok(x[0].shape().into())
        }
        fn kernels(&self) -> Candidates<'_> {
            self.into()
        }
        fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
            (Lazy, vec![g.normal([3])])
        }
    }
    impl Kernel for Lazy {
        fn forward(&self, _: &Cx, x: In, y: &mut [Value]) {
            y[0].host_mut::<f64>()[1..].copy_from_slice(&x[0].host::<f64>()[1..]);
        }
        fn backward(&self, _: &Cx, _: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
            let Some(g) = &dy[0] else { return };
            if let Some((d, acc)) = dx[0].slot::<[f64]>() {
                assert!(!acc);
                d[1..].copy_from_slice(&g.host::<f64>()[1..]);
            }
        }
    }
    let x = [Gen::new(0).normal([4])];
    assert_eq!(gradcheck(|tape, x| vec![tape.apply(Lazy, [x[0]])], &x, 0, 1), f64::INFINITY);
}

/// The derivative of f at 3.
fn slope(f: impl for<'t> Fn(Var<'t>) -> Var<'t>) -> f64 {
    let tape = Tape::default();
    let x = tape.leaf(&Tensor::from_vec(vec![3.0f64], [1]));
    tape.backward(f(x).sum());
    x.grad().unwrap().item()
}

#[test]
fn the_same_value_twice_gets_both_gradients() {
    assert_eq!(slope(|x| x * x + x), 7.0);
    // A sum passes its gradient on to each summand, twice if both are the same value.
    assert_eq!(slope(|x| x + x), 2.0);
    assert_eq!(slope(|x| x - x), 0.0);
    assert_eq!(slope(|x| (x + x) * (x - 2.0 * x) + (x + 1.0)), -11.0);
}

#[test]
fn constants_have_no_gradient_and_cost_no_node() {
    let tape = Tape::default();
    let c = tape.constant(&Tensor::from_vec(vec![3.0f64], [1]));
    let _ = c * c;
    assert!(tape.is_empty());
    let x = tape.leaf(&Tensor::from_vec(vec![2.0f64], [1]));
    tape.backward((c * x).sum());
    assert!(c.grad().is_none());
    assert_eq!(x.grad().unwrap().item(), 3.0);
}

/// A value with several readers gets the sum of their gradients, also through reshapes that share its buffer.
#[test]
fn gradients_add_up_through_shared_buffers() {
    let tape = Tape::default();
    let x = tape.leaf(&Gen::new(0).normal([2, 3]));
    let y = 2.0 * x;
    let (a, b) = (y.reshape([3, 2]), y.reshape([6]));
    tape.backward(a.sum() + b.sum() + y.sum());
    assert_eq!(x.grad().unwrap().to_f64(), vec![6.0; 6]);
}

#[test]
fn a_chain_of_a_million_ops_has_a_gradient() {
    let tape = Tape::default();
    let x = tape.leaf(&Tensor::from_vec(vec![1.0f64], [1]));
    let mut y = x;
    for _ in 0..1_000_000 {
        y = y + 1.0;
    }
    tape.backward(y);
    assert_eq!(x.grad().unwrap().item(), 1.0);
}

#[test]
fn the_first_op_that_is_not_finite_is_named_with_its_place() {
    let tape = Tape::default();
    tape.scope(&"here".into());
    let x = tape.leaf(&Tensor::from_vec(vec![0.0f64, 1.0], [2]));
    let y = x.log().exp().sum();
    // −∞ alone is no fault: masks and closed gates are made of it.
    assert!(tape.first_not_finite().is_none());
    let _ = -x.log();
    assert_eq!(tape.first_not_finite().unwrap().to_string(), "the value of op 'affine' in here");
    // Finite values, infinite slope.
    let z = x.sqrt().sum();
    assert!(z.value().item().is_finite(), "{}", z.value().item());
    assert_eq!(tape.backward_watched(z).unwrap().to_string(), "the gradient of op 'sqrt' in here");
    assert!(y.value().item().is_finite(), "{}", y.value().item());
    // Two finite gradients whose sum is infinite; the addition before it passes it on unchanged.
    let shifted = tape.leaf(&Tensor::from_vec(vec![1e154], [1])) + tape.constant(&Tensor::from_vec(vec![0.0], [1]));
    let huge = (shifted * shifted * 1e154).sum();
    assert_eq!(tape.backward_watched(huge).unwrap().to_string(), "the gradient of op 'add' in here");
}

#[test]
fn buffers_come_back_and_are_reused() {
    let mut tape = Tape::default();
    let x = Gen::new(0).normal([5, 7]).cast(DType::F32);
    let mut fresh = vec![];
    for _ in 0..4 {
        let v = tape.leaf(&x);
        tape.backward((v.matmul_t(v).softmax() * 2.0).reshape([25]).sum());
        tape.reset();
        fresh.push(tape.fresh_buffers());
    }
    assert_eq!(fresh[1], fresh[3], "buffers were allocated in step 3 or 4: {fresh:?}");
}
