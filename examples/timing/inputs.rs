//! Large random tensors, made quickly by repeating a block of random numbers.

use tapezoo::{
    autograd::{Gen, Tape, Var},
    tensor::{DType, Shape, Tensor},
};

/// Draws inputs for an op.
pub struct Inputs<'a> {
    pub tape: &'a Tape,
    pub dtype: DType,
    pub random: Gen,
    /// How many random numbers are drawn.
    pub block: usize,
}

impl Inputs<'_> {
    /// Elements from `f`, in device memory.
    pub fn draw(&mut self, shape: impl Into<Shape>, f: impl FnMut(&mut Gen) -> f64) -> Tensor {
        let shape = shape.into();
        let block = self.random.tensor([shape.len().min(self.block)], f).to_device_as(self.tape.cx(), self.dtype);
        let times = shape.len().div_ceil(self.block);
        if times <= 1 {
            return block.reshape(shape);
        }
        let block = self.tape.constant(&block);
        Var::concat(&vec![block; times], 0).value().window(0, shape)
    }

    /// The tensor that `draw` draws, f32 in place of bf16: for the inputs that [`tapezoo::ops::in_f32`] names.
    pub fn in_f32<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> T {
        let dtype = self.dtype;
        self.dtype = dtype.real();
        let drawn = draw(self);
        self.dtype = dtype;
        drawn
    }

    /// Standard normal numbers times `scale`.
    pub fn normal(&mut self, shape: impl Into<Shape>, scale: f64) -> Tensor {
        self.draw(shape, |g| scale * g.gauss())
    }

    /// Uniform numbers.
    pub fn range(&mut self, shape: impl Into<Shape>, lo: f64, hi: f64) -> Tensor {
        self.draw(shape, |g| g.uniform(lo, hi))
    }

    /// Zeros, such as a state to start from.
    pub fn zeros(&mut self, shape: impl Into<Shape>) -> Tensor {
        self.draw(shape, |_| 0.0)
    }
}
