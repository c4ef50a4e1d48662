//! Parameters: one flat buffer, in which each parameter is a window with a name.

use crate::{
    autograd::{Gen, Tape, Var},
    error::{Error, Result, bytes},
    rng::fnv1a,
    tensor::{Cx, DType, Shape, Tensor, available},
};
use std::ops::Index;

/// A handle to one parameter, returned when it is declared; [`Bound`] is indexed by it.
#[derive(Clone, Copy, Debug)]
pub struct P(usize);

/// One parameter's place in the flat buffer.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path name: "blocks.0.mixer.w_ih".
    pub name: String,
    /// Index of its first element.
    pub offset: usize,
    /// Axis sizes.
    pub shape: Shape,
    /// Whether weight decay applies to it. It applies to matrices, not to biases, norms or the parameters of a
    /// recurrence.
    pub decay: bool,
    /// Whether it stays f32 in a model that computes in bf16.
    pub in_f32: bool,
}

/// Draws the initial values of parameters, by path name, while a model is built.
///
/// Every parameter has a random stream of its own, keyed by the seed and its name: the values of one layer do not
/// depend on the other layers.
///
/// # Panics
/// Its methods panic for a shape of more than [`MAX_RANK`](crate::tensor::MAX_RANK) axes.
pub struct Init {
    seed: u64,
    path: String,
    /// Standard deviation of every weight matrix; `None`: each layer's own rule.
    pub std: Option<f64>,
    /// The block whose parameters are being drawn, from 0.
    pub layer: usize,
    entries: Vec<Entry>,
    values: Vec<f64>,
    /// The number of values declared, drawn or not.
    count: usize,
    /// The most values to draw; further values are only counted.
    most: usize,
    /// The parameters that several blocks share, by name.
    shared: Vec<(&'static str, P)>,
}

impl Init {
    /// Bytes per value: the f64 that is drawn, and the f32 that is kept.
    const BYTES: usize = size_of::<f64>() + size_of::<f32>();

    /// An initialiser of a model without parameters so far.
    pub fn new(seed: u64, std: Option<f64>) -> Init {
        Init {
            seed,
            path: String::new(),
            std,
            layer: 0,
            entries: vec![],
            values: vec![],
            count: 0,
            most: usize::MAX,
            shared: vec![],
        }
    }

    /// The same for a model that may not fit in memory: it draws the first values, and only counts when there are many.
    /// See [`Init::complete`].
    pub fn cautious(seed: u64, std: Option<f64>) -> Init {
        Init { most: 1 << 23, ..Init::new(seed, std) }
    }

    /// An initialiser that only counts values.
    pub fn counting(std: Option<f64>) -> Init {
        Init { most: 0, ..Init::new(0, std) }
    }

    /// The parameters that `build` declares, without values, for a model of any size.
    pub fn entries_of(build: impl FnOnce(&mut Init)) -> Vec<Entry> {
        let mut init = Init::counting(None);
        build(&mut init);
        init.entries
    }

    /// Put `name.` in front of the names of all parameters that `build` declares.
    pub fn scope<R>(&mut self, name: &str, build: impl FnOnce(&mut Init) -> R) -> R {
        let outer = self.path.len();
        self.path.push_str(name);
        self.path.push('.');
        let built = build(self);
        self.path.truncate(outer);
        built
    }

    /// A parameter that all blocks share: the first to ask declares it, under its own path.
    pub fn shared(&mut self, name: &'static str, declare: impl FnOnce(&mut Init, &str) -> P) -> P {
        if let Some(found) = self.shared.iter().find(|p| p.0 == name) {
            return found.1;
        }
        let p = declare(self, name);
        self.shared.push((name, p));
        p
    }

    /// The depth of the block at hand, l, among so many: l / (layers − 1), from 0 to 1, and 1 − l / layers, from 1 down to
    /// 1 / layers.
    pub fn depth(&self, layers: usize) -> [f64; 2] {
        let (block, layers) = (self.layer as f64, layers.max(self.layer + 1) as f64);
        [block / (layers - 1.0).max(1.0), 1.0 - block / layers]
    }

