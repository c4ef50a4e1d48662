//! What a configuration cannot be: every value that is refused, before any work is done.

use super::{TrainConfig, plain};
use crate::{
    error::{Error, Result, brief, did_you_mean, number},
    models::{self, Form, Model, Positions, Variant},
    ops,
    tasks::Task,
    tensor::{DType, Device},
    train::{capacity, on_device::Graphs, optimizer::LEAST_BETA2},
};

/// The most tokens in one batch: beyond it somebody mistyped a number.
const MAX_TOKENS: usize = 1 << 26;

impl TrainConfig {
    /// Refuse every invalid value, before any work is done.
    pub(crate) fn check(&self) -> Result<()> {
        let mixers = models::names();
        let variants = self.per_model.keys().map(String::as_str).filter(|name| !mixers.contains(name));
        let known: Vec<&str> = mixers.iter().copied().chain(variants).collect();
        expect(!self.models.is_empty(), || "models []: expected at least one; `tapezoo models` lists all".into())?;
        for (i, name) in self.models.iter().enumerate() {
            expect(known.contains(&name.as_str()), || match name.as_str() {
                "all" => "unknown model 'all': it stands alone, for all of them".into(),
                name => models::unknown(name, &known),
            })?;
            expect(!self.models[..i].contains(name), || format!("models: '{name}' is listed twice"))?;
        }
        for (name, own) in &self.per_model {
            let mixer = own.get("mixer").map_or(name.clone(), plain);
            let what = || {
                let mixer = brief(&mixer, 80);
                let near = did_you_mean(&mixer, mixers.iter().copied());
                format!("per_model.{name}: unknown mixer '{mixer}'{near}: `tapezoo models` lists all")
            };
            expect(mixers.contains(&mixer.as_str()), what)?;
            expect(mixer == *name || !mixers.contains(&name.as_str()), || {
                format!("per_model.{name}.mixer: {mixer}: a variant needs a name that is no mixer's")
            })?;
            let of_a_file = |c: char| c.is_alphanumeric() || "_-.".contains(c);
            expect(name.chars().all(of_a_file), || {
                format!("per_model.{name}: expected a name of letters, digits, '_', '-' and '.'")
            })?;
            let all = ["models", "preset", "per_model", "task", "seed", "seeds"];
            let whole = all.into_iter().find(|key| own.contains_key(*key));
            expect(whole.is_none(), || {
                format!("per_model.{name}.{}: expected at the top, as it is of all models", whole.unwrap_or_default())
            })?;
        }
        expect(self.seeds >= 1, || "seeds 0: expected at least 1".into())?;
        let last = self.seed.checked_add(self.seeds as u64).filter(|&s| i64::try_from(s).is_ok());
        expect(last.is_some(), || format!("seed {}: expected seeds below 2^63", self.seed))?;
        capacity::check(self)?;
        self.each_model()?.iter().try_for_each(TrainConfig::check_run)
    }

    fn check_run(&self) -> Result<()> {
        let counts = [
            ("steps", self.steps),
            ("batch", self.batch),
            ("eval_batches", self.eval_batches),
            ("eval_batch", self.eval_batch),
            ("log_every", self.log_every),
        ];
        for (name, n) in counts {
            expect(n >= 1, || format!("{name} 0: expected at least 1"))?;
        }
        // The lengths come first: a task is asked for valid ones only.
        self.check_lengths()?;
        self.check_task(&*self.task)?;
        expect(self.parts() <= self.batch, || {
            format!("micro_batches {}: expected at most the {} sequences of a batch", self.parts(), self.batch)
        })?;
        let finite = |name: &str, x: f64, what: &str, ok: bool| {
            expect(ok && x.is_finite(), || format!("{name} {}: expected {what}", number(x)))
        };
        finite("lr", self.lr, "a finite number above 0", self.lr > 0.0)?;
        let [first, second] = self.betas;
        let expected = format!("two numbers below 1, from 0 and from {LEAST_BETA2} on");
        finite("betas", first, &expected, (0.0..1.0).contains(&first))?;
        finite("betas", second, &expected, (LEAST_BETA2..1.0).contains(&second))?;
        finite("eps", self.eps, "a finite number above 0", self.eps > 0.0)?;
        let smoothing = self.label_smoothing;
        finite("label_smoothing", smoothing, "a part of 1: from 0 to below 1", (0.0..1.0).contains(&smoothing))?;
        finite("weight_decay", self.weight_decay, "a finite number, 0 or more", self.weight_decay >= 0.0)?;
        let end = self.min_lr_fraction;
        finite("min_lr_fraction", end, "a fraction of lr, from 0 to 1", (0.0..=1.0).contains(&end))?;
        let every = self.checkpoint_every;
        finite("checkpoint_every", every, "a finite number of seconds, or 0 for none", every >= 0.0)?;
        finite("clip", self.clip, "a finite number: the largest norm, or 0 for none", self.clip >= 0.0)?;
        finite("grad_noise", self.grad_noise, "a finite number: eta, or 0 for none", self.grad_noise >= 0.0)?;
        expect(self.cuda_graph != Graphs::On || self.device != Device::Cpu, || {
            "cuda_graph on: expected a device cuda or emulated, and this runs on the cpu".into()
        })?;
        self.check_bf16()?;
        self.products.check(self.device, self.dtype).map_err(Error::Config)?;
        ops::check_names(&self.kernels).map_err(Error::Config)?;
        self.check_model()
    }

