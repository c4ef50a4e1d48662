//! The crate as a library: errors that say what to do, and panics at the caller's own line.
#![allow(clippy::unwrap_used)]

mod own;

use proptest::prelude::*;
use std::{
    cell::RefCell,
    fs,
    panic::{self, AssertUnwindSafe, Location},
};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{self, Form, Mixer, Model, ModelConfig, State, Variant, find, linear_cut, linear_parts, run},
    ops::words::{by_chunks, insert_axis, over_time, split, token},
    tasks,
    tensor::{DType, Shape, Tensor},
    train::{Trainer, config::TrainConfig},
};

fn config(mixer: &str) -> ModelConfig {
    ModelConfig { mixer: mixer.into(), width: 8, heads: 2, head_dim: 4, mlp: 8, layers: 2, ..ModelConfig::default() }
}

#[test]
fn a_published_model_without_a_state_is_not_read_token_by_token() {
    for mixer in models::published::names() {
        let model = Model::new(&ModelConfig { variant: Variant::Published, ..config(mixer) }, 3, DType::F64).unwrap();
        let carries = ["lstm", "quasi_lstm", "lru"].contains(&mixer);
        for said in [model.stream().next(1), model.stream().read(&[0, 1])] {
            match said {
                // The quasi-LSTM reads a whole block or nothing.
                Ok(_) => assert!(carries && mixer != "quasi_lstm", "{mixer} is read"),
                Err(e) => {
                    let remedy = if carries { "takes multiples of its block" } else { "use the clean mixer" };
                    assert!(e.to_string().contains(remedy), "{mixer}: {e}");
                }
            }
        }
    }
    let model = Model::new(&ModelConfig { variant: Variant::Published, ..config("lstm") }, 3, DType::F64).unwrap();
    let (mut one, mut all) = (model.stream(), model.stream());
    one.next(0).unwrap();
    assert_eq!(one.next(1).unwrap(), all.read(&[0, 1]).unwrap(), "a token at a time, and two at once");
}

#[test]
fn weights_are_loaded_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.safetensors");
    let numbers = |model: &Model| model.params().flat().to_f64();
    let mut model = Model::new(&config("lstm"), 0, DType::F32).unwrap();
    let before = numbers(&model);
    // Files whose last tensor has another size, with fewer tensors, with more, of another type, and cut short.
    let deeper = ModelConfig { layers: 3, ..config("lstm") };
    let [classes, shallow] =
        [ModelConfig { classes: 5, ..config("lstm") }, ModelConfig { layers: 1, ..config("lstm") }];
    let others = [(classes, DType::F32), (shallow, DType::F32), (deeper, DType::F32), (config("lstm"), DType::F64)];
    for (other, dtype) in others {
        Model::new(&other, 1, dtype).unwrap().save(&file).unwrap();
        let said = model.load(&file).unwrap_err().to_string();
        assert!(said.contains("weights.safetensors"), "{said}");
        assert_eq!(numbers(&model), before, "some weights were loaded, and then: {said}");
    }
    let other = Model::new(&config("lstm"), 1, DType::F32).unwrap();
    other.save(&file).unwrap();
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 8]).unwrap();
    assert!(model.load(&file).is_err() && numbers(&model) == before, "a file that was cut short");
    // The weights are read while a tape holds the old ones.
    fs::write(&file, bytes).unwrap();
    let tape = Tape::default();
    let bound = model.params().bind(&tape);
    model.load(&file).unwrap();
    assert_eq!(numbers(&model), numbers(&other), "the weights of the file");
    assert_eq!(bound.vars()[0].value().to_f64(), before[..bound.vars()[0].shape().len()], "the weights of the tape");
}

