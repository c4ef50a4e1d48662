//! The part of a mixer's page that trains it, and the inspector in it.

use super::tree::{about, name};
use crate::{
    error::{Error, Result},
    inspect::{page, view},
    models,
    report::mathml::math,
    train::{Trainer, config::TrainConfig},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use maud::{Markup, PreEscaped, html};
use std::collections::BTreeMap;

/// The script that has the inspector's page, with a place for its data.
pub fn inspector() -> String {
    let page = page::around("The inspector", "@DATA@");
    format!("'use strict';\nwindow.inspectorPage = {};\n", serde_json::json!(page))
}

/// The seed that a page begins with. On two tokens an LMU writes nothing where its one ReLU is 0 for both, as from seed 0.
/// The LSSL has the LMU's, whose page trains it beside.
fn seed(mixer: &str) -> u64 {
    u64::from(["lmu", "lssl"].contains(&mixer))
}

/// The settings of the model that a page trains.
pub fn settings(mixer: &str) -> String {
    let seed = seed(mixer);
    format!(
        "models = [\"{mixer}\"]\nseed = {seed}\nsteps = 1000\nbatch = 16\ntrain_len = 16\neval_lens = [16, 32, 64]\n\
         eval_batches = 2\neval_batch = 32\nlr = 1e-2\nwarmup = 50\nmicro_batches = 1\ndevice = \"cpu\"\n\n\
         [model]\nlayers = 1\nwidth = 16\nheads = 2\nhead_dim = 8\nmlp = 32\n"
    )
}

/// The script that has the weights of a mixer's page when it opens: the model of [`settings`], trained, with eigenvalues
/// from −1 to 1 where it can have them; and what it is worth at each length.
///
/// # Errors
/// When training leaves the finite numbers.
pub fn trained(mixer: &str) -> Result<String> {
    let signed = models::names_with(|has| has.eigenvalues).contains(&mixer);
    let text = settings(mixer) + if signed { "eigenvalues = \"-1..1\"\n" } else { "" };
    let cfg: TrainConfig = text.parse()?;
    let cfg = cfg.for_model(mixer)?;
    let mut trainer = Trainer::new(&cfg, cfg.seed)?;
    let mut losses = vec![];
    while trainer.steps() < cfg.steps {
        // As many digits as a curve shows.
        losses.push((1e4 * trainer.step()?.loss).round() / 1e4);
    }
    let accuracy: Vec<(String, f64)> =
        trainer.evaluate()?.0.into_iter().map(|(len, share)| (len.to_string(), share)).collect();
    let weights = trainer.model().to_safetensors(&serde_json::json!({})).map_err(Error::config)?;
    let about = serde_json::json!({ "losses": losses, "accuracy": accuracy, "weights": STANDARD.encode(weights) });
    Ok(format!("'use strict';\n(window.trained ??= {{}}).{mixer} = {about};\n"))
}

/// The file of that script.
pub fn trained_file(mixer: &str) -> String {
    format!("trained-{mixer}.js")
}

/// Whether the numbers that the inspector draws as eigenvalues are a gate, of which the transition may have more factors.
fn is_gate(mixer: &str) -> bool {
    view::of(mixer).is_some_and(|view| matches!(view.eigenvalues, view::Spectrum::Named(_)))
}

/// The equations of the inspector's views of these mixers, as mathematics.
fn mathematics(mixers: &[Option<&str>]) -> String {
    let of = |mixer: &&str| {
        let equations = view::of(mixer).map_or(&[][..], |view| view.equations).iter();
        (mixer.to_string(), equations.map(|(symbols, _)| math(symbols)).collect::<Vec<_>>())
    };
    let all: BTreeMap<String, Vec<String>> = mixers.iter().flatten().map(of).collect();
    serde_json::json!(all).to_string().replace('<', "\\u003c")
}

/// Where the model is trained, and beside it its parent: the script fills it. It may begin with a model that is `trained`.
pub fn lab(mixer: &str, trained: bool) -> Markup {
    let parent = about(mixer).parent.map(|p| p.0);
    let signed = models::names_with(|has| has.eigenvalues);
    let any_signed = [Some(mixer), parent].iter().flatten().any(|name| signed.contains(name));
    let panel = |mixer: &str, hidden: bool| {
        html! {
            div.panel data-mixer=(mixer) data-gates[is_gate(mixer)] data-settings=(settings(mixer)) data-signed[signed.contains(&mixer)] hidden[hidden] {
                h3 { (name(mixer)) }
                dl.meters {
                    div { dt { "step" } dd.step { "0" } }
                    div { dt { "loss" } dd.loss { "–" } }
                    @for len in [16, 32, 64] { div { dt { "right at " (len) } dd data-len=(len) { "–" } } }
                }
                canvas.curve role="img" aria-label="The loss over the steps" width="600" height="90" {}
                p.told role="status" {}
                p.wrong role="alert" {}
                div.seen {}
            }
        }
    };
    html! {
        p {
            "One block of this mixer, of width 16, learns parity: after each bit, is the number of ones so far even (1) "
            "or odd (0)? It is the library itself that runs in this page. It trains on sequences of 16 bits; those of "
            "32 and 64 show whether it has found the rule. "
            @if trained {
                "The page opens with a model that was trained when the page was made; press Train to see another learn from "
                "the start."
            } @else { "The page opens with random weights; press Train to see it learn." }
        }
        form #lab {
            div.controls {
                button #train type="button" { "Train" }
                button #restart type="button" disabled { "Start over" }
                button #given type="button" hidden { "Trained already" }
                @if any_signed { label { input #signed type="checkbox" checked; " eigenvalues from −1 to 1" } }
                @if let Some(parent) = parent {
                    label { input #beside type="checkbox"; " beside its parent, " (name(parent)) }
                }
                label { "seed " input #seed type="number" min="0" max="9999" value=(seed(mixer)); }
            }
            label for="bits" { "Type bits, and see what the model does with each" }
            input #bits type="text" inputmode="numeric" autocomplete="off" spellcheck="false" value="0110100110010110";
            label.place { "look at bit " input #place type="range" min="1" max="16" value="16"; }
            div.panels {
                (panel(mixer, false))
                @if let Some(parent) = parent { (panel(parent, true)) }
            }
            details #inspector {
                summary { "Step through it: the inspector of this model" @if parent.is_some() { ", and of its parent where that is shown" } }
                p.soft {
                    "Every quantity of the block at every bit, and the equations with their numbers. It shows the weights as "
                    "they are now: train first, or look at how a model begins."
                }
                iframe #frame title="The inspector of the model above" {}
            }
        }
        script type="application/json" #equations-set { (PreEscaped(mathematics(&[Some(mixer), parent]))) }
        noscript { p { "Training needs JavaScript." } }
    }
}
