//! The tape as a graph, to be looked at.

use super::{Action, Tape, scope_name};
use crate::autograd::Var;
use serde::Serialize;

/// The record of a tape: operations in the order in which they ran.
#[derive(Clone, Debug, Serialize)]
pub struct Graph {
    /// The operations.
    pub nodes: Vec<GraphNode>,
    /// The values that they read and no recorded operation wrote: parameters, data, and what was computed from data
    /// alone.
    pub leaves: Vec<Edge>,
}

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub struct GraphNode {
    /// Its name.
    pub op: &'static str,
    /// Where in the model: "blocks.0.mixer".
    pub scope: String,
    /// The values that it reads.
    pub inputs: Vec<Edge>,
    /// The shapes of the values that it writes. Values that only its backward pass reads come last.
    pub outputs: Vec<String>,
    /// The bytes of these values; none for a reshape.
    pub bytes: usize,
    /// Microseconds forward, where the tape was profiled.
    pub forward_us: f64,
    /// Microseconds backward.
    pub backward_us: f64,
}

/// A value that an operation reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    /// The operation that wrote it, or none.
    pub node: Option<usize>,
    /// Its name, if it is a leaf that has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its shape.
    pub shape: String,
    /// Whether the loss is differentiated with respect to it.
    pub differentiated: bool,
}

impl Tape {
    /// The recorded operations; `leaves` are names for values that no operation wrote.
    pub fn graph(&self, leaves: &[(&str, Var<'_>)]) -> Graph {
        let r = self.record.borrow();
        let mut writer = vec![None; r.values.len()];
        let mut names = vec![String::new(); r.values.len()];
        for (name, v) in leaves {
            names[v.id_on(self) as usize] = (*name).into();
        }
        let mut graph = Graph { nodes: Vec::new(), leaves: Vec::new() };
        let mut seen = vec![false; r.values.len()];
        for (i, node) in r.nodes.iter().enumerate() {
            let edge = |&v: &u32| {
                let v = v as usize;
                Edge {
                    node: writer[v],
                    name: names[v].clone(),
                    shape: r.values[v].shape().to_string(),
                    differentiated: r.values[v].requires_grad,
                }
            };
            let ids = &r.edges[node.x0 as usize..(node.x0 + node.nx) as usize];
            let inputs: Vec<Edge> = ids.iter().map(edge).collect();
            for (e, &v) in inputs.iter().zip(ids) {
                if e.node.is_none() && !std::mem::replace(&mut seen[v as usize], true) {
                    graph.leaves.push(e.clone());
                }
            }
            let y = node.y0 as usize..(node.y0 + node.ny) as usize;
            let (op, bytes) = match &node.action {
                Action::Reshape => ("reshape", 0),
                Action::Op(op, _) => (op.name(), r.values[y.clone()].iter().map(|v| v.len() * v.dtype().bytes()).sum()),
            };
            let us = |side: usize| r.times.get(i).map_or(0.0, |t| t[side].as_secs_f64() * 1e6);
            graph.nodes.push(GraphNode {
                op,
                scope: scope_name(&r.scopes, node.scope as usize),
                inputs,
                outputs: r.values[y.clone()].iter().map(|v| v.shape().to_string()).collect(),
                bytes,
                forward_us: us(0),
                backward_us: us(1),
            });
            writer[y].fill(Some(i));
        }
        graph
    }
}
