//! The crate as a library: errors that say what to do, and panics at the caller's own line.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde::Deserialize;
use std::{
    cell::RefCell,
    fs,
    panic::{self, AssertUnwindSafe, Location},
};
use tapezoo::{
    autograd::{Candidates, Gen, Grad, In, Kernel, Op, Outs, Tape, Value, Var},
    check::{self, Checked, OpCase},
    models::{self, Bound, Form, Init, Mixer, Model, ModelConfig, State, Variant, find, linear_cut, linear_parts, run},
    ops::words::{by_chunks, insert_axis, over_time, split, token},
    rng::Rng,
    tasks::{self, IGNORE, Len, Named, Task},
    tensor::{Cx, DType, Real, Shape, Tensor},
    train::{
        Trainer,
        config::{TrainConfig, warnings},
    },
    with_real,
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

/// The largest number so far, below a limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Largest {
    #[serde(default = "ten")]
    limit: usize,
}

/// A task with an option that has no default.
#[derive(Deserialize)]
struct Delay {
    steps: usize,
}

impl Task for Delay {
    fn name(&self) -> &'static str {
        "delay"
    }
    fn vocab(&self) -> usize {
        2
    }
    fn classes(&self) -> usize {
        2
    }
    fn legend(&self) -> String {
        format!("the bit {} steps ago", self.steps)
    }
    fn fill(&self, _: &mut Rng, _: usize, _: &mut [i32], _: &mut [i32]) {}
}

fn ten() -> usize {
    10
}

impl Task for Largest {
    fn name(&self) -> &'static str {
        "largest"
    }
    fn vocab(&self) -> usize {
        self.limit
    }
    fn classes(&self) -> usize {
        self.limit
    }
    fn legend(&self) -> String {
        "the largest number so far".into()
    }
    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        use rand::RngExt;
        for (x, y) in tokens.chunks_mut(len).zip(targets.chunks_mut(len)) {
            x.fill_with(|| rng.random_range(0..self.limit as i32));
            y.iter_mut()
                .zip(x.iter().scan(0, |most, &x| {
                    *most = x.max(*most);
                    Some(*most)
                }))
                .for_each(|(y, x)| *y = x);
        }
    }
}

#[test]
fn a_mixer_and_a_task_of_a_program_are_taken_by_name() {
    models::add("mine", |c, init| Ok(Box::new(models::gla::Layer::new(c, init)?)));
    tasks::add::<Largest>("largest");
    assert!(models::names().contains(&"mine"), "the mixer is listed");
    assert!(models::lines().contains("mine") && models::facts("mine").is_some(), "and described");
    assert!(tasks::named().iter().any(|&Named { name, kind, .. }| (name, kind) == ("largest", "largest")), "the task");

    let text = "models = [\"mine\", \"lstm\"]\nbatch = 4\neval_lens = [8]\ntrain_len = 8\nsteps = 2\n[task]\nname = \"largest\"\nlimit = 7";
    let settings: TrainConfig = text.parse().unwrap();
    assert_eq!(settings.to_toml().unwrap().parse::<TrainConfig>().unwrap(), settings, "it reads back");
    let said = |model: &str| {
        let table = format!("models = [\"{model}\"]\nmodel.head_dim = 4").parse().unwrap();
        warnings(&[TrainConfig::from_settings("default", None, table).unwrap().1], false)
    };
    assert!(said("mine").is_empty() && said("lru").len() == 1, "it may read what others do not: {:?}", said("mine"));
    let own = settings.for_model("mine").unwrap();
    assert_eq!((own.model.vocab, own.model.classes, own.task.legend().as_str()), (7, 7, "the largest number so far"));
    assert!(Trainer::new(&own, 0).unwrap().step().unwrap().loss.is_finite(), "it trains");
    check::task(&*own.task, 8).unwrap();

    // The tasks of the crate are read as before.
    let parity: TrainConfig = "[task]\nname = \"parity\"\nnum_ones = 3".parse().unwrap();
    assert_eq!(parity.task.title(), "parity with 3 ones");
    for (text, word) in [("limits = 7", "limits"), ("limit = \"a\"", "limit")] {
        let said = format!("[task]\nname = \"largest\"\n{text}").parse::<TrainConfig>().unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    // An option that has no default must be set, and the message says where.
    tasks::add::<Delay>("delay");
    let said = "[task]\nname = \"delay\"".parse::<TrainConfig>().unwrap_err().to_string();
    let wanted = "the task 'delay' needs its option 'steps': set 'steps' under [task] in a file for --config, or give the \
                  field a default in the task's source, with #[serde(default)]";
    assert_eq!(said, wanted);
    panics(&["'mine'"], || models::add("mine", |c, init| Ok(Box::new(models::gla::Layer::new(c, init)?))));
    panics(&["'lstm'"], || models::add("lstm", |c, init| Ok(Box::new(models::gla::Layer::new(c, init)?))));
    panics(&["a/b"], || models::add("a/b", |c, init| Ok(Box::new(models::gla::Layer::new(c, init)?))));
    panics(&["'s5'"], || tasks::add::<Largest>("s5"));
}

/// The mean of all inputs so far; only its step is defined.
struct Mean {
    width: usize,
    forms: Vec<Form>,
}

impl Mixer for Mean {
    fn forms(&self) -> Vec<Form> {
        self.forms.clone()
    }
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("sum", [b, self.width].into()), ("count", [b, 1].into())]
    }
    fn step<'t>(&self, _: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        state.s[0] = state.s[0] + x;
        state.s[1] = state.s[1] + 1.0;
        state.s[0] / (state.s[1].square() + 1.0)
    }
}