    fn push(&mut self, name: &str, shape: Shape, decay: bool, mut draw: impl FnMut(&mut Gen, usize) -> f64) -> P {
        let name = format!("{}{name}", self.path);
        let mut g = Gen::new(fnv1a(name.as_bytes()) ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.entries.push(Entry { name, offset: self.count, shape, decay, in_f32: false });
        // The product of the axes may overflow.
        let n = shape.dims().iter().fold(1, |n: usize, &axis| n.saturating_mul(axis));
        self.count = self.count.saturating_add(n);
        if self.count <= self.most {
            self.values.extend((0..n).map(|i| draw(&mut g, i)));
        }
        P(self.entries.len() - 1)
    }

    /// Elements from `draw(generator, index)`; no weight decay.
    #[track_caller]
    pub fn custom(&mut self, name: &str, shape: impl Into<Shape>, draw: impl FnMut(&mut Gen, usize) -> f64) -> P {
        self.push(name, shape.into(), false, draw)
    }

    /// The same value in all elements; no weight decay.
    #[track_caller]
    pub fn full(&mut self, name: &str, shape: impl Into<Shape>, value: f64) -> P {
        self.push(name, shape.into(), false, |_, _| value)
    }

    /// A weight matrix with normal elements of this standard deviation.
    #[track_caller]
    pub fn normal(&mut self, name: &str, shape: impl Into<Shape>, std: f64) -> P {
        self.push(name, shape.into(), true, |g, _| std * g.gauss())
    }

    /// A weight matrix with elements uniform in ±bound; normal if the model sets one standard deviation for all
    /// weights.
    #[track_caller]
    pub fn uniform(&mut self, name: &str, shape: impl Into<Shape>, bound: f64) -> P {
        match self.std {
            Some(std) => self.normal(name, shape, std),
            None => self.uniform_always(name, shape, bound),
        }
    }

    /// A weight matrix with elements uniform in ±bound, whatever the model sets.
    #[track_caller]
    pub fn uniform_always(&mut self, name: &str, shape: impl Into<Shape>, bound: f64) -> P {
        self.push(name, shape.into(), true, |g, _| g.uniform(-bound, bound))
    }

    /// A weight matrix [out, in] with normal elements, of standard deviation 1/√in unless the model sets another.
    pub fn linear(&mut self, name: &str, out: usize, inp: usize) -> P {
        let std = self.std.unwrap_or((inp.max(1) as f64).powf(-0.5));
        self.normal(name, [out, inp], std)
    }

    /// A weight matrix [out, in] as torch's `nn.Linear` draws it, uniform in ±1/√in, whatever the model sets.
    #[track_caller]
    pub fn torch_linear(&mut self, name: &str, out: usize, inp: usize) -> P {
        self.uniform_always(name, [out, inp], (inp as f64).powf(-0.5))
    }

    /// The same as [`Init::custom`], for a parameter that stays f32 in a model that computes in bf16, which rounds by up
    /// to 2⁻⁹. Two kinds of parameters amplify this error. A recurrence raises its decay to the power of the length:
    /// LRU's λ from ν and θ (and γ, which belongs to λ), the A of Mamba and of gated DeltaNet. A bias within an
    /// exponential changes it by 2⁻⁹ times the bias: the bias of Δ, and of mLSTM's gates. Other parameters scale, which
    /// keeps the relative error, or are added to a pre-activation that is stored in bf16 anyway, as in sLSTM.
    #[track_caller]
    pub fn in_f32(&mut self, name: &str, shape: impl Into<Shape>, draw: impl FnMut(&mut Gen, usize) -> f64) -> P {
        let p = self.custom(name, shape, draw);
        self.entries[p.0].in_f32 = true;
        p
    }

    /// Whether all values were drawn. [`Init::cautious`] only counts them when there are many.
    ///
    /// # Errors
    /// When they do not fit in memory. The error says how many there are, and which settings lower their number.
    pub fn complete(&self) -> Result<bool> {
        let all = self.count == self.values.len();
        if all || self.count.saturating_mul(Self::BYTES) <= available() { Ok(all) } else { Err(self.too_many()) }
    }

    /// A new initialiser that draws all the values which this one has counted.
    ///
    /// # Errors
    /// As [`Init::complete`].
    pub fn afresh(&self) -> Result<Init> {
        let mut init = Init::new(self.seed, self.std);
        init.values.try_reserve_exact(self.count).map_err(|_| self.too_many())?;
        Ok(init)
    }

    fn too_many(&self) -> Error {
        let [asked, there] = [self.count.saturating_mul(Self::BYTES), available()].map(bytes);
        Error::config(format!(
            "{} parameters ask for {asked}, and {there} are available; lower --width, --layers, --heads, --head-dim, --mlp, \
             --state or --expand",
            self.count
        ))
    }

    /// The parameters in a buffer with a size but no values, for a tape that computes nothing.
    ///
    /// # Errors
    /// As [`Init::complete`].
    pub fn finish_hollow(self, dtype: DType) -> Result<Params> {
        self.complete()?;
        Ok(Params { flat: Tensor::hollow([self.count], dtype.real()), in_bf16: None, entries: self.entries })
    }

    /// The parameters and their values; f32 if `dtype` is bf16, since [`Params::copy_in_bf16`] makes the bf16 copy.
    pub fn finish(self, dtype: DType) -> Params {
        let n = self.values.len();
        let flat = match dtype.real() {
            DType::F64 => Tensor::from_vec(self.values, [n]),
            real => {
                let mut flat = Tensor::zeros([n], real);
                flat.host_mut::<f32>().iter_mut().zip(self.values).for_each(|(to, x)| *to = x as f32);
                flat
            }
        };
        Params { flat, in_bf16: None, entries: self.entries }
    }
}

/// All parameters of a model in one flat buffer.
///
/// In a model that computes in bf16 these are the f32 master weights, which are trained, saved and loaded. A tape then
/// gets windows of their bf16 copy, except for the few parameters that stay f32 ([`Entry::in_f32`]).
#[derive(Clone, Debug)]
pub struct Params {
    flat: Tensor,
    in_bf16: Option<Tensor>,
    entries: Vec<Entry>,
}

impl Params {
    /// The number of scalars.
    pub fn len(&self) -> usize {
        self.flat.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.flat.is_empty()
    }

