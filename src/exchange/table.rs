//! The parts of a table of names.

use super::{Package, sizes::Sizes};
use crate::{
    models::{Eigenvalues, ModelConfig, Positions, Variant},
    tensor::Real,
};

/// A module of a configuration as Python makes it, given whether it has a tensor of a name.
pub type Module = fn(&ModelConfig, &dyn Fn(&str) -> bool) -> String;

/// Which of our parameters is which of a module's tensors, for a mixer that computes what the module does.
pub struct Table {
    /// The mixer.
    pub mixer: &'static str,
    /// The package of the module.
    pub package: Package,
    /// The module, with the options for which it computes what the mixer does. No shape tells some of them.
    pub module: Module,
    /// Whether the module turns queries and keys by their position.
    pub rope: bool,
    /// Whether the module can have negative eigenvalues.
    pub signed: bool,
    /// Whether the heads together are as wide as the model: D = H K.
    pub square: bool,
    /// Whether H K units are the same in any number of heads.
    pub any_heads: bool,
    /// Why the module cannot have these sizes.
    pub refuses: fn(&ModelConfig) -> Option<String>,
    /// All parameters of the mixer.
    pub rows: &'static [Row],
}

impl Table {
    /// The names and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.rows.iter().flat_map(|row| row.theirs).copied()
    }

    /// Whether the tensors tell what a letter is.
    pub fn has_size(&self, letter: char) -> bool {
        self.tensors().any(|(_, shape)| shape.contains(letter)) || (letter == 'D' && self.square)
    }

    /// The module as it is made for a file that we write, without the tensors that may be left out.
    pub fn typical_module(&self, config: &ModelConfig) -> String {
        let kept = || self.rows.iter().filter(|row| row.absent != Absent::Idle).flat_map(|row| row.theirs);
        let ours = |names: &str| either(names).next().unwrap_or_default().replace("{}", "0");
        (self.module)(config, &|name| kept().any(|(names, _)| ours(names) == name))
    }

    /// Why a model of this configuration is not what the module computes, or cannot be.
    pub fn cannot(&self, config: &ModelConfig) -> Option<String> {
        let layer = format!("the layer of {} that is {}", self.package, self.mixer);
        if config.variant == Variant::Published {
            return Some("variant = \"published\": expected a clean model; a published one has other parts".into());
        }
        if (config.positions == Positions::Rope) != self.rope {
            let what = if self.rope { "turns queries and keys by their positions" } else { "turns nothing" };
            return Some(format!("positions = {}: {layer} {what}", config.positions));
        }
        if config.eigenvalues == Eigenvalues::Signed && !self.signed {
            return Some(format!("eigenvalues = -1..1: {layer} has none below 0"));
        }
        let always = |row: &Row| row.when == When::Always && row.theirs.iter().any(|(_, shape)| shape.contains('W'));
        if config.conv == 0 && self.rows.iter().any(always) {
            return Some(format!("conv = 0: {layer} always has a convolution"));
        }
        let (inner, width) = (config.inner(), config.width);
        if self.square && inner != width {
            return Some(format!("heads times head_dim is {inner}: in {layer} it is the width, {width}"));
        }
        (self.refuses)(config).map(|what| format!("{what} in {layer}"))
    }
}

/// The names that a table gives a tensor.
pub fn either(names: &str) -> impl Iterator<Item = &str> {
    names.split('|')
}

/// The defaults of a table.
pub const TABLE: Table = Table {
    mixer: "",
    package: Package::Torch,
    module: |_, _| String::new(),
    rope: false,
    signed: false,
    square: false,
    any_heads: false,
    refuses: |_| None,
    rows: &[],
};

/// A parameter of ours, and the tensors that it is made of.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name in the mixer.
    pub ours: &'static str,
    /// Names and shapes of the module's tensors. `a|b` is either of two names, the first in files that we write; `{}`
    /// is the number of the layer.
    pub theirs: &'static [(&'static str, &'static str)],
    /// How the numbers are laid out.
    pub how: How,
    /// The layers that have it.
    pub when: When,
    /// The value that it has where a file lacks it.
    pub absent: Absent,
    /// Another parameter of ours that a file does not lack if it has this one.
    pub with: Option<&'static str>,
}

/// The layout of the module's numbers as against ours.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// In the same order; of several tensors one below the other.
    Below,
    /// Of several tensors [G, .., I] side by side in the second axis.
    Beside,
    /// Their axes, of this shape, in another order: our axis i is their axis `order[i]`.
    Axes(&'static str, &'static [usize]),
    /// Ours are larger by one.
    PlusOne,
}

/// The layers that have a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// All layers.
    Always,
    /// Layers with a convolution.
    Conv,
    /// Layers after the first.
    Later,
}

/// The value of a parameter whose tensors a file lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// The file is refused.
    Refused,
    /// Zeros. We write them.
    Zeros,
    /// A value without effect: zeros, or for a matrix the identity. We do not write it either.
    Idle,
}

/// A parameter that is there always.
pub const fn row(ours: &'static str, theirs: &'static [(&'static str, &'static str)]) -> Row {
    Row { ours, theirs, how: How::Below, when: When::Always, absent: Absent::Refused, with: None }
}

