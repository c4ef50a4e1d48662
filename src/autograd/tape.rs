//! The engine: a list of operations, run as they are recorded, differentiated in reverse.

mod backward;
mod calls;
mod graph;
mod named;

pub use backward::Culprit;
pub use calls::Called;
pub use graph::{Edge, Graph, GraphNode};
pub use named::Named;

use super::{Grad, In, Kernel, Kernels, Op, Outs, Profile, Value, Var};
use crate::tensor::{Cores, Cx, DType, Device, Products, Shape, Tensor};
use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    sync::Arc,
    time::{Duration, Instant},
};

/// The work of a node: it computed an op, in one of two ways, or it reshaped a value.
enum Action {
    Op(Box<dyn Op>, Way),
    /// The same buffer under another shape.
    Reshape,
}

/// How an op is computed, if not by its formula.
#[derive(Clone, Copy)]
enum Way {
    /// By the kernel of this number.
    Kernel(usize),
    /// By the plain loops of a primitive.
    Loops,
}

impl Way {
    fn kernel(self, op: &dyn Op) -> Option<&dyn Kernel> {
        if let Way::Kernel(i) = self { op.kernels().iter().nth(i) } else { None }
    }

    /// The name that its cost is counted under.
    fn name(self, op: &dyn Op) -> Cow<'static, str> {
        match self.kernel(op) {
            Some(kernel) => kernel.name().unwrap_or(op.name()).into(),
            None => format!("{} (loops)", op.name()).into(),
        }
    }
}

