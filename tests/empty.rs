//! Empty sequences, empty batches and empty tensors: on the CPU and, where there is a compiler, on the emulated device.
#![allow(clippy::unwrap_used)]

mod device;

use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{Form, Model, ModelConfig, Positions, State, Variant, names, published},
    ops::OPS,
    tensor::{DType, Device, Tensor},
};

fn devices() -> Vec<Device> {
    [Device::Cpu].into_iter().chain(device::device()).collect()
}

fn small(mixer: &str) -> ModelConfig {
    ModelConfig {
        mixer: mixer.into(),
        width: 6,
        heads: 2,
        head_dim: 4,
        state: 3,
        mlp: 5,
        max_len: 16,
        ..ModelConfig::default()
    }
}

/// Every model, in every form, with every kind of positions, in both precisions.
fn each_model(mut f: impl FnMut(&str, &mut Model, Form)) {
    for positions in [Positions::None, Positions::Learned, Positions::Sinusoidal, Positions::Rope] {
        for (variant, names) in [(Variant::Clean, names()), (Variant::Published, published::names())] {
            for name in names {
                for dtype in [DType::F64, DType::F32] {
                    // Every other clean model has n-gram heads as well.
                    let ngram = if variant == Variant::Clean { 2 * (name.len() % 2) } else { 0 };
                    let config = ModelConfig { positions, variant, ngram, ..small(name) };
                    let Ok(mut model) = Model::new(&config, 3, dtype) else { continue };
                    for form in model.forms() {
                        f(&format!("{variant:?} {name} {form} {positions} {dtype}"), &mut model, form);
                    }
                }
            }
        }
    }
}

/// The loss over no targets, and gradients that are zero and have the shape of each parameter.
#[test]
fn a_model_of_no_tokens_or_no_sequences_has_a_gradient_of_zero() {
    for device in devices() {
        each_model(|what, model, form| {
            for [b, t] in [[2, 0], [0, 8], [0, 0]] {
                let tape = Tape::new(device);
                let p = model.params().bind(&tape);
                let tokens = tape.constant(&Tensor::from_vec(vec![0i32; b * t], [b, t]));
                let y = model.train(&p, tokens, form, None);
                assert_eq!(y.shape().dims(), [b, t, 2], "{what}");
                let loss = y.cross_entropy(tape.constant(&Tensor::from_vec(vec![0i32; b * t], [b, t])), -100);
                assert_eq!(loss.value().item(), 0.0, "{what}: the loss of nothing");
                tape.backward(loss);
                let mut grads = Tensor::full([model.params().len()], model.params().dtype(), 7.0).to_device(tape.cx());
                model.params().gather_grads(&tape, &p, &mut grads);
                let wrong = grads.to_f64().iter().position(|&x| x != 0.0);
                assert_eq!(wrong, None, "{what} [{b}, {t}] on {device}: {:?}", wrong.map(|i| grads.to_f64()[i]));
                // No positions are asked for.
                let none = tape.constant(&Tensor::from_vec(Vec::<i32>::new(), [0]));
                assert_eq!(model.forward_at(&p, tokens, form, Some(none)).shape().dims(), [0, 2], "{what}");
            }
        });
        // The running statistics of the published LRU are unchanged.
        let mut model =
            Model::new(&ModelConfig { variant: Variant::Published, ..small("lru") }, 3, DType::F64).unwrap();
        let before: Vec<_> = model.buffers().iter().map(|(_, x)| x.to_f64()).collect();
        let tape = Tape::new(device);
        let p = model.params().bind(&tape);
        model.train(&p, tape.constant(&Tensor::from_vec(Vec::<i32>::new(), [0, 8])), Form::Fused, None);
        assert_eq!(model.buffers().iter().map(|(_, x)| x.to_f64()).collect::<Vec<_>>(), before);
    }
}

/// In the middle of a sequence, an empty piece changes neither the state nor later outputs.
#[test]
fn no_tokens_leave_the_state_as_it_is() {
    for device in devices() {
        each_model(|what, model, form| {
            if what.starts_with("Published") {
                return;
            }
            let tape = Tape::new(device);
            let p = model.params().bind_frozen(&tape);
            let run = |pieces: &[usize]| {
                let mut state = model.zero_state(&tape, 2);
                let mut all = vec![];
                let mut from = 0;
                for &n in pieces {
                    let tokens: Vec<i32> = (0..2 * n).map(|i| ((i + from) % 2) as i32).collect();
                    let y = model.run(&p, tape.constant(&Tensor::from_vec(tokens, [2, n])), &mut state, form);
                    all.push(y.value().to_f64());
                    from += n;
                }
                all.retain(|y| !y.is_empty());
                (all, state.tensors().iter().flatten().map(Tensor::to_f64).collect::<Vec<_>>(), state.blocks()[0].t)
            };
            assert_eq!(run(&[0, 4, 0, 3, 0]), run(&[4, 3]), "{what} on {device}");
        });
    }
}

