//! Scratch memory of a device.

use super::Cuda;
use crate::tensor::Tensor;
use std::ops::{Deref, DerefMut};

/// Scratch memory on loan from a pool; use it as a tensor.
pub struct Temp<'a> {
    cuda: &'a Cuda,
    tensor: Option<Tensor>,
}

impl<'a> Temp<'a> {
    pub(super) fn new(cuda: &'a Cuda, tensor: Tensor) -> Temp<'a> {
        Temp { cuda, tensor: Some(tensor) }
    }
}

impl Deref for Temp<'_> {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        self.tensor.as_ref().expect("there until dropped")
    }
}

impl DerefMut for Temp<'_> {
    fn deref_mut(&mut self) -> &mut Tensor {
        self.tensor.as_mut().expect("there until dropped")
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if let Some(t) = self.tensor.take() {
            self.cuda.pool().put(t);
        }
    }
}