/// A recorded operation. Its inputs are the values whose ids are `edges[x0..x0 + nx]`; its outputs are the values of
/// ids `y0..y0 + ny`: the op's outputs first, then what its kernel saved.
struct Node {
    action: Action,
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
    /// The kernels that computed an op.
    ran: Vec<&'static str>,
    /// While naming: values that were given a name, and how many scopes there were then.
    named: Vec<(&'static str, u32, usize)>,
    /// While they are noted: the calls of ops.
    calls: Vec<Called>,
    change: Option<Change>,
}

/// Changes every result of an op.
type Change = Box<dyn FnMut(&mut Tensor) + Send>;

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
    kernels: Kernels,
    record: RefCell<Record>,
    /// Whether [`Var::named`] is listened to.
    naming: Cell<bool>,
    /// Whether calls are noted.
    calling: Cell<bool>,
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
        let [naming, calling] = [false; 2].map(Cell::new);
        Ok(Tape { cx, kernels: Kernels::Fast, record: RefCell::default(), naming, calling, hollow: false })
    }

    /// An empty tape that records ops on the CPU without computing them, to see how large their values would be.
    pub fn hollow() -> Tape {
        let tape = Tape { hollow: true, ..Tape::default() };
        tape.cx.pool().set_hollow();
        tape
    }

    /// The same tape, with ops computed by these kernels alone.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Kernels) -> Tape {
        self.kernels = kernels;
        self
    }

    /// Compute on these cores besides, when they are idle. A tape of its own does so on all cores of the machine.
    pub(crate) fn share(&mut self, cores: &Cores) {
        self.cx.share(cores);
    }

    /// The device context that ops run in.
    pub fn cx(&self) -> &Cx {
        &self.cx
    }

    fn push(&self, tensor: Tensor, requires_grad: bool, pooled: bool) -> Var<'_> {
        let mut r = self.record.borrow_mut();
        r.values.push(Value { tensor, requires_grad, pooled });
        Var::new(self, id(r.values.len() - 1))
    }

    /// A value from outside; copied to the device if it is not there.
    fn place(&self, t: &Tensor, requires_grad: bool) -> Var<'_> {
        self.push(t.to_device(&self.cx), requires_grad, !t.is_on(&self.cx))
    }

    /// A value to differentiate with respect to.
    pub fn leaf(&self, t: &Tensor) -> Var<'_> {
        self.place(t, true)
    }

    /// A value that is not differentiated: data, masks, initial states.
    pub fn constant(&self, t: &Tensor) -> Var<'_> {
        self.place(t, false)
    }

    /// The value of a variable on this tape as a constant: no gradient flows through it.
    pub fn detached(&self, v: Var<'_>) -> Var<'_> {
        self.push(self.value(v.id_on(self)), false, true)
    }

    /// A constant of one value throughout, from the pool.
    #[track_caller]
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

    /// The output of an op that has one. The op is recorded if a leaf's gradient may go through it; if its formula
    /// computes it, the ops in the formula are recorded instead. Every op comes through here, [`Tape::apply_many`] or
    /// [`Tape::apply_dyn`].
    ///
    /// # Panics
    /// When the inputs do not fit the op: it is a programming error in the formula, and the message gives the op,
    /// the shapes and the line of the formula.
    #[track_caller]
    pub fn apply<const N: usize>(&self, op: impl Op, x: [Var<'_>; N]) -> Var<'_> {
        let [y] = self.apply_many(op, x);
        y
    }

    /// As [`Tape::apply`], for an op with at least `M` outputs: the first `M`.
    ///
    /// # Panics
    /// As [`Tape::apply`].
    #[track_caller]
    pub fn apply_many<const N: usize, const M: usize>(&self, op: impl Op, x: [Var<'_>; N]) -> [Var<'_>; M] {
        self.note_call(op.name());
        let check_count = |n: usize| assert!(n >= M, "an op with {n} results was asked for {M}");
        let ids = self.ids(&x, x.map(Var::id));
        let Some(by) = self.way(&op, &ids) else {
            let y = self.by_formula(&op, &ids);
            check_count(y.len());
            return std::array::from_fn(|i| y[i]);
        };
        let (y0, n) = self.run(Box::new(op), by, &ids);
        check_count(n);
        std::array::from_fn(|i| Var::new(self, y0 + id(i)))
    }

    /// As [`Tape::apply`], for any number of inputs: all outputs.
    ///
    /// # Panics
    /// As [`Tape::apply`].
    #[track_caller]
    pub fn apply_dyn<'t>(&'t self, op: Box<dyn Op>, x: &[Var<'t>]) -> Vec<Var<'t>> {
        self.note_call(op.name());
        let ids = self.ids(x, x.iter().map(|v| v.id()).collect::<Vec<_>>());
        let Some(by) = self.way(op.as_ref(), &ids) else { return self.by_formula(op.as_ref(), &ids) };
        let (y0, n) = self.run(op, by, &ids);
        (y0..y0 + id(n)).map(|i| Var::new(self, i)).collect()
    }

    /// The ids of these values, if they are on this tape. A function, because `#[track_caller]` does not pass through a
    /// closure.
    #[track_caller]
    fn ids<I>(&self, x: &[Var<'_>], ids: I) -> I {
        for v in x {
            v.id_on(self);
        }
        ids
    }

    /// How to compute an op, if not by its formula: by the first kernel that is switched on and accepts the inputs, or,
    /// for a primitive on the CPU, by its loops. A primitive on a GPU has only kernels, and so has a primitive of i32,
    /// because loops are for real numbers; it then runs a kernel that is switched off.
    fn way(&self, op: &dyn Op, ids: &[u32]) -> Option<Way> {
        let x = In { values: &self.record.borrow().values, ids };
        let kernel = |every: bool| {
            let fits = |k: &dyn Kernel| (every || self.kernels.has(op.name(), k.name())) && k.accepts(x, &self.cx);
            op.kernels().iter().position(fits).map(Way::Kernel)
        };
        let loops = || matches!(self.cx, Cx::Cpu(_)) && x[0].dtype() != DType::I32;
        match kernel(false) {
            None if op.primitive().is_none() => None,
            None if loops() => Some(Way::Loops),
            None => kernel(true),
            by => by,
        }
    }

    /// Check an op's inputs and run its formula. This puts the formula's ops on the tape, and not the op.
    #[track_caller]
    fn by_formula(&self, op: &dyn Op, ids: &[u32]) -> Vec<Var<'_>> {
        if let Err(why) = op.infer(In { values: &self.record.borrow().values, ids }) {
            panic!("{}: {why}", op.name());
        }
        let x: Vec<Var> = ids.iter().map(|&id| Var::new(self, id)).collect();
        match op.formula(&x) {
            Some(y) => y,
            None => panic!("{}: it has no formula, and no kernel for {}", op.name(), self.cx.device()),
        }
    }

    /// Compute an op by its kernel or its loops: infer the shapes, get buffers for the outputs and for what the kernel
    /// saves, fill them, and record a node if an input needs a gradient. Gives the first output's id and the number of
    /// outputs.
    #[track_caller]
    fn run(&self, op: Box<dyn Op>, by: Way, ids: &[u32]) -> (u32, usize) {
        let r = &mut *self.record.borrow_mut();
        let x = In { values: &r.values, ids };
        let outs: Outs = match op.infer(x) {
            Ok(outs) => outs,
            Err(why) => panic!("{}: {why}", op.name()),
        };
        let dtype = x[0].dtype();
        let kernel = by.kernel(op.as_ref());
        let saved = kernel.map_or(Outs::default(), |kernel| kernel.saves(x));
        if let Some(name) = kernel.map(|kernel| kernel.name().unwrap_or(op.name()))
            && !r.ran.contains(&name)
        {
            r.ran.push(name);
        }
        let requires_grad = ids.iter().any(|&v| r.values[v as usize].requires_grad);
        let y0 = r.values.len();
        for list in [&outs, &saved] {
            for &(shape, own) in list.iter() {
                let tensor = self.cx.pool().get(own.unwrap_or(dtype), shape);
                r.values.push(Value { tensor, requires_grad, pooled: true });
            }
        }
        let (values, y) = r.values.split_at_mut(y0);
        let compute = |x: In, y: &mut [Value]| match kernel {
            Some(kernel) => kernel.forward(&self.cx, x, y),
            None => op.primitive().into_iter().for_each(|op| op.value(x, &mut y[0])),
        };
        let mut took = Duration::ZERO;
        match &mut r.profile {
            None if self.hollow => {}
            None => compute(In { values, ids }, y),
            Some(profile) => {
                let start = Instant::now();
                if !self.hollow {
                    compute(In { values, ids }, y);
                }
                took = start.elapsed();
                profile.count(by.name(op.as_ref()), took, y.iter().map(|y| y.len() * y.dtype().bytes()).sum());
            }
        }
        if let Some(change) = &mut r.change {
            r.values[y0..][..outs.len()].iter_mut().for_each(|y| change(&mut y.tensor));
        }
        if requires_grad {
            Self::record(r, Action::Op(op, by), ids, y0, outs.len() + saved.len());
            if r.profile.is_some() {
                r.times.push([took, Duration::ZERO]);
            }
        }
        (id(y0), outs.len())
    }

    fn record(r: &mut Record, action: Action, ids: &[u32], y0: usize, ny: usize) {
        let (x0, nx, scope) = (id(r.edges.len()), id(ids.len()), id(r.scopes.len()));
        let node = Node { action, x0, nx, y0: id(y0), ny: id(ny), scope };
        r.edges.extend_from_slice(ids);
        r.nodes.push(node);
    }

    #[track_caller]
    pub(super) fn reshape(&self, v: Var<'_>, shape: Shape) -> Var<'_> {
        let r = &mut *self.record.borrow_mut();
        let old = &r.values[v.id_on(self) as usize];
        let (requires_grad, pooled) = (old.requires_grad, old.pooled);
        let tensor = old.tensor.reshape(shape);
        let y0 = r.values.len();
        r.values.push(Value { tensor, requires_grad, pooled });
        if requires_grad {
            Self::record(r, Action::Reshape, &[v.id_on(self)], y0, 1);
            if r.profile.is_some() {
                r.times.push([Duration::ZERO; 2]);
            }
        }
        Var::new(self, id(y0))
    }

    /// Forget all values, nodes and gradients, and keep their memory for the next training step.
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
        drop(pool);
        self.cx.end_step();
    }

    /// Measure the time of every op from now on.
    pub fn start_profile(&self) {
        self.record.borrow_mut().profile = Some(Profile::default());
    }

    /// Stop measuring; what was measured since [`Tape::start_profile`].
    pub fn take_profile(&self) -> Profile {
        self.record.borrow_mut().profile.take().unwrap_or_default()
    }

    /// The names of the kernels that have computed ops. A kernel has the name of its op, or OP.KERNEL where the op has
    /// several.
    pub fn ran(&self) -> Vec<&'static str> {
        self.record.borrow().ran.clone()
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

    /// Let `change` change every result of an op from now on: to round it otherwise, so as to see what rounding does.
    /// As to gradients, see [`Tape::backward_with`].
    pub fn change_results(&self, change: impl FnMut(&mut Tensor) + Send + 'static) {
        self.record.borrow_mut().change = Some(Box::new(change));
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
}

/// The scope that was current when a node was recorded; `n` scopes had been named by then.
fn scope_name(scopes: &[Arc<str>], n: usize) -> String {
    n.checked_sub(1).and_then(|i| scopes.get(i)).map_or(String::new(), |s| s.to_string())
}
