//! The engine: a list of operations, run as they are recorded, differentiated in reverse.

mod graph;
mod named;

pub use graph::{Edge, Graph, GraphNode};
pub use named::Named;

use super::{Grad, In, Op, Outs, Profile, Value, Var};
use crate::{
    tensor::{Cx, DType, Device, Shape, Tensor},
    with_real,
};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::{Duration, Instant},
};

/// What stands behind a value.
enum Step {
    Op(Box<dyn Op>),
    /// The same buffer under another shape.
    Reshape,
}

/// One recorded operation: inputs are `edges[x0..x0 + nx]`, outputs the values `y0..y0 + ny`.
struct Node {
    step: Step,
    x0: u32,
    nx: u32,
    y0: u32,
    ny: u32,
    scope: u32,
}

#[derive(Default)]
struct Record {
    values: Vec<Value>,
    nodes: Vec<Node>,
    edges: Vec<u32>,
    scopes: Vec<Arc<str>>,
    grads: Vec<Option<Tensor>>,
    /// The gradient slots of the node at hand; a field to keep its capacity.
    slots: Vec<Grad>,
    profile: Option<Profile>,
    /// While profiled: the forward and the backward time of every node.
    times: Vec<[Duration; 2]>,
    /// While naming: values that were given a name, and how many scopes there were then.
    named: Vec<(&'static str, u32, usize)>,
}

/// Records operations as they run, and runs them backwards.
///
/// [`Tape::reset`] forgets a step and keeps its memory. It borrows mutably, so a [`Var`] of an old step cannot be
/// used by accident:
///
/// ```compile_fail
/// # use tapezoo::{autograd::Tape, tensor::Tensor};
/// let mut tape = Tape::default();
/// let x = tape.leaf(&Tensor::from_vec(vec![1.0f32], [1]));
/// tape.reset();
/// let y = x + x; // error: `tape` was borrowed mutably while `x` lives
/// ```
pub struct Tape {
    cx: Cx,
    record: RefCell<Record>,
    /// Whether [`Var::named`] is listened to.
    naming: Cell<bool>,
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new(Device::Cpu)
    }
}

/// The first value or gradient on a tape that was not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The op's name.
    pub op: &'static str,
    /// Where in the model it ran, as [`Tape::scope`] was told.
    pub scope: String,
    /// Which of the two it was: "value", or "gradient" (of one of the op's inputs).
    pub what: &'static str,
}

impl std::fmt::Display for Culprit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let at = if self.scope.is_empty() { String::new() } else { format!(" in {}", self.scope) };
        write!(f, "the {} of op '{}'{at}", self.what, self.op)
    }
}

/// Tape positions are 32-bit: a step of four thousand million values does not fit in memory anyway.
fn id(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2^32 values on one tape")
}

impl Tape {
    /// An empty tape whose ops run on `device`.
    ///
    /// # Panics
    /// When the device cannot be had; [`Tape::open`] says so instead.
    #[track_caller]
    pub fn new(device: Device) -> Tape {
        match Tape::open(device) {
            Ok(tape) => tape,
            Err(why) => panic!("{why}"),
        }
    }

    /// An empty tape whose ops run on `device`.
    ///
    /// # Errors
    /// When the device cannot be had: why.
    pub fn open(device: Device) -> Result<Tape, String> {
        Ok(Tape { cx: Cx::open(device)?, record: RefCell::default(), naming: Cell::new(false) })
    }

    /// The device context that ops run in.
    pub fn cx(&self) -> &Cx {
        &self.cx
    }

