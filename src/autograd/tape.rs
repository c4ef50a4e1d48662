//! The engine: a list of operations, run as they are recorded, differentiated in reverse.

mod backward;
mod graph;
mod named;
mod repeated;

pub use backward::Culprit;
pub use graph::{Edge, Graph, GraphNode};
pub use named::Named;

use super::{Grad, In, Op, Outs, Profile, Rows, Value, Var};
use crate::{
    ops::{embed::Embedding, gemm::Products},
    tensor::{Cx, DType, Device, Shape, Tensor},
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
    /// Whether ops are recorded and not computed.
    hollow: bool,
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new(Device::Cpu)
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
        Tape::open_with(device, Products::F32)
    }

    /// An empty tape whose ops run on `device`, with products like these.
    ///
    /// # Errors
    /// When the device or the products cannot be had: why.
    pub fn open_with(device: Device, products: Products) -> Result<Tape, String> {
        let cx = Cx::open_with(device, products)?;
        Ok(Tape { cx, record: RefCell::default(), naming: Cell::new(false), hollow: false })
    }

    /// An empty tape that records ops on the CPU without computing them, to see how large their values would be.
    pub fn hollow() -> Tape {
        let tape = Tape { hollow: true, ..Tape::default() };
        tape.cx.pool().set_hollow();
        tape
    }

    /// The device context that ops run in.
    pub fn cx(&self) -> &Cx {
        &self.cx
    }

    fn push(&self, tensor: Tensor, needs: bool, pooled: bool) -> Var<'_> {
        let mut r = self.record.borrow_mut();
        r.values.push(Value { tensor, needs, pooled, copied: None, owed: false });
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
        if !self.hollow {
            t.fill(value);
        }
        self.push(t, false, true)
    }

    /// Say where in the model the ops recorded from now on belong: "blocks.0.mixer". Errors and profiles name it.
    pub fn scope(&self, name: &Arc<str>) {
        self.record.borrow_mut().scopes.push(name.clone());
    }

    /// Run an op with one output, and remember it. Every op passes through here or [`Tape::apply_many`].
    ///
    /// Where it sees single rows ([`Rows::Alone`]) and these are copies of few, two are run: the op on the few, and a
    /// lookup of its results. An op that wants the few themselves ([`Rows::Kinds`]) is given them instead.
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
        match self.table_of(op.as_ref(), ids) {
            None => self.execute(op, ids),
            Some([table, at]) if op.rows() == Rows::Kinds => self.execute(op, &[&[table], &ids[1..], &[at]].concat()),
            Some([table, at]) => {
                let (y, _) = self.execute(op, &[&[table], &ids[1..]].concat());
                self.execute(Box::new(Embedding), &[y, at])
            }
        }
    }

    #[track_caller]
    fn execute(&self, op: Box<dyn Op>, ids: &[u32]) -> (u32, usize) {
        let r = &mut *self.record.borrow_mut();
        r.settle(&self.cx, ids);
        let x = In { values: &r.values, ids };
        let outs: Outs = match op.infer(x) {
            Ok(outs) => outs,
            Err(why) => panic!("{}: {why}", op.name()),
        };
        let dtype = x[0].dtype();
        let needs = ids.iter().any(|&v| r.values[v as usize].needs);
        let copied = match (op.rows(), ids, &*outs) {
            (Rows::Copied, &[table, at], [_]) => Some([table, at]),
            _ => None,
        };
        let (y0, owed) = (r.values.len(), copied.is_some() && matches!(self.cx, Cx::Cpu(_)) && !self.hollow);
        for (i, &shape) in outs.iter().enumerate() {
            let tensor = self.cx.pool().get(outs.dtype(i).unwrap_or(dtype), shape);
            r.values.push(Value { tensor, needs, pooled: true, copied, owed });
        }
        let (values, y) = r.values.split_at_mut(y0);
        let mut took = Duration::ZERO;
        match &mut r.profile {
            _ if owed || self.hollow => {}
            None => op.forward(&self.cx, In { values, ids }, y),
            Some(profile) => {
                let start = Instant::now();
                op.forward(&self.cx, In { values, ids }, y);
                took = start.elapsed();
                profile.count(op.name(), took, y.iter().map(|y| y.len() * y.dtype().bytes()).sum());
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
        r.settle(&self.cx, &[v.id_on(self)]);
        let old = &r.values[v.id_on(self) as usize];
        let (needs, pooled) = (old.needs, old.pooled);
        let tensor = old.tensor.reshape(shape);
        let y0 = r.values.len();
        r.values.push(Value { tensor, needs, pooled, copied: None, owed: false });
        if needs {
            Self::record(r, Step::Reshape, &[v.id_on(self)], y0, 1);
            if r.profile.is_some() {
                r.times.push([Duration::ZERO; 2]);
            }
        }
        Var::new(self, id(y0))
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
        pool.end_step();
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
        let r = &mut *self.record.borrow_mut();
        r.settle(&self.cx, &[id]);
        r.values[id as usize].tensor.clone()
    }

    pub(super) fn shape(&self, id: u32) -> (Shape, DType) {
        let r = self.record.borrow();
        let t = &r.values[id as usize].tensor;
        (t.shape(), t.dtype())
    }

    pub(super) fn grad(&self, id: u32) -> Option<Tensor> {
        self.record.borrow().grads.get(id as usize)?.clone()
    }
}

/// The scope that was current when a node was recorded; `n` scopes had been named by then.
fn scope_name(scopes: &[Arc<str>], n: usize) -> String {
    n.checked_sub(1).and_then(|i| scopes.get(i)).map_or(String::new(), |s| s.to_string())
}
