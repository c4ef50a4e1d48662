//! The library in a browser: a few functions, and texts that go through memory.
//!
//! A module has one trainer. What reads a text finds it in the buffer that [`buffer`] has made room for; what answers
//! with a text leaves it where [`answer`] says, [`answer_len`] bytes of UTF-8: JSON, or an error where the function
//! says that it failed. A panic leaves its message there too, before the module stops.
//!
//! `#[unsafe(no_mangle)]` is unsafe because two functions of one name would be one to the linker. SAFETY: this crate is
//! the only one of the module that exports names, and these are all of them.

use serde_json::{Value, json};
use std::{cell::RefCell, collections::BTreeMap, panic, sync::Once};
use tapezoo::{
    error::{Error, Result},
    inspect::{
        input::Input,
        shown,
        trace::{Series, Trace, trace_model},
        view,
    },
    models::{Model, Positions},
    train::{Trainer, config::TrainConfig},
};

/// The configuration, its trainer, and the origin of the weights before the first step.
type Made = (TrainConfig, Trainer, &'static str);

thread_local! {
    static GIVEN: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
    static ANSWER: RefCell<String> = const { RefCell::new(String::new()) };
    static MADE: RefCell<Option<Made>> = const { RefCell::new(None) };
}

/// Room for a text of so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn buffer(len: usize) -> *mut u8 {
    GIVEN.with_borrow_mut(|given| {
        given.clear();
        given.resize(len, 0);
        given.as_mut_ptr()
    })
}

/// Where the last answer is.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> *const u8 {
    ANSWER.with_borrow(|answer| answer.as_ptr())
}

/// How many bytes it has.
#[unsafe(no_mangle)]
pub extern "C" fn answer_len() -> usize {
    ANSWER.with_borrow(String::len)
}

/// A fresh trainer, of the configuration in the buffer: TOML, with the first of its `models` and its `seed`. Answers
/// with what there is to know of it. Whether that went well.
#[unsafe(no_mangle)]
pub extern "C" fn make() -> bool {
    answered(|| {
        let cfg: TrainConfig = given()?.parse()?;
        let name = cfg.models.first().ok_or_else(|| Error::config("models: names none"))?;
        let cfg = cfg.for_model(name)?;
        let trainer = Trainer::new(&cfg, cfg.seed)?;
        let (task, parameters) = (cfg.task.shared(), trainer.model().params().len());
        let about = json!({ "mixer": cfg.model.mixer, "task": task.title(), "legend": task.legend(), "steps": cfg.steps,
            "parameters": parameters, "blocks": cfg.model.layers });
        MADE.set(Some((cfg, trainer, "Random weights, not trained yet.")));
        Ok(about)
    })
}

/// Give the trainer's model the weights in the buffer, a safetensors file, with a fresh optimiser and no step taken; whole
/// or not at all. Whether that went well.
#[unsafe(no_mangle)]
pub extern "C" fn load() -> bool {
    answered(|| {
        let bytes = GIVEN.take();
        made(|(cfg, trainer, weights)| {
            let mut model = Model::new(&cfg.model, cfg.seed, cfg.dtype)?;
            model.load_bytes(&bytes, "the weights")?;
            *trainer = Trainer::with(cfg, model, cfg.task.shared(), cfg.seed)?;
            *weights = "Weights that were trained before.";
            Ok(Value::Null)
        })
    })
}

/// Take so many steps; the loss of the last, or NaN where it failed, and then the answer says why.
#[unsafe(no_mangle)]
pub extern "C" fn step(n: u32) -> f64 {
    let mut loss = f64::NAN;
    let went_well = answered(|| {
        made(|(_, trainer, _)| {
            for _ in 0..n {
                loss = trainer.step()?.loss;
            }
            Ok(Value::Null)
        })
    });
    if went_well { loss } else { f64::NAN }
}

/// The number of steps taken.
#[unsafe(no_mangle)]
pub extern "C" fn steps() -> u32 {
    MADE.with_borrow(|made| made.as_ref().map_or(0, |(_, trainer, _)| trainer.steps() as u32))
}

/// Answers with the accuracy at each length, `[[length, accuracy], …]`. Whether that went well.
#[unsafe(no_mangle)]
pub extern "C" fn evaluate() -> bool {
    answered(|| {
        made(|(_, trainer, _)| {
            let (accuracy, _) = trainer.evaluate()?;
            Ok(accuracy.iter().map(|(len, share)| json!([len.to_string(), share])).collect())
        })
    })
}