    fn push(&self, tensor: Tensor, needs: bool, pooled: bool) -> Var<'_> {
        let mut r = self.record.borrow_mut();
        r.values.push(Value { tensor, needs, pooled });
        Var::new(self, id(r.values.len() - 1))
    }

    /// A value from outside; copied to the device if it is not there.
    fn place(&self, t: &Tensor, needs: bool) -> Var<'_> {
        self.push(t.to_device(&self.cx), needs, !t.is_on(&self.cx))
    }

    /// A value to differentiate with respect to.
    pub fn leaf(&self, t: &Tensor) -> Var<'_> {
        self.place(t, true)
    }

    /// A value that is not differentiated: data, masks, initial states.
    pub fn constant(&self, t: &Tensor) -> Var<'_> {
        self.place(t, false)
    }

    /// A constant of one value throughout, from the pool.
    pub fn full(&self, shape: impl Into<Shape>, dtype: DType, value: f64) -> Var<'_> {
        let mut t = self.cx.pool().get(dtype, shape.into());
        t.fill(value);
        self.push(t, false, true)
    }

    /// Say where in the model the ops recorded from now on belong: "blocks.0.mixer". Errors and profiles name it.
    pub fn scope(&self, name: &Arc<str>) {
        self.record.borrow_mut().scopes.push(name.clone());
    }

    /// Run an op with one output, and remember it. Every op passes through here or [`Tape::apply_many`].
    ///
    /// # Panics
    /// When the inputs do not fit the op: it is a programming error in the formula, and the message gives the op,
    /// the shapes and the line of the formula.
    #[track_caller]
    pub fn apply<const N: usize>(&self, op: impl Op, x: [Var<'_>; N]) -> Var<'_> {
        let [y] = self.apply_many(op, x);
        y
    }

    /// Run an op with `M` outputs (of which the first `M` are given back), and remember it.
    ///
    /// # Panics
    /// As [`Tape::apply`].
    #[track_caller]
    pub fn apply_many<const N: usize, const M: usize>(&self, op: impl Op, x: [Var<'_>; N]) -> [Var<'_>; M] {
        let (y0, n) = self.run(Box::new(op), &x.map(|v| v.id_on(self)));
        assert!(n >= M, "an op with {n} results was asked for {M}");
        std::array::from_fn(|i| Var::new(self, y0 + id(i)))
    }

    /// Run an op on any number of inputs and give back all of its results.
    ///
    /// # Panics
    /// As [`Tape::apply`].
    #[track_caller]
    pub fn apply_dyn<'t>(&'t self, op: Box<dyn Op>, x: &[Var<'t>]) -> Vec<Var<'t>> {
        let ids: Vec<u32> = x.iter().map(|v| v.id_on(self)).collect();
        let (y0, n) = self.run(op, &ids);
        (y0..y0 + id(n)).map(|i| Var::new(self, i)).collect()
    }

    /// The first output's id and the number of results.
    #[track_caller]
    fn run(&self, op: Box<dyn Op>, ids: &[u32]) -> (u32, usize) {
        let r = &mut *self.record.borrow_mut();
        let x = In { values: &r.values, ids };
        let outs: Outs = match op.infer(x) {
            Ok(outs) => outs,
            Err(why) => panic!("{}: {why}", op.name()),
        };
        let dtype = x[0].dtype();
        let needs = ids.iter().any(|&v| r.values[v as usize].needs);
        let y0 = r.values.len();
        for &shape in outs.iter() {
            let tensor = self.cx.pool().get(dtype, shape);
            r.values.push(Value { tensor, needs, pooled: true });
        }
        let (values, y) = r.values.split_at_mut(y0);
        let mut took = Duration::ZERO;
        match &mut r.profile {
            None => op.forward(&self.cx, In { values, ids }, y),
            Some(profile) => {
                let start = Instant::now();
                op.forward(&self.cx, In { values, ids }, y);
                took = start.elapsed();
                let cost = profile.of(op.name());
                cost.forward += took;
                cost.calls += 1;
                cost.bytes += y.iter().map(|y| y.len() * y.dtype().bytes()).sum::<usize>();
            }
        }
        if needs {
            Self::record(r, Step::Op(op), ids, y0, outs.len());
            if r.profile.is_some() {
                r.times.push([took, Duration::ZERO]);
            }
        }
        (id(y0), outs.visible())
    }

    fn record(r: &mut Record, step: Step, ids: &[u32], y0: usize, ny: usize) {
        let node =
            Node { step, x0: id(r.edges.len()), nx: id(ids.len()), y0: id(y0), ny: id(ny), scope: id(r.scopes.len()) };
        r.edges.extend_from_slice(ids);
        r.nodes.push(node);
    }

    #[track_caller]
    pub(super) fn reshape(&self, v: Var<'_>, shape: Shape) -> Var<'_> {
        let r = &mut *self.record.borrow_mut();
        let old = &r.values[v.id_on(self) as usize];
        let (needs, pooled) = (old.needs, old.pooled);
        let tensor = old.tensor.reshape(shape);
        let y0 = r.values.len();
        r.values.push(Value { tensor, needs, pooled });
        if needs {
            Self::record(r, Step::Reshape, &[v.id_on(self)], y0, 1);
            if r.profile.is_some() {
                r.times.push([Duration::ZERO; 2]);
            }
        }
        Var::new(self, id(y0))
    }

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

    /// Differentiate `Σ ⟨cotangent, value⟩` over the pairs given with respect to every leaf.
    ///
    /// # Panics
    /// When a cotangent has not the shape of its value.
    #[track_caller]
    pub fn backward_from<'t>(&'t self, seeds: impl IntoIterator<Item = (Var<'t>, Tensor)>) {
        self.seed(seeds);
        self.sweep(false);
    }

    /// As [`Tape::backward`], looking at every gradient on the way: the first op, in the order of the backward
    /// pass, that turned finite numbers into one that is not. Slow; for telling what went wrong.
    pub fn backward_watched(&self, loss: Var<'_>) -> Option<Culprit> {
        let mut one = self.cx.pool().get(loss.dtype(), loss.shape());
        one.fill(1.0);
        self.seed([(loss, one)]);
        self.sweep(true)
    }

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
            self.cx.pool().put(seed);
        }
    }

    fn sweep(&self, watch: bool) -> Option<Culprit> {
        let r = &mut *self.record.borrow_mut();
        let mut culprit = None;
        for (i, node) in r.nodes.iter().enumerate().rev() {
            let y0 = node.y0 as usize;
            let (before, after) = r.grads.split_at_mut(y0);
            let dy = &mut after[..node.ny as usize];
            if dy.iter().all(Option::is_none) {
                continue;
            }
            let ids = &r.edges[node.x0 as usize..(node.x0 + node.nx) as usize];
            match &node.step {
                Step::Reshape => {
                    let source = ids[0] as usize;
                    if let Some(g) = dy[0].take() {
                        match &mut before[source] {
                            Some(old) => {
                                add_into(old, &g);
                                self.cx.pool().put(g);
                            }
                            empty => *empty = Some(g.reshape(r.values[source].shape())),
                        }
                    }
                }
                Step::Op(op) => {
                    let (values, y) = r.values.split_at(y0);
                    for (j, &v) in ids.iter().enumerate() {
                        let source = &values[v as usize];
                        if !source.needs {
                            r.slots.push(Grad { tensor: None, acc: false, wanted: false });
                            continue;
                        }
                        // The same value twice in one op (x * x): the second slot gets a buffer of its own.
                        let twice = ids[..j].contains(&v);
                        let old = if twice { None } else { before[v as usize].take() };
                        let acc = old.is_some();
                        let tensor = old.unwrap_or_else(|| self.cx.pool().get(source.dtype(), source.shape()));
                        r.slots.push(Grad { tensor: Some(tensor), acc, wanted: true });
                    }
                    let start = r.profile.is_some().then(Instant::now);
                    op.backward(&self.cx, In { values, ids }, &y[..node.ny as usize], dy, &mut r.slots);
                    if let (Some(profile), Some(start)) = (&mut r.profile, start) {
                        let took = start.elapsed();
                        profile.of(op.name()).backward += took;
                        if let Some(times) = r.times.get_mut(i) {
                            times[1] = took;
                        }
                    }
                    for (slot, &v) in r.slots.drain(..).zip(ids) {
                        let Some(g) = slot.tensor else { continue };
                        if watch && culprit.is_none() && slot.wanted && !g.all_finite() {
                            let scope = node.scope as usize;
                            culprit =
                                Some(Culprit { op: op.name(), scope: scope_name(&r.scopes, scope), what: "gradient" });
                        }
                        match &mut before[v as usize] {
                            empty @ None if slot.wanted => *empty = Some(g),
                            Some(first) if slot.wanted => {
                                add_into(first, &g);
                                self.cx.pool().put(g);
                            }
                            _ => self.cx.pool().put(g),
                        }
                    }
                }
            }
            let mut pool = self.cx.pool();
            for g in dy.iter_mut().filter_map(Option::take) {
                pool.put(g);
            }
        }
        culprit
    }

    /// The first op, in the order of the formula, whose value is not finite.
    pub fn first_not_finite(&self) -> Option<Culprit> {
        let r = self.record.borrow();
        r.nodes.iter().find_map(|node| {
            let y = &r.values[node.y0 as usize..(node.y0 + node.ny) as usize];
            let op = match &node.step {
                Step::Op(op) if y.iter().any(|v| !v.all_finite()) => op.name(),
                _ => return None,
            };
            Some(Culprit { op, scope: scope_name(&r.scopes, node.scope as usize), what: "value" })
        })
    }

    /// Forget the step and keep its memory.
    pub fn reset(&mut self) {
        let r = self.record.get_mut();
        let mut pool = self.cx.pool();
        r.nodes.clear();
        r.edges.clear();
        r.scopes.clear();
        r.times.clear();
        r.named.clear();
        for v in r.values.drain(..).filter(|v| v.pooled) {
            pool.put(v.tensor);
        }
        for g in r.grads.drain(..).flatten() {
            pool.put(g);
        }
    }

    /// Measure the time of every op from now on.
    pub fn start_profile(&self) {
        self.record.borrow_mut().profile = Some(Profile::default());
    }

    /// Stop measuring; what was measured since [`Tape::start_profile`].
    pub fn take_profile(&self) -> Profile {
        self.record.borrow_mut().profile.take().unwrap_or_default()
    }

    /// How many operations are recorded.
    pub fn len(&self) -> usize {
        self.record.borrow().nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many buffers were ever allocated; it stops growing once a step's shapes have been seen.
    pub fn fresh_buffers(&self) -> usize {
        self.cx.pool().fresh()
    }

    /// Hand out buffers filled with NaN, so that an element which an op forgets to write is seen. For tests.
    pub fn poison(&self, on: bool) {
        self.cx.pool().set_poison(on);
    }

    pub(super) fn value(&self, id: u32) -> Tensor {
        self.record.borrow().values[id as usize].tensor.clone()
    }

    pub(super) fn shape(&self, id: u32) -> (Shape, DType) {
        let r = self.record.borrow();
        let t = &r.values[id as usize].tensor;
        (t.shape(), t.dtype())
    }

    pub(super) fn grad(&self, id: u32) -> Option<Tensor> {
        self.record.borrow().grads.get(id as usize)?.clone()
    }

    /// Write the gradients of `leaves`, one after the other, into `into`; zeros for a leaf that has none.
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

/// The scope that was current when a node was recorded; `n` scopes had been named by then.
fn scope_name(scopes: &[Arc<str>], n: usize) -> String {
    n.checked_sub(1).and_then(|i| scopes.get(i)).map_or(String::new(), |s| s.to_string())
}

fn add_into(a: &mut Tensor, b: &Tensor) {
    if let Some(gpu) = b.gpu() {
        return gpu.add_into(a, b);
    }
    with_real!(b.dtype(), T => {
        let (a, b) = (a.host_mut::<T>(), b.host::<T>());
        assert_eq!(a.len(), b.len(), "gradients of different sizes");
        for (a, &b) in a.iter_mut().zip(b) {
            *a += b;
        }
    });
}