/// A model for more tokens and classes than the task has is trained on it, and no other.
#[test]
fn a_trainer_takes_models_that_fit_the_task() {
    let cfg: TrainConfig = "train_len = 8\neval_lens = [8]\ntask = { name = 'dyck', types = 4 }".parse().unwrap();
    let refused = |vocab: usize, classes: usize, dtype| {
        let model = Model::new(&ModelConfig { vocab, classes, ..config("lstm") }, 0, dtype).unwrap();
        let task = std::sync::Arc::new(tasks::Dyck { types: 4, depth: 4 });
        Trainer::with(&cfg, model, task, 0).err().map(|e| e.to_string())
    };
    let (vocab, classes) = (cfg.task.vocab(), cfg.task.classes());
    let said = |what: &str, there: usize, asked: usize| {
        Some(format!("{what} = {there}: dyck has {asked}; build the model with them"))
    };
    assert_eq!(refused(vocab - 1, classes, DType::F32), said("vocab", vocab - 1, vocab));
    assert_eq!(refused(vocab, classes - 1, DType::F32), said("classes", classes - 1, classes));
    assert!(refused(vocab, classes, DType::F64).unwrap().contains("the model's weights are f64; build it with f32"));
    assert_eq!(refused(vocab, classes, DType::F32), None);
    assert_eq!(refused(vocab + 7, classes + 7, DType::F32), None);
}

/// A published LRU evaluates by statistics of its batches in training, and they are in its file.
#[test]
fn running_statistics_are_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.safetensors");
    let config = ModelConfig { variant: Variant::Published, ..config("lru") };
    let mut model = Model::new(&config, 0, DType::F32).unwrap();
    let (name, statistics) = model.buffers().remove(0);
    assert_eq!(name, "statistics");
    statistics.host_mut::<f64>().iter_mut().enumerate().for_each(|(i, x)| *x = 0.5 + i as f64);
    let answers = |model: &Model| {
        let tape = Tape::default();
        let tokens = tape.constant(&Tensor::from_vec(vec![0, 1, 1, 0], [1, 4]));
        model.forward(&model.params().bind(&tape), tokens, Form::Recurrent).value().to_f64()
    };
    model.save(&file).unwrap();
    let mut other = Model::new(&config, 1, DType::F32).unwrap();
    assert_ne!(answers(&other), answers(&model));
    other.load(&file).unwrap();
    assert_eq!(answers(&other), answers(&model), "loaded");
    assert_eq!(answers(&Model::open(&file).unwrap()), answers(&model), "opened");
}

thread_local! {
    /// The place and the message of the last panic of this thread.
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Assert that a call panics at the line where it was made, with these words.
#[track_caller]
fn panics<R>(words: &[&str], call: impl FnOnce() -> R) {
    let here = Location::caller();
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map_or(String::new(), |at| format!("{}:{}", at.file(), at.line()));
            let said = info.payload().downcast_ref::<String>().cloned();
            let said = said.or_else(|| info.payload().downcast_ref::<&str>().map(|text| text.to_string()));
            PANIC.with_borrow_mut(|last| *last = Some((place, said.unwrap_or_default())));
            if LOUD.get() {
                default(info);
            }
        }));
    });
    LOUD.set(false);
    let ended = panic::catch_unwind(AssertUnwindSafe(call));
    LOUD.set(true);
    assert!(ended.is_err(), "nothing panicked that was to say {words:?}");
    let (place, said) = PANIC.take().unwrap();
    assert!(place.starts_with(&format!("{}:", here.file())), "'{said}' is said of {place}, and not of {here}");
    for word in words {
        assert!(said.contains(word), "no '{word}' in: {said}");
    }
}

thread_local! {
    /// Whether a panic is printed.
    static LOUD: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

fn zeros<'t>(tape: &'t Tape, shape: impl Into<Shape>) -> Var<'t> {
    tape.full(shape.into(), DType::F64, 0.0)
}

#[test]
fn a_function_that_is_used_wrongly_says_so_of_the_callers_line() {
    let tape = &Tape::default();
    panics(&["[2, 7]", "3 equal parts"], || split::<3>(zeros(tape, [2, 7])));
    panics(&["[]", "2 equal parts"], || split::<2>(zeros(tape, [])));
    panics(&["[7, 4]", "3 equal parts"], || linear_parts::<3>(zeros(tape, [2, 4]), zeros(tape, [7, 4]), None));
    panics(&["[7, 4]", "[3, 3]"], || linear_cut(zeros(tape, [2, 4]), zeros(tape, [7, 4]), None, [3, 3]));
    panics(&["[4]", "3"], || insert_axis(zeros(tape, [4]), 3));
    panics(&["axis 1", "[4]"], || token(zeros(tape, [4]), 0));
    panics(&["chunks of none"], || by_chunks(4, 0, zeros(tape, [1, 0]), |_, _| zeros(tape, [1, 1])));
    panics(&["[2, 3]", "axis 2"], || Shape::from([2, 3]).with(2, 1));
    panics(&["[2, 3]", "axis 2"], || Shape::from([2, 3]).split(2));
}

