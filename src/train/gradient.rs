//! The loss of a batch and its gradient, and what to say where a number of them is not finite.

use super::{config::TrainConfig, on_device::Feed};
use crate::{
    autograd::{Tape, Var},
    error::within_memory,
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

/// The message about the first value or gradient that is not finite, of a step that `loss` leaves on the tape.
pub(super) fn culprit<'t>(
    cfg: &TrainConfig,
    model: &mut Model,
    tape: &'t Tape,
    loss: impl FnOnce(&mut Model) -> Var<'t>,
) -> String {
    // On one tape the parts of a batch need more memory than they did apart, and there may be none.
    let what = within_memory(|| {
        let loss = loss(model);
        if !model.params().flat().all_finite() {
            return "a parameter, before the step,".to_string();
        }
        let culprit = tape.first_not_finite().or_else(|| tape.backward_watched(loss));
        culprit.map_or("the norm of the gradient".into(), |c| c.to_string())
    });
    not_finite(cfg, &what.unwrap_or_else(|_| "the loss or the norm of the gradient".into()))
}

/// The message that a number is not finite, and what to change.
pub(super) fn not_finite(cfg: &TrainConfig, what: &str) -> String {
    let clip = if cfg.clip > 0.0 { "clip" } else { "set clip" };
    format!("{what} is not finite; lower lr, or {clip}")
}