/// Run the model as it is over the sequence in the buffer, in the notation of the task. Answers with its tokens, their
/// targets, the logits, and in each block every quantity of the mixer's view: symbol, axes, role, shape at a step, and
/// the numbers of all steps. Whether that went well.
#[unsafe(no_mangle)]
pub extern "C" fn trace() -> bool {
    answered(|| made(|(cfg, trainer, _)| told(cfg, trainer)))
}

/// Run the model as it is over the sequence in the buffer, as [`trace`] does. Answers with the data of the inspector's
/// page: one run, whose equations have no mathematics yet. Whether that went well.
#[unsafe(no_mangle)]
pub extern "C" fn inspect() -> bool {
    answered(|| {
        made(|(cfg, trainer, weights)| {
            let (input, trace) = traced(cfg, trainer)?;
            let tensor = |_: usize, _: &str, series: &Series, _: bool| json!({ "shape": series.shape, "numbers": series.data, "width": series.width() });
            let about = match trainer.steps() {
                0 => (*weights).to_string(),
                n => format!("Trained here for {n} steps."),
            };
            let run = shown::run(&cfg.model.mixer, &about, trainer.model(), &trace, &input, &tensor);
            Ok(shown::page(&*cfg.task.shared(), &input, vec![run], json!([])))
        })
    })
}

/// The sequence in the buffer, and the model's run over it.
fn traced(cfg: &TrainConfig, trainer: &Trainer) -> Result<(Input, Trace)> {
    let (task, model) = (cfg.task.shared(), trainer.model());
    let input = Input::read(&*task, given()?.trim())?;
    let (len, most) = (input.tokens.len(), cfg.model.max_len);
    if cfg.model.positions != Positions::None && len > most {
        return Err(Error::config(format!("{len} tokens: this model has positions for {most}; type fewer")));
    }
    let trace = trace_model(model, &cfg.kernels, &input.tokens, &|| ())?;
    Ok((input, trace))
}

fn told(cfg: &TrainConfig, trainer: &Trainer) -> Result<Value> {
    let (task, (input, trace)) = (cfg.task.shared(), traced(cfg, trainer)?);
    let view = view::of(&cfg.model.mixer);
    let numbers = |series: &Series| json!({ "shape": series.shape, "data": series.data });
    let block = |layer: &BTreeMap<String, Series>| {
        let of_view = view.map_or(&[][..], |view| view.quantities).iter().filter_map(|q| {
            let mut told = numbers(layer.get(q.name)?);
            for (key, text) in [("name", q.name), ("symbol", q.symbol), ("axes", q.axes), ("about", q.about)] {
                told[key] = text.into();
            }
            told["role"] = serde_json::to_value(q.role).unwrap_or_default();
            Some(told)
        });
        of_view.collect::<Value>()
    };
    let names = shown::eigenvalues(view, &trace);
    let spectrum = |layer: &BTreeMap<String, Series>| {
        names.iter().filter_map(|name| layer.get(*name)).map(numbers).collect::<Value>()
    };
    let tokens: Vec<String> = input.tokens.iter().map(|&id| task.token(id as usize)).collect();
    Ok(json!({
        "tokens": tokens,
        "targets": input.targets,
        "logits": numbers(&trace.logits),
        "blocks": trace.layers.iter().map(block).collect::<Value>(),
        "eigenvalues": trace.layers.iter().map(spectrum).collect::<Value>(),
    }))
}

/// The text in the buffer.
fn given() -> Result<String> {
    let bytes = GIVEN.take();
    String::from_utf8(bytes).map_err(|_| Error::config("the text in the buffer is no UTF-8"))
}

/// Something done with the trainer.
fn made<R>(f: impl FnOnce(&mut Made) -> Result<R>) -> Result<R> {
    MADE.with_borrow_mut(|made| f(made.as_mut().ok_or_else(|| Error::config("there is no trainer: make one first"))?))
}

/// Leave what comes of `f` as the answer; whether it went well.
fn answered(f: impl FnOnce() -> Result<Value>) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| panic::set_hook(Box::new(|info| ANSWER.set(info.to_string()))));
    let (text, well) = match f() {
        Ok(value) => (value.to_string(), true),
        // There are no flags on a page.
        Err(e) => (e.shown().trim_start_matches("--input").trim_start_matches(": ").trim().to_owned(), false),
    };
    ANSWER.set(text);
    well
}
