//! The buffers of a training step on a device, which stay where they are, so that the whole step can be recorded once
//! as a CUDA graph and then be launched in one call.
//!
//! A step copies its batch and the numbers of the update from pinned memory, computes the gradient, judges it, updates
//! the parameters if loss and gradient are finite, and copies back what the host wants to know. Nothing in it waits for
//! the host; the host waits once, at the end.

use super::optimizer::{Adam, Numbers, Window};
use crate::{
    args,
    autograd::Tape,
    cuda::{Gpu, Graph, Launch, Module, Pinned},
    tasks::Batch,
    tensor::{Cx, DType, Shape, Tensor},
};
use std::{str::FromStr, sync::Arc};

/// When a step is recorded as a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Graphs {
    /// On a device, once the same shapes have come three times in a row, for a model without running statistics and
    /// carried states. A step of a mixer that reads a value back cannot be recorded: it takes `Off`.
    #[default]
    Auto,
    /// As `Auto`, and an error for the other models.
    On,
    /// Never: every kernel is launched by itself.
    Off,
}

impl FromStr for Graphs {
    type Err = String;
    fn from_str(s: &str) -> Result<Graphs, String> {
        match s {
            "auto" => Ok(Graphs::Auto),
            "on" => Ok(Graphs::On),
            "off" => Ok(Graphs::Off),
            other => Err(format!("'{other}': expected auto, on or off")),
        }
    }
}

impl std::fmt::Display for Graphs {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Graphs::Auto => "auto",
            Graphs::On => "on",
            Graphs::Off => "off",
        })
    }
}

/// How many numbers an update has.
const NUMBERS: usize = size_of::<Numbers>() / size_of::<f64>();

/// The most blocks that sum a norm.
const BLOCKS: usize = 256;

static MODULE: Module = Module::new("train/optimizer.cu", &[include_str!("optimizer.cu")]);

/// Integers that are sent anew with each step.
struct Sent {
    pinned: Pinned<i32>,
    there: Tensor,
    values: Arc<[i32]>,
    /// The least and the largest integer that a step was run or recorded with: the ops have checked their range.
    checked: Option<[i32; 2]>,
}

impl Sent {
    fn new(cx: &Cx, gpu: &Arc<Gpu>, shape: Shape) -> Sent {
        let there = Tensor::zeros(shape, DType::I32).to_device(cx);
        Sent { pinned: Pinned::new(gpu, shape.len()), there, values: Arc::default(), checked: None }
    }

    /// Make `x` ready to be sent, and say whether there was room for its shape.
    fn write(at: &mut Option<Sent>, x: Option<&Tensor>, cx: &Cx, gpu: &Arc<Gpu>) -> bool {
        let same = at.as_ref().map(|own| own.there.shape()) == x.map(Tensor::shape);
        if !same {
            *at = x.map(|x| Sent::new(cx, gpu, x.shape()));
        }
        if let (Some(own), Some(x)) = (at, x) {
            own.pinned.write(x.host());
            own.values = x.host::<i32>().into();
            own.there.sends(own.values.clone());
        }
        same
    }

    fn upload(&mut self) {
        self.pinned.upload(self.there.device_ptr_mut(), self.pinned.len());
        self.there.sends(self.values.clone());
    }

    /// The least and the largest of the integers to send and of those that were checked.
    fn range(&self) -> Option<[i32; 2]> {
        let all = self.values.iter().copied().chain(self.checked.into_iter().flatten());
        all.fold(None, |range, i| Some(range.map_or([i, i], |[low, high]: [i32; 2]| [low.min(i), high.max(i)])))
    }
}

/// The batch on the device.
pub struct Feed<'a> {
    /// Tokens [B, T].
    pub tokens: &'a Tensor,
    /// The positions that have a target, if they are fewer than half.
    pub rows: Option<&'a Tensor>,
    /// The targets of these positions, or of all.
    pub targets: &'a Tensor,
}

/// The buffers of a step on a device (see the [module](self)).
pub struct OnDevice {
    gpu: Arc<Gpu>,
    tokens: Option<Sent>,
    rows: Option<Sent>,
    targets: Option<Sent>,
    /// A bit for each parameter: whether it decays.
    decays: Tensor,
    /// The squared norm of each block's share of the gradient, plain and scaled.
    sums: Tensor,
    numbers: Pinned<f64>,
    /// [`Numbers`] as the kernels read them.
    numbers_there: Tensor,
    /// Whether noise is added to the gradient.
    noisy: bool,
    told: Pinned<f64>,
    /// Loss, norm of the gradient, the factor of clipping, and whether there is an update.
    told_there: Tensor,
    /// How many steps in a row had these shapes, this one not counted.
    alike: usize,
    graph: Option<(Graph, usize)>,
}

