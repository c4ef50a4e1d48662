//! Mixers, tasks and ops of a program of one's own: they are taken by name, and `check` says what is wrong with them.

use super::{config, panics};
use serde::Deserialize;
use std::panic::{self, AssertUnwindSafe};
use tapezoo::{
    autograd::{Candidates, Gen, Grad, In, Kernel, Op, Outs, Value, Var},
    check::{self, Checked, OpCase},
    models::{self, Bound, Form, Init, Mixer, ModelConfig, State},
    rng::Rng,
    tasks::{self, IGNORE, Len, Named, Task},
    tensor::{Cx, Real, Shape, Tensor},
    train::{
        Trainer,
        config::{TrainConfig, warnings},
    },
    with_real,
};

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