#[test]
fn a_step_is_enough_for_a_mixer() {
    let mean = |forms: &[Form]| {
        let forms = forms.to_vec();
        move |c: &ModelConfig, _: &mut Init| Ok(Mean { width: c.width, forms: forms.clone() })
    };
    check::mixer(&config("mean"), mean(&[Form::Recurrent])).unwrap();
    let check = || check::mixer(&config("mean"), mean(&[Form::Recurrent, Form::Parallel]));
    let said = panic::catch_unwind(AssertUnwindSafe(check)).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert_eq!(said, "form 'parallel' is among the mixer's `forms`, but it does not define `sequence`");
}

/// A task that breaks one promise.
struct Liar(&'static str);

impl Task for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
    fn vocab(&self) -> usize {
        3
    }
    fn classes(&self) -> usize {
        3
    }
    fn title(&self) -> String {
        if self.0 == "title" { "t".repeat(60) } else { "liar".into() }
    }
    fn legend(&self) -> String {
        if self.0 == "legend" { String::new() } else { "the token".into() }
    }
    fn token(&self, id: usize) -> String {
        if self.0 == "token" { "a".into() } else { id.to_string() }
    }
    fn class(&self, id: usize) -> String {
        if self.0 == "class" { String::new() } else { id.to_string() }
    }
    fn check_len(&self, _: usize) -> Result<(), String> {
        if self.0 == "no length" { Err("no length".into()) } else { Ok(()) }
    }
    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        Some(match self.0 {
            "labelled" => tokens.iter().map(|&x| (x + 1) % 3).collect(),
            "labelled [-100" => vec![IGNORE; tokens.len()],
            "labelled []" => vec![],
            _ => tokens.to_vec(),
        })
    }
    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        use rand::RngExt;
        static CALLS: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);
        let calls = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tokens.fill_with(|| rng.random_range(0..3));
        match self.0 {
            "the same seed" => tokens[0] = calls % 3,
            "another seed" => tokens.fill(1),
            "token 3" => tokens[len - 1] = 3,
            _ => {}
        }
        targets.copy_from_slice(tokens);
        match self.0 {
            "target 3" => targets[0] = 3,
            "target -7" => targets[0] = -7,
            "no target" => targets.fill(IGNORE),
            _ => {}
        }
    }
}