impl OnDevice {
    /// For `n` parameters on `cx`, of which those in these windows decay; none on the CPU.
    pub fn new(cx: &Cx, n: usize, windows: &[Window]) -> Option<OnDevice> {
        let gpu = cx.gpu()?;
        let mut bits = vec![0i32; n.div_ceil(32)];
        for i in windows.iter().filter(|w| w.1).flat_map(|w| w.0.clone()) {
            bits[i / 32] |= 1 << (i % 32);
        }
        let len = bits.len();
        let room = |n: usize| Tensor::zeros([n], DType::F64).to_device(cx);
        Some(OnDevice {
            tokens: None,
            rows: None,
            targets: None,
            decays: Tensor::from_vec(bits, [len]).to_device(cx),
            sums: room(2 * BLOCKS),
            numbers: Pinned::new(&gpu, NUMBERS),
            numbers_there: room(NUMBERS),
            noisy: false,
            told: Pinned::new(&gpu, 4),
            told_there: room(4),
            alike: 0,
            graph: None,
            gpu,
        })
    }

    /// Have a batch and the numbers of its update ready to be sent.
    pub fn give(&mut self, cx: &Cx, batch: &Batch, numbers: &Numbers) {
        let gpu = self.gpu.clone();
        let (rows, targets) = batch.labelled().unzip();
        let same = [
            Sent::write(&mut self.tokens, Some(&batch.tokens), cx, &gpu),
            Sent::write(&mut self.rows, rows.as_ref(), cx, &gpu),
            Sent::write(&mut self.targets, Some(targets.as_ref().unwrap_or(&batch.targets)), cx, &gpu),
        ];
        if same == [true; 3] {
            self.alike += 1;
        } else {
            (self.alike, self.graph) = (0, None);
        }
        self.numbers.write(numbers);
        self.noisy = numbers[8] > 0.0;
    }

    /// Do the step that `work` asks for: by a graph where `graphs` says so and `work` can be recorded, else directly.
    pub fn run(&mut self, graphs: bool, tape: &mut Tape, work: impl FnOnce(&mut OnDevice, &mut Tape)) {
        let gpu = self.gpu.clone();
        // A pool that gave memory back to the driver may have given back some that the graph uses.
        let generation = tape.cx().pool().generation();
        let mut graph = self.graph.take().filter(|graph| graph.1 == generation && graphs);
        // The ops must check an index beyond the range that they have checked: a replay checks none.
        if graph.is_some() && self.all_sent().any(|sent| sent.range() != sent.checked) {
            work(self, tape);
            self.all_sent().for_each(|sent| sent.checked = sent.range());
            self.graph = graph;
            return;
        }
        // The first step compiles kernels and allocates; the second has all that a third one needs.
        if graph.is_none() && graphs && self.alike >= 2 {
            graph = Some((gpu.capture(|| work(self, tape)), generation));
            self.all_sent().for_each(|sent| sent.checked = sent.range());
        } else if graph.is_none() {
            work(self, tape);
            self.all_sent().for_each(|sent| sent.checked = sent.range());
            return;
        }
        if let Some((graph, _)) = &mut graph {
            gpu.replay(graph);
        }
        self.graph = graph;
    }

    /// Whether steps are replayed.
    pub fn recorded(&self) -> bool {
        self.graph.is_some()
    }

    fn all_sent(&mut self) -> impl Iterator<Item = &mut Sent> {
        [&mut self.tokens, &mut self.rows, &mut self.targets].into_iter().flatten()
    }

    /// Send the batch and the numbers that [`OnDevice::give`] was given.
    pub fn upload(&mut self) {
        self.all_sent().for_each(Sent::upload);
        self.numbers.upload(self.numbers_there.device_ptr_mut(), NUMBERS);
    }

    /// The batch.
    ///
    /// # Panics
    /// Before the first [`OnDevice::give`].
    pub fn feed(&self) -> Feed<'_> {
        Feed {
            tokens: &self.tokens.as_ref().expect("a batch was given").there,
            rows: self.rows.as_ref().map(|rows| &rows.there),
            targets: &self.targets.as_ref().expect("a batch was given").there,
        }
    }

    /// Decide on the device whether loss and gradient allow an update, and by what factor clipping scales the gradient.
    pub fn judge(&mut self, grads: &Tensor, loss: &Tensor) {
        let (n, dtype, gpu) = (grads.len(), grads.dtype(), self.gpu.clone());
        let blocks = n.div_ceil(4096).min(BLOCKS);
        gpu.launch(&MODULE, "sum_of_squares", dtype, Launch::blocks(blocks, 256), args![grads, n, &mut self.sums]);
        let args = args![&self.sums, blocks, loss, &self.numbers_there, &mut self.told_there];
        gpu.launch(&MODULE, "judge", dtype, Launch::blocks(1, 32), args);
    }

    /// The update, if there is to be one.
    pub fn update(&mut self, adam: &mut Adam, params: &mut Tensor, grads: &Tensor) {
        let (n, dtype, gpu) = (grads.len(), grads.dtype(), self.gpu.clone());
        let [m, v] = adam.moments_mut();
        let args = args![params, grads, m, v, &self.decays, n, &self.numbers_there, &self.told_there];
        gpu.launch(&MODULE, if self.noisy { "adam_with_noise" } else { "adam" }, dtype, gpu.elements(n), args);
    }

    /// Copy the loss and the norm to the host, for [`OnDevice::told`].
    pub fn download(&mut self) {
        self.told.download(self.told_there.device_ptr());
    }

    /// Wait for the step, and give its loss and the norm of its gradient.
    pub fn told(&self) -> [f64; 2] {
        self.gpu.synchronize();
        let told = self.told.read();
        [told[0], told[1]]
    }
}