    /// Names and places, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The flat buffer, shape [`Params::len`].
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The flat buffer, mutable. No view of it may be alive: reset the tape first.
    pub fn flat_mut(&mut self) -> &mut Tensor {
        &mut self.flat
    }

    /// Other values for all parameters, where the old ones are. A tape that has the old ones keeps them.
    pub(crate) fn replace(&mut self, flat: Tensor) {
        match self.flat.gpu() {
            None => self.flat = flat,
            Some(_) => {
                self.flat.assign(&flat);
                self.refresh();
            }
        }
    }

    /// Move the flat buffer to the device of `cx`.
    pub fn to_device(&mut self, cx: &Cx) {
        self.flat = self.flat.to_device(cx);
    }

    /// Move the flat buffer to host memory.
    pub fn to_host(&mut self) {
        (self.flat, self.in_bf16) = (self.flat.to_host(), None);
    }

    /// Move the flat buffer to a device, and have tapes compute with a copy in bf16.
    ///
    /// # Panics
    /// On the CPU.
    pub fn copy_in_bf16(&mut self, cx: &Cx) {
        self.to_device(cx);
        self.in_bf16 = Some(cx.pool().get(DType::BF16, self.flat.shape()));
        self.refresh();
    }

    /// Update the bf16 copy, if there is one, from the flat buffer: one launch.
    pub fn refresh(&mut self) {
        if let Some(copy) = &mut self.in_bf16 {
            copy.assign(&self.flat);
        }
    }

    /// The type that most of the parameters have on a tape.
    pub fn dtype(&self) -> DType {
        self.in_bf16.as_ref().unwrap_or(&self.flat).dtype()
    }

    /// Every parameter, in the element type that it has on a tape.
    fn windows(&self) -> impl Iterator<Item = Tensor> {
        self.entries.iter().map(|e| {
            let from = self.in_bf16.as_ref().filter(|_| !e.in_f32).unwrap_or(&self.flat);
            from.window(e.offset, e.shape)
        })
    }

    /// Every parameter's name and value, sharing the flat buffer.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Tensor)> {
        self.entries.iter().map(|e| (e.name.as_str(), self.flat.window(e.offset, e.shape)))
    }

    /// Put the parameters on a tape as leaves, for their gradients.
    pub fn bind<'t>(&self, tape: &'t Tape) -> Bound<'t> {
        Bound(self.windows().map(|t| tape.leaf(&t)).collect())
    }

    /// Put the parameters on a tape as constants, for evaluation.
    pub fn bind_frozen<'t>(&self, tape: &'t Tape) -> Bound<'t> {
        Bound(self.windows().map(|t| tape.constant(&t)).collect())
    }

    /// The value of a loss and its gradient, flat like [`Params::flat`]: one forward and one backward pass, after which
    /// the tape is empty again. `loss` gets the tape and the parameters on it.
    ///
    /// # Panics
    /// When the loss has more than one element.
    #[track_caller]
    pub fn gradient(
        &self,
        tape: &mut Tape,
        loss: impl for<'t> FnOnce(&'t Tape, &Bound<'t>) -> Var<'t>,
    ) -> (f64, Tensor) {
        let mut grads = Tensor::zeros(self.flat.shape(), self.flat.dtype()).to_device(tape.cx());
        let bound = self.bind(tape);
        let value = loss(tape, &bound);
        tape.backward(value);
        self.gather_grads(tape, &bound, &mut grads);
        let value = value.value().item();
        tape.reset();
        (value, grads)
    }

    /// Refuse parameters on a tape that are another model's.
    #[track_caller]
    pub(crate) fn expect(&self, bound: &Bound) {
        let (own, given) = (self.entries.len(), bound.0.len());
        assert!(own == given, "{given} parameters, and the model has {own}: these are another model's");
        let differs = self.entries.iter().zip(&bound.0).find(|(e, v)| e.shape != v.shape());
        if let Some((e, v)) = differs {
            panic!(
                "parameter '{}' of shape {}, and the model's is {}: it is another model's",
                e.name,
                v.shape(),
                e.shape
            );
        }
    }

    /// After a backward pass, the gradient of every parameter as one flat buffer like [`Params::flat`].
    pub fn gather_grads(&self, tape: &Tape, bound: &Bound, into: &mut Tensor) {
        tape.collect_grads(&bound.0, into);
    }
}

/// Parameters on a tape, indexed by [`P`]: `p[self.w]`.
pub struct Bound<'t>(Vec<Var<'t>>);

impl<'t> Bound<'t> {
    /// Parameters given one by one, in the order of [`Params::entries`].
    pub fn new(vars: Vec<Var<'t>>) -> Bound<'t> {
        Bound(vars)
    }

    /// The parameters in order.
    pub fn vars(&self) -> &[Var<'t>] {
        &self.0
    }
}

impl<'t> Index<P> for Bound<'t> {
    type Output = Var<'t>;
    fn index(&self, p: P) -> &Var<'t> {
        &self.0[p.0]
    }
}
