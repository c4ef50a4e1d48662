//! The loss of a batch and its gradient, and what to say where a number of them is not finite.

use super::{config::TrainConfig, on_device::Feed};
use crate::{
    autograd::{Tape, Var},
    models::{Bound, Form, Model},
    tasks::IGNORE,
    tensor::Tensor,
};

/// The loss of a batch on the tape, and its gradient in `into`.
pub(super) fn gradient<'t>(
    cfg: &TrainConfig,
    model: &mut Model,
    tape: &'t Tape,
    form: Form,
    feed: &Feed,
    into: &mut Tensor,
) -> Var<'t> {
    model.params_mut().refresh();
    let params = model.params().bind(tape);
    let rows = feed.rows.map(|rows| tape.constant(rows));
    let logits = model.train(&params, tape.constant(feed.tokens), form, rows);
    descend(cfg, model, &params, logits, feed.targets, into)
}

/// The loss of these logits, and its gradient in `into`.
pub(super) fn descend<'t>(
    cfg: &TrainConfig,
    model: &Model,
    params: &Bound<'t>,
    logits: Var<'t>,
    targets: &Tensor,
    into: &mut Tensor,
) -> Var<'t> {
    let tape = logits.tape();
    let loss = logits.cross_entropy_smoothed(tape.constant(targets), IGNORE, cfg.label_smoothing);
    tape.backward(loss);
    model.params().gather_grads(tape, params, into);
    loss
}

/// The message about the first value or gradient that is not finite, on a tape that holds a step.
pub(super) fn culprit(cfg: &TrainConfig, model: &Model, tape: &Tape, loss: Var) -> String {
    let what = if !model.params().flat().all_finite() {
        "a parameter, before the step,".to_string()
    } else {
        let culprit = tape.first_not_finite().or_else(|| tape.backward_watched(loss));
        culprit.map_or("the norm of the gradient".into(), |c| c.to_string())
    };
    not_finite(cfg, &what)
}

/// The message that a number is not finite, and what to change.
pub(super) fn not_finite(cfg: &TrainConfig, what: &str) -> String {
    let clip = if cfg.clip > 0.0 { "clip" } else { "set clip" };
    format!("{what} is not finite; lower lr, or {clip}")
}