impl Row {
    pub const fn beside(self) -> Row {
        Row { how: How::Beside, ..self }
    }

    pub const fn axes(self, view: &'static str, order: &'static [usize]) -> Row {
        Row { how: How::Axes(view, order), ..self }
    }

    pub const fn plus_one(self) -> Row {
        Row { how: How::PlusOne, ..self }
    }

    pub const fn of_conv(self) -> Row {
        Row { when: When::Conv, ..self }
    }

    pub const fn of_later(self) -> Row {
        Row { when: When::Later, ..self }
    }

    pub const fn or_zeros(self) -> Row {
        Row { absent: Absent::Zeros, ..self }
    }

    pub const fn with(self, other: &'static str) -> Row {
        Row { with: Some(other), ..self }
    }

    pub const fn or_idle(self) -> Row {
        Row { absent: Absent::Idle, ..self }
    }

    /// Whether block `i` of a model with convolutions this wide has it.
    pub fn is_in(&self, i: usize, conv: Option<usize>) -> bool {
        match self.when {
            When::Always => true,
            When::Conv => conv != Some(0),
            When::Later => i > 0,
        }
    }

    /// Whether a file may lack its tensors. Only a square matrix does nothing.
    pub fn may_lack(&self, sizes: &Sizes) -> bool {
        let square = |shape: &str| sizes.shape(shape).is_none_or(|dims| dims.len() != 2 || dims[0] == dims[1]);
        match self.absent {
            Absent::Refused => false,
            Absent::Zeros => true,
            Absent::Idle => self.theirs.first().is_none_or(|(_, shape)| square(shape)),
        }
    }

    /// Its value, with these axes, where a file lacks it.
    pub fn without<T: Real>(&self, dims: &[usize]) -> Vec<T> {
        let identity = self.absent == Absent::Idle && dims.len() == 2;
        let n = dims.last().copied().unwrap_or(1);
        let value = |i: usize| if identity && i / n == i % n { 1.0 } else { 0.0 };
        (0..dims.iter().product()).map(|i| T::of(value(i))).collect()
    }

    /// The module's numbers in our order.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn ours_of<T: Real>(&self, theirs: &[Vec<T>], sizes: &Sizes, ours: &mut [T]) {
        match self.how {
            How::Below => ours.copy_from_slice(&theirs.concat()),
            How::PlusOne => ours.iter_mut().zip(&theirs[0]).for_each(|(to, x)| *to = T::of(x.to_f64() + 1.0)),
            How::Axes(view, order) => {
                ours.copy_from_slice(&permuted(&theirs[0], &sizes.shape(view).unwrap_or_default(), order));
            }
            How::Beside => {
                let mut to = 0;
                for g in 0..self.groups(sizes) {
                    for part in theirs {
                        let n = part.len() / self.groups(sizes);
                        ours[to..to + n].copy_from_slice(&part[g * n..(g + 1) * n]);
                        to += n;
                    }
                }
            }
        }
    }

    /// Our numbers in the module's order: one list for each of its tensors.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn theirs_of<T: Real>(&self, ours: &[T], sizes: &Sizes) -> Vec<Vec<T>> {
        let len = |shape: &str| sizes.shape(shape).unwrap_or_default().iter().product::<usize>();
        let mut rest = ours;
        let mut next = |n: usize| {
            let (first, others) = rest.split_at(n);
            rest = others;
            first.to_vec()
        };
        match self.how {
            How::Below => self.theirs.iter().map(|(_, shape)| next(len(shape))).collect(),
            How::PlusOne => vec![ours.iter().map(|x| T::of(x.to_f64() - 1.0)).collect()],
            How::Axes(view, order) => {
                let dims = sizes.shape(view).unwrap_or_default();
                let turned: Vec<usize> = order.iter().map(|&axis| dims[axis]).collect();
                let mut back = vec![0; order.len()];
                order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
                vec![permuted(ours, &turned, &back)]
            }
            How::Beside => {
                let groups = self.groups(sizes);
                let mut theirs = vec![vec![]; self.theirs.len()];
                for _ in 0..groups {
                    for (part, (_, shape)) in theirs.iter_mut().zip(self.theirs) {
                        part.extend(next(len(shape) / groups));
                    }
                }
                theirs
            }
        }
    }

    /// The number of groups G of tensors that lie side by side.
    fn groups(&self, sizes: &Sizes) -> usize {
        self.theirs.first().and_then(|(_, shape)| sizes.shape(shape)?.first().copied()).unwrap_or(1)
    }
}

/// Axis i of the result is axis `order[i]` of x, whose axes are `dims`.
fn permuted<T: Copy>(x: &[T], dims: &[usize], order: &[usize]) -> Vec<T> {
    let stride = |axis: usize| dims[axis + 1..].iter().product::<usize>();
    let axes: Vec<(usize, usize)> = order.iter().map(|&axis| (dims[axis], stride(axis))).collect();
    let at = |mut i: usize| {
        axes.iter().rev().fold(0, |at, &(n, stride)| {
            let step = i % n;
            i /= n;
            at + step * stride
        })
    };
    (0..x.len()).map(|i| x[at(i)]).collect()
}
