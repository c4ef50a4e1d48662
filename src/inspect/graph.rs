//! The tape of one training step: what ran, on which shapes, how many bytes and how long.

use super::source::Source;
use crate::{
    autograd::{Graph, Tape},
    error::{Error, Result, quietly},
    rng,
    tasks::{Batch, IGNORE},
};
use serde::Serialize;

/// How often the step is run; each op's shortest time is reported.
const TIMES: usize = 5;

/// The graph of a training step, and the model it belongs to.
#[derive(Clone, Debug, Serialize)]
pub struct StepGraph {
    /// The model's name.
    pub name: String,
    /// The form that it was computed in.
    pub form: String,
    /// Sequences and their length.
    pub batch: [usize; 2],
    /// The operations.
    #[serde(flatten)]
    pub graph: Graph,
}

/// The tape of a training step of this model, on a batch as in its training.
///
/// # Errors
/// When the model cannot be computed.
pub fn of_a_step(source: &Source) -> Result<StepGraph> {
    let (cfg, model) = (&source.config, &source.model);
    let mut batch = Batch::new(cfg.batch, cfg.train_len);
    cfg.task.check_data(cfg.train_len, &[]).map_err(Error::Config)?;
    batch.fill(&*cfg.task, rng::stream(cfg.seed, "inspect", 1));
    let form = cfg.form_of(model);
    let mut tape = Tape::default().with_kernels(cfg.kernels.clone());
    let mut best: Option<Graph> = None;
    for _ in 0..TIMES {
        let graph = quietly(|| {
            tape.start_profile();
            let params = model.params().bind(&tape);
            let (rows, targets) = batch.labelled().unzip();
            let tokens = tape.constant(&batch.tokens);
            let logits = model.forward_at(&params, tokens, form, rows.map(|rows| tape.constant(&rows)));
            let targets = tape.constant(targets.as_ref().unwrap_or(&batch.targets));
            let loss = logits.cross_entropy(targets, IGNORE);
            tape.backward(loss);
            let names = model.params().entries().iter().map(|e| e.name.as_str()).zip(params.vars().iter().copied());
            let leaves: Vec<_> = names.chain([("tokens", tokens), ("targets", targets)]).collect();
            tape.graph(&leaves)
        });
        let graph = graph.map_err(Error::Config)?;
        best = Some(match best {
            None => graph,
            Some(mut best) => {
                for (a, b) in best.nodes.iter_mut().zip(&graph.nodes) {
                    a.forward_us = a.forward_us.min(b.forward_us);
                    a.backward_us = a.backward_us.min(b.backward_us);
                }
                best
            }
        });
        tape.reset();
    }
    let graph = best.ok_or_else(|| Error::config("no step was taken"))?;
    Ok(StepGraph { name: source.name.clone(), form: form.to_string(), batch: [cfg.batch, cfg.train_len.max], graph })
}

impl StepGraph {
    /// The graph in Graphviz's language: `dot -Tsvg`.
    pub fn dot(&self) -> String {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = format!(
            "// {}, {}: a training step on {} sequences of {} tokens\ndigraph tape {{\n  rankdir=TB; \
             node [shape=box, fontname=\"sans-serif\", fontsize=10]; edge [fontname=\"sans-serif\", fontsize=8];\n",
            self.name, self.form, self.batch[0], self.batch[1]
        );
        for (i, leaf) in self.graph.leaves.iter().filter(|l| !l.name.is_empty()).enumerate() {
            text += &format!("  l{i} [label=\"{}\\n{}\", style=dashed];\n", quoted(&leaf.name), quoted(&leaf.shape));
        }
        let named: Vec<&str> = self.graph.leaves.iter().map(|l| l.name.as_str()).filter(|n| !n.is_empty()).collect();
        let mut scope = "";
        let mut clusters = 0;
        for (i, node) in self.graph.nodes.iter().enumerate() {
            if i == 0 || node.scope != scope {
                if i > 0 {
                    text += "  }\n";
                }
                scope = &node.scope;
                text += &format!("  subgraph cluster_{clusters} {{\n    label=\"{}\";\n", quoted(scope));
                clusters += 1;
            }
            text += &format!(
                "    n{i} [label=\"{}\\n{}\\n{} B, {:.1} + {:.1} µs\"];\n",
                node.op,
                quoted(&node.outputs.join(" ")),
                node.bytes,
                node.forward_us,
                node.backward_us
            );
        }
        text += if clusters > 0 { "  }\n" } else { "" };
        for (i, node) in self.graph.nodes.iter().enumerate() {
            for edge in &node.inputs {
                let from = match edge.node {
                    Some(j) => format!("n{j}"),
                    None => match named.iter().position(|n| *n == edge.name) {
                        Some(l) => format!("l{l}"),
                        None => continue,
                    },
                };
                text += &format!("  {from} -> n{i} [label=\"{}\"];\n", quoted(&edge.shape));
            }
        }
        text + "}\n"
    }
}