#[test]
fn a_task_that_breaks_a_promise_is_told_which() {
    assert_eq!(check::task(&Liar("nothing"), 9), Ok(()));
    assert_eq!(check::task(&Liar("nothing"), Len { min: 3, max: 9 }), Ok(()));
    let lies = ["title", "legend", "token", "class", "no length", "labelled", "the same seed", "another seed"];
    let more = ["token 3", "target 3", "target -7", "no target", "labelled [-100", "labelled []"];
    for lie in lies.into_iter().chain(more) {
        let said = check::task(&Liar(lie), 9).unwrap_err();
        assert!(said.contains(lie), "{lie}: {said}");
    }
}

/// x² with a kernel that has one thing wrong.
struct Square(&'static str);

impl Op for Square {
    fn name(&self) -> &'static str {
        "square"
    }
    fn infer(&self, x: In) -> Result<Outs, String> {
        Ok(x[0].shape().into())
    }
    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        Some(vec![x[0] * x[0]]).filter(|_| self.0 != "no formula")
    }
    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }
    fn sample(g: &mut Gen) -> (Square, Vec<Tensor>) {
        let shape = g.shape(2, 5);
        (Square(""), vec![g.normal(shape)])
    }
}

impl Kernel for Square {
    fn forward(&self, _: &Cx, x: In, y: &mut [Value]) {
        let factor = if self.0 == "value" { 1.01 } else { 1.0 };
        let skipped = usize::from(self.0 == "an element not written");
        with_real!(x[0].dtype(), T => {
            let pairs = y[0].host_mut::<T>().iter_mut().zip(x[0].host::<T>()).skip(skipped);
            pairs.for_each(|(y, &x)| *y = T::of(factor) * x * x);
        })
    }
    fn backward(&self, _: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(dy) = &dy[0] else { return };
        let factor = if self.0 == "gradient" { 2.02 } else { 2.0 };
        with_real!(x[0].dtype(), T => if let Some((dx, add)) = dx[0].slot::<[T]>() {
            for ((dx, &x), &dy) in dx.iter_mut().zip(x[0].host::<T>()).zip(dy.host::<T>()) {
                *dx = if add && self.0 != "overwrites" { *dx } else { T::ZERO } + T::of(factor) * x * dy;
            }
        })
    }
}

#[test]
fn an_op_with_something_wrong_is_told_what() {
    assert_eq!(check::op::<Square>(), Ok(()));
    fn with<const WRONG: usize>(g: &mut Gen) -> tapezoo::ops::Sample {
        (Box::new(Square(WRONGS[WRONG])), Square::sample(g).1)
    }
    const WRONGS: [&str; 5] = ["no formula", "value", "gradient", "an element not written", "overwrites"];
    let cases = [with::<0>, with::<1>, with::<2>, with::<3>, with::<4>].map(|sample| OpCase { name: "square", sample });
    let says = |found: Checked, word: &str| assert!(found.as_ref().is_err_and(|said| said.contains(word)), "{found:?}");
    says(cases[0].definition(), "no formula");
    for case in &cases[1..3] {
        says(case.gradient(4), "finite differences");
        says(case.kernels(4, 1), "off");
    }
    // An infinity hides no error of the other numbers.
    fn infinite(g: &mut Gen) -> tapezoo::ops::Sample {
        (Box::new(Square("value")), vec![Tensor::from_vec(vec![f64::INFINITY, g.uniform(1.0, 2.0), 2.0], [3])])
    }
    says(OpCase { name: "square", sample: infinite }.kernels(4, 1), "off");
    says(cases[3].purity(5), "old contents");
    says(cases[4].sums(4), "twice");
    says(cases[4].kernels(4, 2), "gradient 0");
}

#[test]
fn a_shape_of_more_elements_than_can_be_counted_is_refused() {
    let huge = 1usize << (usize::BITS / 2);
    panics(&["more elements"], || Shape::new(&[huge, huge]));
    panics(&["more elements"], || Shape::new(&[huge, 1]).with(1, huge));
}
