//! Values: contiguous, row-major tensors of at most five axes, whose element type and device are known at run time.

mod cores;
mod cuda;
mod cx;
mod element;
mod host;
mod pool;
mod products;
mod shape;
#[doc(hidden)]
pub mod simd;
mod transfer;

#[doc(hidden)]
pub use cores::Cores;
pub use cuda::{Cuda, CudaTemp};
pub use cx::Cx;
pub use element::{Element, Real};
#[doc(hidden)]
pub use host::Arena;
pub use host::Host;
#[doc(hidden)]
pub use pool::{Bin, Temp};
pub use pool::{Cpu, Pool};
pub use products::Products;
pub use shape::{MAX_RANK, Shape};

pub use crate::{available::available, cuda::Device, dtype::DType, mat::Mat};

use crate::cuda::Block;
use std::sync::Arc;

/// A reference-counted buffer. Only ops look inside, after matching on the device.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Buf {
    /// `f32` in host memory.
    F32(Arc<Host<f32>>),
    /// `f64` in host memory.
    F64(Arc<Host<f64>>),
    /// `i32` in host memory.
    I32(Arc<Host<i32>>),
    /// Device memory.
    Cuda(Arc<Block>, DType),
}

/// A shape and a window of a buffer. Cloning and reshaping share the buffer; writing needs it unshared.
#[derive(Clone, Debug)]
pub struct Tensor {
    shape: Shape,
    offset: usize,
    buf: Buf,
}

impl Buf {
    /// One without elements.
    fn hollow(dtype: DType) -> Buf {
        match dtype {
            // A tensor that is bf16 on a device is f32 here.
            DType::F32 | DType::BF16 => f32::wrap(Arc::new(Host::from(vec![]))),
            DType::F64 => f64::wrap(Arc::new(Host::from(vec![]))),
            DType::I32 => i32::wrap(Arc::new(Host::from(vec![]))),
        }
    }
}

/// Why a tensor is not written to, and what to do about it.
const SHARED: &str = "cannot write to a tensor whose buffer is shared: a tape or a clone still holds it; reset the tape first (tape.reset())";