#[test]
fn a_form_that_a_mixer_lacks_is_refused_by_all() {
    for name in models::names() {
        let c = config(name);
        let mut init = models::Init::new(0, None);
        let mixer: Box<dyn Mixer> = find(name).unwrap()(&c, &mut init).unwrap();
        let (params, kinds) = (init.finish(DType::F64), mixer.forms().iter().map(|f| f.kind()).collect::<Vec<_>>());
        for form in [Form::Parallel, Form::Chunked(4), Form::Scan(4), Form::Fused] {
            // Earlier versions called a scan chunked.
            if kinds.contains(&form.among(&mixer.forms()).kind()) {
                continue;
            }
            let tape = &Tape::default();
            panics(&[&format!("'{form}'"), "recurrent"], || {
                let mut state = State::zero(mixer.as_ref(), tape, 1, DType::F64);
                run(mixer.as_ref(), &params.bind(tape), zeros(tape, [1, 5, 8]), &mut state, form);
            });
        }
    }
}

#[test]
fn the_parameters_of_another_model_are_refused() {
    let [one, other] = ["lstm", "gla"].map(|mixer| Model::new(&config(mixer), 0, DType::F64).unwrap());
    let wide = Model::new(&ModelConfig { width: 12, ..config("lstm") }, 0, DType::F64).unwrap();
    let tape = &Tape::default();
    let tokens = tape.constant(&Gen::new(0).ints([1, 3], 2));
    for strange in [&other, &wide] {
        let bound = strange.params().bind(tape);
        panics(&["another model's"], || one.forward(&bound, tokens, Form::Recurrent));
    }
}

#[test]
fn only_leaves_have_gradients() {
    let tape = Tape::default();
    let two = Tensor::from_vec(vec![2.0, 3.0], [2]);
    let (leaf, constant, unused) = (tape.leaf(&two), tape.constant(&two), tape.leaf(&two));
    let between = leaf * constant;
    let loss = (between * between).sum();
    assert!(leaf.grad().is_none(), "before the backward pass");
    tape.backward(loss);
    assert_eq!(leaf.grad().map(|g| g.to_f64()), Some(vec![16.0, 54.0]), "2 x c², of x = c");
    for (v, what) in [(constant, "a constant"), (unused, "a leaf without use"), (between, "an intermediate value")] {
        assert!(v.grad().is_none(), "{what} has a gradient");
    }
}

proptest! {
    #[test]
    fn chunks_are_all_steps_one_after_another(steps in 0..20usize, chunk in 1..9usize, seed in any::<u64>()) {
        let tape = Tape::default();
        let x = tape.constant(&Gen::new(seed).normal([2, steps, 3]));
        let none = zeros(&tape, [2, 0, 3]);
        let mut lens = vec![];
        let pieces = by_chunks(steps, chunk, none, |t, n| { lens.push(n); x.narrow(1, t, n) });
        prop_assert_eq!(pieces.value().to_f64(), x.value().to_f64());
        let (last, others) = lens.split_last().unwrap_or((&chunk, &[]));
        prop_assert!(others.iter().all(|&n| n == chunk) && (1..=chunk).contains(last), "{:?}", lens);
        prop_assert_eq!(over_time(steps, none, |t| token(x, t)).value().to_f64(), x.value().to_f64());
    }
}

#[test]
fn a_shape_of_more_elements_than_can_be_counted_is_refused() {
    let huge = 1usize << (usize::BITS / 2);
    panics(&["more elements"], || Shape::new(&[huge, huge]));
    panics(&["more elements"], || Shape::new(&[huge, 1]).with(1, huge));
}
