//! Parameters: one flat buffer with a name for every window of it.

use crate::{
    autograd::{Gen, Tape, Var},
    error::{Error, Result, bytes},
    tensor::{Cx, DType, Shape, Tensor, available},
};
use std::ops::Index;

/// A handle on one parameter, given out at construction and used to find it among the [`Bound`] ones.
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
    /// Whether weight decay applies to it: to matrices, not to biases, norms or the parameters of a recurrence.
    pub decay: bool,
    /// Whether it stays f32 where the others are computed with in bf16.
    pub in_f32: bool,
}

/// Draws initial values under path names while a model is put together.
///
/// Every parameter has a random stream of its own, keyed by the seed and its name: what one layer draws does not
/// depend on what the others are.
pub struct Init {
    seed: u64,
    path: String,
    /// Standard deviation of every weight matrix; `None`: each layer's own rule.
    pub std: Option<f64>,
    /// The block whose parameters are being drawn, from 0.
    pub layer: usize,
    entries: Vec<Entry>,
    values: Vec<f64>,
    /// How many values there are, if they had all been drawn.
    count: usize,
    /// How many are drawn; if there are more, all are only counted.
    most: usize,
}

impl Init {
    /// Bytes of a value while it is drawn, and as the f32 that it then is.
    const BYTES: usize = size_of::<f64>() + size_of::<f32>();

    /// An empty model's initialiser.
    pub fn new(seed: u64, std: Option<f64>) -> Init {
        Init { seed, path: String::new(), std, layer: 0, entries: vec![], values: vec![], count: 0, most: usize::MAX }
    }

    /// The same, where it is not known whether there is memory for all values: see [`Init::complete`].
    pub fn cautious(seed: u64, std: Option<f64>) -> Init {
        Init { most: 1 << 23, ..Init::new(seed, std) }
    }

    /// One that draws no values and only counts them.
    pub fn counting(std: Option<f64>) -> Init {
        Init { most: 0, ..Init::new(0, std) }
    }

    /// The parameters that `build` would create, without their values: what a model of any size would take.
    pub fn entries_of(build: impl FnOnce(&mut Init)) -> Vec<Entry> {
        let mut init = Init::counting(None);
        build(&mut init);
        init.entries
    }

    /// Everything that `build` creates gets `name.` in front.
    pub fn scope<R>(&mut self, name: &str, build: impl FnOnce(&mut Init) -> R) -> R {
        let outer = self.path.len();
        self.path.push_str(name);
        self.path.push('.');
        let built = build(self);
        self.path.truncate(outer);
        built
    }

    fn push(&mut self, name: &str, shape: Shape, decay: bool, mut draw: impl FnMut(&mut Gen, usize) -> f64) -> P {
        let name = format!("{}{name}", self.path);
        // FNV-1a of the name, mixed into the seed.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let mut g = Gen::new(hash ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.entries.push(Entry { name, offset: self.count, shape, decay, in_f32: false });
        // One after another, as the product of all axes may be more than a number holds.
        let n = shape.dims().iter().fold(1, |n: usize, &axis| n.saturating_mul(axis));
        self.count = self.count.saturating_add(n);
        if self.count <= self.most {
            self.values.extend((0..n).map(|i| draw(&mut g, i)));
        }
        P(self.entries.len() - 1)
    }

    /// Values drawn by `draw(random source, index)`; not decayed.
    pub fn custom(&mut self, name: &str, shape: impl Into<Shape>, draw: impl FnMut(&mut Gen, usize) -> f64) -> P {
        self.push(name, shape.into(), false, draw)
    }

    /// One value throughout; not decayed.
    pub fn full(&mut self, name: &str, shape: impl Into<Shape>, value: f64) -> P {
        self.push(name, shape.into(), false, |_, _| value)
    }

    /// A weight matrix of normal numbers with this standard deviation.
    pub fn normal(&mut self, name: &str, shape: impl Into<Shape>, std: f64) -> P {
        self.push(name, shape.into(), true, |g, _| std * g.gauss())
    }

