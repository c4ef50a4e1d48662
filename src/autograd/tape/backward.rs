//! The backward pass: from gradients of outputs to gradients of inputs, the last operation first.

use super::{Action, Node, Record, Tape, scope_name};
use crate::{
    autograd::{Grad, In, Value, Var},
    tensor::{Cx, Tensor},
    with_real,
};
use std::time::Instant;

/// The first value or gradient on a tape that was not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The op's name.
    pub op: &'static str,
    /// Where in the model it ran, as [`Tape::scope`] was told.
    pub scope: String,
    /// The quantity that was not finite: "value", or "gradient" (of one of the op's inputs).
    pub what: &'static str,
}

impl std::fmt::Display for Culprit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let at = if self.scope.is_empty() { String::new() } else { format!(" in {}", self.scope) };
        write!(f, "the {} of op '{}'{at}", self.what, self.op)
    }
}

impl Tape {
    /// Differentiate a one-element value with respect to every leaf.
    ///
    /// # Panics
    /// When `loss` has not exactly one element.
    #[track_caller]
    pub fn backward(&self, loss: Var<'_>) {
        assert_eq!(loss.shape().len(), 1, "backward needs one value to differentiate, got shape {}", loss.shape());
        let mut one = self.cx.pool().get(loss.dtype(), loss.shape());
        one.fill(1.0);
        self.backward_from([(loss, one)]);
    }

    /// Differentiate Σ ⟨c, y⟩ over pairs of a value y and a tensor c of its shape, with respect to every leaf. c is the
    /// cotangent of y: it takes the place of ∂L/∂y where there is no loss L. Elsewhere, too, the cotangent of an output
    /// is its gradient dy.
    ///
    /// # Panics
    /// When a cotangent has not the shape of its value.
    #[track_caller]
    pub fn backward_from<'t>(&'t self, seeds: impl IntoIterator<Item = (Var<'t>, Tensor)>) {
        self.seed(seeds);
        self.sweep(false, None);
    }

    /// As [`Tape::backward_from`], calling `each` with every op's share of a gradient before the share is added to
    /// others: to see how far the rounding of each share moves the sum. Slow, as no op adds in place.
    ///
    /// # Panics
    /// As [`Tape::backward_from`].
    #[track_caller]
    pub fn backward_with<'t>(
        &'t self,
        seeds: impl IntoIterator<Item = (Var<'t>, Tensor)>,
        mut each: impl FnMut(&mut Tensor),
    ) {
        self.seed(seeds);
        self.sweep(false, Some(&mut each));
    }

    /// As [`Tape::backward`] (a value of several elements counts as their sum), but every gradient is looked at.
    /// Returns the first op, in the order of the backward pass, that was handed finite gradients, or a sum of such, and
    /// gave one that is not finite. Slow; for finding out what went wrong.
    pub fn backward_watched(&self, loss: Var<'_>) -> Option<Culprit> {
        let mut one = self.cx.pool().get(loss.dtype(), loss.shape());
        one.fill(1.0);
        self.seed([(loss, one)]);
        self.sweep(true, None)
    }

    /// Forget the gradients of the last pass and set those of the given values; a value that is given twice gets the
    /// sum.
    #[track_caller]
    fn seed<'t>(&'t self, seeds: impl IntoIterator<Item = (Var<'t>, Tensor)>) {
        {
            let r = &mut *self.record.borrow_mut();
            for g in r.grads.drain(..).flatten() {
                self.cx.pool().put(g);
            }
            r.grads.resize_with(r.values.len(), || None);
        }
        // The iterator may look at the tape: borrow anew for each pair.
        for (v, seed) in seeds {
            let r = &mut *self.record.borrow_mut();
            let id = v.id_on(self) as usize;
            let shape = r.values[id].shape();
            assert_eq!(seed.shape(), shape, "the cotangent of a value of shape {shape} has shape {}", seed.shape());
            match &mut r.grads[id] {
                Some(old) => add_into(old, &seed.to_device(&self.cx)),
                empty => {
                    // A copy from the pool: the caller may keep the seed, and gradients are written in place.
                    let mut t = self.cx.pool().get(seed.dtype(), shape);
                    t.assign(&seed);
                    *empty = Some(t);
                }
            }
            // Nothing happens if the caller still holds it: the pool takes no shared buffer.
            self.cx.pool().put(seed);
        }
    }