impl Tensor {
    /// A tensor holding `values` in row-major order.
    ///
    /// # Panics
    /// When the number of values is not the size of the shape.
    #[track_caller]
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        assert_eq!(values.len(), shape.len(), "{} values do not fill shape {shape}", values.len());
        Tensor { shape, offset: 0, buf: T::wrap(Arc::new(Host::from(values))) }
    }

    /// A tensor that has a shape and no elements, for a tape that computes nothing.
    pub(crate) fn hollow(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        Tensor { shape: shape.into(), offset: 0, buf: Buf::hollow(dtype) }
    }

    /// A tensor of one value throughout; an integer tensor takes its integer part.
    ///
    /// # Panics
    /// When there is no memory for as many: [`OUT_OF_MEMORY`](crate::error::OUT_OF_MEMORY).
    #[track_caller]
    pub fn full(shape: impl Into<Shape>, dtype: DType, value: f64) -> Tensor {
        let shape = shape.into();
        pool::ask_for(shape.len().saturating_mul(dtype.bytes()));
        match dtype {
            DType::F32 => Tensor::from_vec(vec![value as f32; shape.len()], shape),
            DType::F64 => Tensor::from_vec(vec![value; shape.len()], shape),
            DType::I32 => Tensor::from_vec(vec![value as i32; shape.len()], shape),
            DType::BF16 => panic!("bf16 lives on CUDA devices only"),
        }
    }

    /// A tensor of zeros.
    ///
    /// # Panics
    /// As [`Tensor::full`].
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        Tensor::full(shape, dtype, 0.0)
    }

    /// Axis sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.is_empty()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self.buf {
            Buf::F32(_) => DType::F32,
            Buf::F64(_) => DType::F64,
            Buf::I32(_) => DType::I32,
            Buf::Cuda(_, dtype) => dtype,
        }
    }

    /// The elements in host memory. For CPU kernels, which know that they are there.
    ///
    /// # Panics
    /// When the element type is another.
    #[track_caller]
    pub fn host<T: Element>(&self) -> &[T] {
        match T::buffer(&self.buf) {
            Some(v) => &v[self.offset..self.offset + self.shape.len()],
            None => panic!("expected a tensor of {} in host memory, got {} {}", T::DTYPE, self.dtype(), self.place()),
        }
    }

    /// The elements in host memory, to write.
    ///
    /// # Panics
    /// When the element type is another, or the buffer is shared.
    #[track_caller]
    pub fn host_mut<T: Element>(&mut self) -> &mut [T] {
        let range = self.offset..self.offset + self.shape.len();
        let (dtype, place) = (self.dtype(), self.place());
        match T::buffer_mut(&mut self.buf) {
            Some(v) => match Arc::get_mut(v) {
                Some(v) => &mut v[range],
                None => panic!("{SHARED}"),
            },
            None => panic!("expected a tensor of {} in host memory, got {dtype} {place}", T::DTYPE),
        }
    }

    /// A copy of the elements as `f64`, wherever they are.
    pub fn to_f64(&self) -> Vec<f64> {
        if let Buf::Cuda(..) = self.buf {
            return self.to_host().to_f64();
        }
        match self.dtype() {
            DType::F32 => self.host::<f32>().iter().map(|&x| f64::from(x)).collect(),
            DType::F64 => self.host::<f64>().to_vec(),
            DType::I32 => self.host::<i32>().iter().map(|&x| f64::from(x)).collect(),
            DType::BF16 => unreachable!("bf16 is f32 on the host"),
        }
    }

    /// The only element of a scalar or one-element tensor, as `f64`.
    ///
    /// # Panics
    /// When there is not exactly one element.
    #[track_caller]
    pub fn item(&self) -> f64 {
        assert_eq!(self.len(), 1, "item() needs one element, got shape {}", self.shape);
        self.to_f64()[0]
    }

    /// A copy in host memory with another element type.
    pub fn cast(&self, dtype: DType) -> Tensor {
        let v = self.to_f64();
        match dtype {
            DType::F32 => Tensor::from_vec(v.iter().map(|&x| x as f32).collect(), self.shape),
            DType::F64 => Tensor::from_vec(v, self.shape),
            DType::I32 => Tensor::from_vec(v.iter().map(|&x| x as i32).collect(), self.shape),
            DType::BF16 => panic!("bf16 lives on CUDA devices only: see to_device_as"),
        }
    }

    /// The same elements under another shape of the same size; no copy.
    ///
    /// # Panics
    /// When the sizes differ.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        assert_eq!(
            shape.len(),
            self.len(),
            "cannot reshape {} to {shape}: {} against {} elements",
            self.shape,
            self.len(),
            shape.len()
        );
        Tensor { shape, offset: self.offset, buf: self.buf.clone() }
    }

    /// Elements `start..start + shape.len()` of the buffer as a tensor of their own; no copy.
    ///
    /// # Panics
    /// When the window reaches past the end.
    #[track_caller]
    pub fn window(&self, start: usize, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let (n, all) = (shape.len(), self.len());
        assert!(start <= all && n <= all - start, "a window of {n} elements from {start} on of {all}");
        Tensor { shape, offset: self.offset + start, buf: self.buf.clone() }
    }

    /// Whether every element is finite; integers always are.
    pub fn all_finite(&self) -> bool {
        match &self.buf {
            Buf::F32(_) => self.host::<f32>().iter().all(|x| x.is_finite()),
            Buf::F64(_) => self.host::<f64>().iter().all(|x| x.is_finite()),
            Buf::I32(_) | Buf::Cuda(_, DType::I32) => true,
            Buf::Cuda(block, _) => block.gpu().all_finite(self),
        }
    }

    /// Overwrite every element.
    pub fn fill(&mut self, value: f64) {
        match &self.buf {
            Buf::F32(_) => self.host_mut::<f32>().fill(value as f32),
            Buf::F64(_) => self.host_mut::<f64>().fill(value),
            Buf::I32(_) => self.host_mut::<i32>().fill(value as i32),
            Buf::Cuda(block, _) => {
                let gpu = block.gpu().clone();
                if self.dtype() == DType::I32 {
                    self.device_ptr_mut(); // which forgets what was there
                }
                gpu.fill(self, value);
            }
        }
    }
}