    /// A weight matrix of numbers uniform in ±bound, unless the model asks for one deviation throughout.
    pub fn uniform(&mut self, name: &str, shape: impl Into<Shape>, bound: f64) -> P {
        match self.std {
            Some(std) => self.normal(name, shape, std),
            None => self.uniform_always(name, shape, bound),
        }
    }

    /// A weight matrix of numbers uniform in ±bound, whatever the model asks for.
    pub fn uniform_always(&mut self, name: &str, shape: impl Into<Shape>, bound: f64) -> P {
        self.push(name, shape.into(), true, |g, _| g.uniform(-bound, bound))
    }

    /// A weight matrix [out, in] of normal numbers, of deviation 1/√in unless the model asks for another.
    pub fn linear(&mut self, name: &str, out: usize, inp: usize) -> P {
        let std = self.std.unwrap_or((inp.max(1) as f64).powf(-0.5));
        self.normal(name, [out, inp], std)
    }

    /// Have these stay f32 where the others are computed with in bf16: what a recurrence takes to the power of its length
    /// (LRU's λ from ν and θ, the A of Mamba and of gated DeltaNet) and the biases of what stands in an exponent (their
    /// Δ, mLSTM's gates), where 2^-9 of the bias may be much of its exponential. LRU's γ goes with its λ. All else
    /// scales, where 2^-9 stays 2^-9, or belongs to a sum that is stored in bf16 in any case, as sLSTM's gates.
    pub fn keep_in_f32<const N: usize>(&mut self, list: [P; N]) {
        list.into_iter().for_each(|p| self.entries[p.0].in_f32 = true);
    }

    /// Whether all values were drawn: those of a cautious one are only counted where they are many.
    ///
    /// # Errors
    /// When there is no memory for as many: how many they are, and what makes them less.
    pub fn complete(&self) -> Result<bool> {
        let all = self.count == self.values.len();
        if all || self.count.saturating_mul(Self::BYTES) <= available() { Ok(all) } else { Err(self.too_many()) }
    }

    /// One that draws all of what this one has counted.
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

    /// The finished places, in a buffer that has a size and no values: for a tape that computes nothing.
    ///
    /// # Errors
    /// As [`Init::complete`].
    pub fn finish_hollow(self, dtype: DType) -> Result<Params> {
        self.complete()?;
        Ok(Params { flat: Tensor::hollow([self.count], dtype.real()), in_bf16: None, entries: self.entries })
    }

    /// The finished buffer; in f32 for bf16, of which there is a copy later ([`Params::copy_in_bf16`]).
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
/// Where a model computes in bf16 they are the masters: what is trained, saved and loaded, all f32. A tape then gets
/// windows of a second flat buffer, their copy in bf16, but for the few that are kept in f32 ([`Entry::in_f32`]).
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

    /// The flat buffer, to write. No view of it may be alive: reset the tape first.
    pub fn flat_mut(&mut self) -> &mut Tensor {
        &mut self.flat
    }

    /// Move the flat buffer to where ops on `cx` find it.
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

    /// Bring the copy in bf16, if there is one, to where the flat buffer is now: one launch.
    pub fn refresh(&mut self) {
        if let Some(copy) = &mut self.in_bf16 {
            copy.assign(&self.flat);
        }
    }

    /// The type that most of the parameters have on a tape.
    pub fn dtype(&self) -> DType {
        self.in_bf16.as_ref().unwrap_or(&self.flat).dtype()
    }

    /// Every parameter as it is computed with.
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

    /// Put the parameters on a tape, to be differentiated with respect to.
    pub fn bind<'t>(&self, tape: &'t Tape) -> Bound<'t> {
        Bound(self.windows().map(|t| tape.leaf(&t)).collect())
    }

    /// Put the parameters on a tape as constants, for evaluation.
    pub fn bind_frozen<'t>(&self, tape: &'t Tape) -> Bound<'t> {
        Bound(self.windows().map(|t| tape.constant(&t)).collect())
    }

    /// After a backward pass, the gradient of every parameter as one flat buffer like [`Params::flat`].
    pub fn gather_grads(&self, tape: &Tape, bound: &Bound, into: &mut Tensor) {
        tape.collect_grads(&bound.0, into);
    }
}

/// Parameters on a tape; a [`P`] finds its own: `p[self.w]`.
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