    /// Walk the nodes from the last to the first. A node comes after all nodes that read its outputs, so the gradients
    /// of its outputs are complete.
    fn sweep(&self, watch: bool, mut each: Each) -> Option<Culprit> {
        let r = &mut *self.record.borrow_mut();
        let mut culprit = None;
        for i in (0..r.nodes.len()).rev() {
            culprit = culprit.or(r.back_through(&self.cx, i, watch, &mut each));
        }
        culprit
    }

    /// The first recorded op, in the order in which they ran, with a value that is NaN or +∞. −∞ is not looked for: it
    /// is what masks are made of, and the logarithm of a closed gate.
    pub fn first_not_finite(&self) -> Option<Culprit> {
        let r = self.record.borrow();
        r.nodes.iter().find_map(|node| {
            let y = &r.values[node.y0 as usize..(node.y0 + node.ny) as usize];
            let op = match &node.action {
                Action::Op(op, _) if y.iter().any(|value| is_broken(value)) => op.name(),
                _ => return None,
            };
            Some(Culprit { op, scope: scope_name(&r.scopes, node.scope as usize), what: "value" })
        })
    }

    /// Write the gradients of `leaves`, one after the other, into `into`, in its type; zeros for a leaf that has none.
    ///
    /// # Panics
    /// When `into` has not as many elements as the leaves together.
    #[track_caller]
    pub fn collect_grads(&self, leaves: &[Var<'_>], into: &mut Tensor) {
        let r = self.record.borrow();
        let mut done = 0;
        for leaf in leaves {
            let id = leaf.id_on(self) as usize;
            let n = r.values[id].len();
            into.write_at(done, n, r.grads.get(id).and_then(Option::as_ref));
            done += n;
        }
        assert_eq!(done, into.len(), "elements of all leaves, and of what their gradients go to");
    }
}

/// Looks at every op's share of a gradient.
type Each<'a> = Option<&'a mut dyn FnMut(&mut Tensor)>;

impl Record {
    /// One step of the chain rule: take the gradients of a node's outputs and add dyᵀ ∂y/∂x to the gradient of each
    /// input x. A node whose outputs have no gradient is skipped. If `watch`, name the op when a gradient of one of its
    /// inputs is not finite.
    fn back_through(&mut self, cx: &Cx, at: usize, watch: bool, each: &mut Each) -> Option<Culprit> {
        let Record { values, nodes, edges, scopes, grads, slots, profile, times, .. } = self;
        let node: &Node = &nodes[at];
        let (y0, ny) = (node.y0 as usize, node.ny as usize);
        let (before, after) = grads.split_at_mut(y0);
        let dy = &mut after[..ny];
        if dy.iter().all(Option::is_none) {
            return None;
        }
        let ids = &edges[node.x0 as usize..(node.x0 + node.nx) as usize];
        let mut culprit = None;
        match &node.action {
            Action::Reshape => {
                let source = ids[0] as usize;
                // The gradient is moved. Kept in `dy` as well, two tensors would hold its buffer, and the pool takes no
                // such buffer back.
                if let Some(g) = dy[0].take().map(|g| g.reshape(values[source].shape())) {
                    add_to(&mut before[source], &values[source], g, cx);
                }
            }
            Action::Op(op, by) => {
                let (values, y) = values.split_at(y0);
                lend(slots, before, values, ids, each.is_some(), cx);
                let start = profile.is_some().then(Instant::now);
                let x = In { values, ids };
                match (by.kernel(op.as_ref()), op.primitive(), &dy[0]) {
                    (Some(kernel), ..) => kernel.backward(cx, x, &y[..ny], dy, slots),
                    (None, Some(primitive), Some(g)) => primitive.derivative(x, g, slots),
                    _ => unreachable!(
                        "a node without a kernel is a primitive, and the gradient of its one output is there"
                    ),
                }
                if let (Some(profile), Some(start)) = (profile, start) {
                    let took = start.elapsed();
                    profile.of(by.name(op.as_ref())).backward += took;
                    if let Some(times) = times.get_mut(at) {
                        times[1] = took;
                    }
                }
                let wrong = |g: &Option<Tensor>| g.as_ref().is_some_and(|g| !g.all_finite());
                if watch && slots.iter().any(|g| g.wanted && wrong(&g.tensor)) {
                    let scope = scope_name(scopes, node.scope as usize);
                    culprit = Some(Culprit { op: op.name(), scope, what: "gradient" });
                }
                take_back(slots, before, values, ids, each, cx);
            }
        }
        let mut pool = cx.pool();
        for g in dy.iter_mut().filter_map(Option::take) {
            pool.put(g);
        }
        culprit
    }
}

/// Lend the gradient of each input to the op, in a slot: the gradient that is there, for the op to add to, or a fresh
/// buffer.
///
/// The buffer is always a fresh one if `alone` (somebody looks at each op's share by itself), for the second mention of
/// a value in one op, and for a parameter in bf16, whose gradients are added up in f32. [`take_back`] then adds it to
/// the gradient.
fn lend(slots: &mut Vec<Grad>, grads: &mut [Option<Tensor>], values: &[Value], ids: &[u32], alone: bool, cx: &Cx) {
    for (j, &v) in ids.iter().enumerate() {
        let source = &values[v as usize];
        if !source.requires_grad {
            slots.push(Grad { tensor: None, acc: false, wanted: false });
            continue;
        }
        let apart = alone || ids[..j].contains(&v) || source.sums_wide();
        let old = if apart { None } else { grads[v as usize].take() };
        let acc = old.is_some();
        let tensor = old.unwrap_or_else(|| cx.pool().get(source.dtype(), source.shape()));
        slots.push(Grad { tensor: Some(tensor), acc, wanted: true });
    }
}

/// Make the gradients that the op left in the slots those of its inputs. Scratch memory in an unwanted slot goes back.
fn take_back(
    slots: &mut Vec<Grad>,
    grads: &mut [Option<Tensor>],
    values: &[Value],
    ids: &[u32],
    each: &mut Each,
    cx: &Cx,
) {
    for (slot, &v) in slots.drain(..).zip(ids) {
        match slot.tensor {
            Some(mut g) if slot.wanted => {
                if let Some(each) = each {
                    each(&mut g);
                }
                add_to(&mut grads[v as usize], &values[v as usize], g, cx);
            }
            Some(g) => cx.pool().put(g),
            None => {}
        }
    }
}

/// The gradient of `value` that is there plus `g`, or `g` if there is none yet.
fn add_to(place: &mut Option<Tensor>, value: &Value, g: Tensor, cx: &Cx) {
    match place {
        Some(old) => {
            if value.sums_wide() && old.dtype() == value.dtype() {
                let mut wide = cx.pool().get(old.dtype().real(), old.shape());
                wide.assign(old);
                cx.pool().put(std::mem::replace(old, wide));
            }
            add_into(old, &g);
            cx.pool().put(g);
        }
        empty => *empty = Some(g),
    }
}

fn add_into(a: &mut Tensor, b: &Tensor) {
    if let Some(gpu) = b.gpu() {
        return gpu.convert(b, a, true);
    }
    with_real!(b.dtype(), T => {
        let (a, b) = (a.host_mut::<T>(), b.host::<T>());
        assert_eq!(a.len(), b.len(), "gradients of different sizes");
        for (a, &b) in a.iter_mut().zip(b) {
            *a += b;
        }
    });
}

/// Whether a value holds NaN or +∞.
fn is_broken(value: &Tensor) -> bool {
    !value.all_finite() && value.to_f64().iter().any(|&x| x.is_nan() || x == f64::INFINITY)
}