    /// Refuse bf16 where nothing computes in it: on the CPU, in published models, and in forms that keep no states in
    /// f32.
    fn check_bf16(&self) -> Result<()> {
        if self.dtype != DType::BF16 {
            return Ok(());
        }
        expect(self.device != Device::Cpu, || {
            "dtype bf16: expected a device cuda or emulated, and this runs on the cpu, which computes in f32 or f64; \
             products = \"bf16\" rounds what its matrix products multiply"
                .into()
        })?;
        expect(self.model.variant == Variant::Clean, || {
            "dtype bf16: expected variant = \"clean\"; published models train in f32, as they were".into()
        })?;
        let form = self.form.filter(|form| matches!(form, Form::Recurrent | Form::Parallel));
        form.map_or(Ok(()), |form| {
            Err(Error::Config(format!(
                "form {form}: in bf16 expected scan, chunked or fused, the kernels that keep states in f32; or dtype f32"
            )))
        })
    }

    /// Refuse options of a task, and lengths that it does not have.
    pub(in crate::train) fn check_task(&self, task: &dyn Task) -> Result<()> {
        task.check().map_err(Error::Config)?;
        let lens = [("train_len", self.train_len)].into_iter().chain(self.eval_lens.iter().map(|&t| ("eval_lens", t)));
        let there = |(name, len)| task.check_lens(len).map_err(|why| Error::Config(format!("{name} {len}: {why}")));
        lens.into_iter().try_for_each(there)
    }

    fn check_lengths(&self) -> Result<()> {
        expect(!self.eval_lens.is_empty(), || "eval_lens []: expected at least one length".into())?;
        let train = ("train_len", self.train_len, self.batch);
        for (name, len, batch) in
            [train].into_iter().chain(self.eval_lens.iter().map(|&t| ("eval_lens", t, self.eval_batch)))
        {
            expect(len.min >= 1, || format!("{name} {len}: expected a length of at least 1"))?;
            expect(batch.checked_mul(len.max).is_some_and(|n| n <= MAX_TOKENS), || {
                format!("{batch} sequences of length {len}: expected at most {MAX_TOKENS} tokens in a batch")
            })?;
            // Without a table of positions max_len limits no length.
            if let Some(max) = self.max_len.filter(|_| self.model.positions != Positions::None) {
                expect(len.max <= max, || {
                    format!("{name} {len}: expected no more than the {max} positions of max_len")
                })?;
            }
        }
        for (i, len) in self.eval_lens.iter().enumerate() {
            expect(!self.eval_lens[..i].contains(len), || format!("eval_lens: {len} is listed twice"))?;
        }
        let without = &self.model.without;
        let twice = (1..without.len()).find(|&i| without[..i].contains(&without[i]));
        expect(twice.is_none(), || "without: a defect is listed twice".into())
    }

    /// Build the model once, without values: whatever is wrong with its sizes or its form shows here.
    fn check_model(&self) -> Result<()> {
        let model = Model::hollow(&self.model, self.dtype)?;
        self.eval_lens.iter().chain([&self.train_len]).try_for_each(|len| model.check_len(len.max))?;
        // The lengths that a curriculum has on the way.
        (self.train_len_at(1).max..self.train_len.max).try_for_each(|t| {
            model.check_len(t).map_err(|e| Error::Config(format!("curriculum {}: {e}", self.curriculum)))
        })?;
        self.form.map_or(Ok(()), |form| model.check_form(form))
    }

    /// Refuse an experiment that needs more memory than there is now, or more time than anybody has. This is asked of
    /// what is to be run, and not of a record.
    pub(super) fn check_capacity(&self) -> Result<()> {
        self.each_model()?.iter().try_for_each(capacity::check_run)
    }
}

fn expect(ok: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Config(otherwise())) }
}