/// [`State::zero`] for an empty batch, and the steps after it.
#[test]
fn a_batch_of_no_sequences_has_a_state_of_nothing() {
    for device in devices() {
        for name in names() {
            let model = Model::new(&small(name), 3, DType::F64).unwrap();
            let tape = Tape::new(device);
            let p = model.params().bind_frozen(&tape);
            let mut state = model.zero_state(&tape, 0);
            for _ in 0..2 {
                let y =
                    model.run(&p, tape.constant(&Tensor::from_vec(vec![0i32; 0], [0, 3])), &mut state, Form::Recurrent);
                assert_eq!(y.shape().dims(), [0, 3, 2], "{name}");
            }
            let blocks: &[State] = state.blocks();
            assert!(blocks.iter().all(|s| s.t == 6 && s.s.iter().all(|s| s.shape().at(0) == 0)), "{name}");
        }
    }
}

/// Narrow, concat and reshape of empty tensors.
#[test]
fn nothing_can_be_cut_joined_and_reshaped() {
    for device in devices() {
        for dtype in [DType::F32, DType::F64] {
            let tape = Tape::new(device);
            let none = tape.leaf(&Tensor::zeros([2, 0, 3], dtype));
            let some = tape.leaf(&Gen::new(1).normal([2, 4, 3]).cast(dtype));
            let cut = some.narrow(1, 4, 0);
            assert_eq!(cut.shape().dims(), [2, 0, 3]);
            let both = Var::concat(&[none, cut], 1);
            assert_eq!(both.shape().dims(), [2, 0, 3]);
            let all = Var::concat(&[both, some, none], 1);
            assert_eq!(all.value().to_f64(), some.value().to_f64());
            let flat = none.reshape([0]).reshape([0, 5, 7]).permute([2, 0, 1]).reshape([3, 0]);
            assert_eq!(flat.sum().value().item(), 0.0);
            assert_eq!(none.sum_axis(1, false).value().to_f64(), [0.0; 6]);
            let loss = all.sum() + flat.sum() + none.sum_axis(1, false).sum();
            tape.backward(loss);
            assert_eq!(some.grad().unwrap().to_f64(), [1.0; 24]);
            assert_eq!(none.grad().map(|g| (g.shape().dims().to_vec(), g.to_f64())), Some((vec![2, 0, 3], vec![])));
        }
    }
}

/// Each op on its sample inputs, where each axis in turn is made empty in all inputs that have an axis of this size. An
/// op accepts that, or refuses with a sentence; every device does the same.
#[test]
fn an_op_of_nothing_is_nothing_or_an_error() {
    for (name, sample) in OPS {
        for seed in 0..12 {
            let (_, inputs) = sample(&mut Gen::new(seed));
            let sizes: std::collections::BTreeSet<usize> =
                inputs.iter().flat_map(|x| x.shape().dims().to_vec()).collect();
            for size in sizes {
                let outcomes = devices().into_iter().map(|device| {
                    tapezoo::error::quietly(|| {
                        let tape = Tape::new(device);
                        tape.poison(true);
                        let x: Vec<Var> = inputs.iter().map(|x| emptied(&tape, x, size)).collect();
                        let y = tape.apply_dyn(sample(&mut Gen::new(seed)).0, &x);
                        tape.backward_from(y.iter().map(|&y| (y, Tensor::full(y.shape(), y.dtype(), 1.0))));
                        let grads = x.iter().map(|x| x.grad().map_or(vec![], |g| g.to_f64()));
                        y.iter().map(|y| y.value().to_f64()).chain(grads).collect::<Vec<_>>()
                    })
                });
                let outcomes: Vec<_> = outcomes.collect();
                for outcome in &outcomes {
                    match (outcome, &outcomes[0]) {
                        (Ok(a), Ok(b)) => {
                            let near = |(a, b): (&f64, &f64)| {
                                a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-9 * (1.0 + b.abs())
                            };
                            let same = |(a, b): (&Vec<f64>, &Vec<f64>)| a.len() == b.len() && a.iter().zip(b).all(near);
                            assert!(
                                a.len() == b.len() && a.iter().zip(b).all(same),
                                "{name}, seed {seed}, axes of {size} emptied: {outcomes:?}"
                            );
                        }
                        (Err(a), Err(b)) => assert_eq!(a, b, "{name}"),
                        _ => panic!("{name}, seed {seed}, axes of {size} emptied: {outcomes:?}"),
                    }
                    if let Err(why) = outcome {
                        let sentence = why.starts_with(&format!("{}: ", sample(&mut Gen::new(seed)).0.name()));
                        assert!(sentence, "{name}, seed {seed}, axes of {size} emptied: {why}");
                    }
                }
            }
        }
    }
}

fn emptied<'t>(tape: &'t Tape, x: &Tensor, size: usize) -> Var<'t> {
    let dims: Vec<usize> = x.shape().dims().iter().map(|&n| if n == size { 0 } else { n }).collect();
    let n = dims.iter().product();
    if x.dtype() == DType::I32 {
        return tape.constant(&Tensor::from_vec(x.to_f64()[..n].iter().map(|&x| x as i32).collect(), &dims[..]));
    }
    tape.leaf(&Tensor::from_vec(x.to_f64()[..n].to_vec(), &dims[..]))
}
