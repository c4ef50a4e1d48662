//! Tensors between host and device memory.

use super::{Buf, Cx, DType, Element, Shape, Tensor};
use crate::cuda::Gpu;
use std::{borrow::Cow, sync::Arc};

impl Tensor {
    /// Where the elements are, for messages.
    pub(super) fn place(&self) -> &'static str {
        if let Buf::Cuda(..) = self.buf { "in device memory" } else { "in host memory" }
    }

    /// The address of the first element in device memory, to read.
    ///
    /// # Panics
    /// When the elements are in host memory.
    #[track_caller]
    pub(crate) fn device_ptr(&self) -> u64 {
        match &self.buf {
            Buf::Cuda(block, dtype) => block.ptr() + (self.offset * dtype.bytes()) as u64,
            _ => panic!("expected a tensor in device memory, got {} {} in host memory", self.dtype(), self.shape),
        }
    }

    /// The same, to write.
    ///
    /// # Panics
    /// As [`Tensor::device_ptr`], and when the buffer is shared.
    #[track_caller]
    pub(crate) fn device_ptr_mut(&mut self) -> u64 {
        if let Buf::Cuda(block, _) = &mut self.buf {
            match Arc::get_mut(block) {
                Some(block) => block.sent = None,
                None => panic!("{}", super::SHARED),
            }
        }
        self.device_ptr()
    }

    /// Integers: as they are in host memory, as they were sent to a device, or, where it was the device that wrote
    /// them, a copy that is waited for. None while the device's work is recorded, which nothing can wait for.
    pub(crate) fn integers(&self) -> Option<Cow<'_, [i32]>> {
        let Buf::Cuda(block, _) = &self.buf else { return Some(self.host().into()) };
        match block.sent.as_ref().and_then(|sent| sent.get(self.offset..self.offset + self.len())) {
            Some(sent) => Some(sent.into()),
            None if block.gpu().captures() => None,
            None => Some(self.to_host().host::<i32>().to_vec().into()),
        }
    }

    /// Say which integers are sent to this tensor's memory, all of it.
    pub(crate) fn sends(&mut self, sent: Arc<[i32]>) {
        if let (Buf::Cuda(block, _), 0) = (&mut self.buf, self.offset)
            && let Some(block) = Arc::get_mut(block)
        {
            block.sent = Some(sent);
        }
    }

    /// The elements in host memory as bytes, in the order that files of tensors have them in.
    ///
    /// # Panics
    /// When the elements are in device memory.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self.dtype() {
            DType::F32 => bytemuck::cast_slice(self.host::<f32>()),
            DType::F64 => bytemuck::cast_slice(self.host::<f64>()),
            DType::I32 => bytemuck::cast_slice(self.host::<i32>()),
            DType::BF16 => unreachable!("bf16 is f32 on the host"),
        }
    }

    /// A tensor in host memory of the elements that these bytes are.
    ///
    /// # Panics
    /// When these are not as many as the shape has, or bf16.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: impl Into<Shape>) -> Tensor {
        fn read<T: Element>(bytes: &[u8], shape: Shape) -> Tensor {
            let mut all = vec![T::zeroed(); shape.len()];
            bytemuck::cast_slice_mut(&mut all).copy_from_slice(bytes);
            Tensor::from_vec(all, shape)
        }
        match dtype {
            DType::F32 => read::<f32>(bytes, shape.into()),
            DType::F64 => read::<f64>(bytes, shape.into()),
            DType::I32 => read::<i32>(bytes, shape.into()),
            DType::BF16 => panic!("bf16 lives on CUDA devices only"),
        }
    }

    /// Whether ops on `cx` can use this tensor as it is.
    pub fn is_on(&self, cx: &Cx) -> bool {
        match (&self.buf, cx) {
            (Buf::Cuda(block, _), Cx::Cuda(cuda)) => Arc::ptr_eq(block.gpu(), cuda.gpu()),
            (Buf::Cuda(..), Cx::Cpu(_)) | (_, Cx::Cuda(_)) => false,
            (_, Cx::Cpu(_)) => true,
        }
    }

    /// The same elements where ops on `cx` can use them: in a buffer from its pool, or this one if it is there already.
    ///
    /// # Panics
    /// When the device has no memory for it, or fails.
    #[track_caller]
    pub fn to_device(&self, cx: &Cx) -> Tensor {
        match cx {
            _ if self.is_on(cx) => self.clone(),
            Cx::Cpu(_) => self.to_host(),
            Cx::Cuda(cuda) => {
                let host = self.to_host();
                let mut t = cuda.pool().get(host.dtype(), host.shape);
                t.assign(&host);
                t
            }
        }
    }

    /// The same with another element type, bf16 included.
    ///
    /// # Panics
    /// As [`Tensor::to_device`], and for bf16 on the CPU.
    #[track_caller]
    pub fn to_device_as(&self, cx: &Cx, dtype: DType) -> Tensor {
        match cx {
            Cx::Cuda(cuda) if dtype == DType::BF16 => {
                let t = cuda.pool().get(dtype, self.shape);
                let bits: Vec<u16> = self.to_f64().iter().map(|&x| to_bf16(x as f32)).collect();
                cuda.gpu().upload(t.device_ptr(), &bits);
                t
            }
            _ => self.cast(dtype).to_device(cx),
        }
    }

    /// A copy in host memory (shared if it is there already); bf16 becomes f32.
    ///
    /// # Panics
    /// When the device fails.
    #[track_caller]
    pub fn to_host(&self) -> Tensor {
        let Buf::Cuda(block, dtype) = &self.buf else { return self.clone() };
        let (gpu, ptr, n) = (block.gpu(), self.device_ptr(), self.len());
        match dtype {
            DType::F32 => Tensor::from_vec(gpu.download::<f32>(ptr, n), self.shape),
            DType::F64 => Tensor::from_vec(gpu.download::<f64>(ptr, n), self.shape),
            DType::I32 => Tensor::from_vec(gpu.download::<i32>(ptr, n), self.shape),
            DType::BF16 => {
                let bits = gpu.download::<u16>(ptr, n);
                Tensor::from_vec(bits.iter().map(|&b| f32::from_bits(u32::from(b) << 16)).collect(), self.shape)
            }
        }
    }

    /// Overwrite every element with those of `from`, wherever either lives; on a device also with those of another
    /// type.
    ///
    /// # Panics
    /// When sizes or, elsewhere, element types differ, or this buffer is shared.
    #[track_caller]
    pub fn assign(&mut self, from: &Tensor) {
        if let (Some(gpu), Some(other)) = (self.gpu().cloned(), from.gpu())
            && Arc::ptr_eq(&gpu, other)
            && self.dtype() != from.dtype()
        {
            return gpu.convert(from, self, false);
        }
        assert_eq!((self.len(), self.dtype()), (from.len(), from.dtype()), "copying what does not fit");
        let bytes = self.len() * self.dtype().bytes();
        match (&self.buf, &from.buf) {
            (Buf::Cuda(to, _), Buf::Cuda(block, _)) if Arc::ptr_eq(to.gpu(), block.gpu()) => {
                let gpu = to.gpu().clone();
                gpu.copy(self.device_ptr_mut(), from.device_ptr(), bytes);
            }
            (_, Buf::Cuda(..)) => self.assign(&from.to_host()),
            (Buf::Cuda(to, _), host) => {
                let gpu = to.gpu().clone();
                let ptr = self.device_ptr_mut();
                match host {
                    Buf::F32(_) => gpu.upload(ptr, from.host::<f32>()),
                    Buf::F64(_) => gpu.upload(ptr, from.host::<f64>()),
                    Buf::I32(_) => {
                        gpu.upload(ptr, from.host::<i32>());
                        self.sends(from.host::<i32>().into());
                    }
                    Buf::Cuda(..) => unreachable!("matched above"),
                }
            }
            (Buf::F32(_), _) => self.copy_host::<f32>(from),
            (Buf::F64(_), _) => self.copy_host::<f64>(from),
            (Buf::I32(_), _) => self.copy_host::<i32>(from),
        }
    }

    /// Overwrite elements `start..start + len` with those of `from`, or with zeros.
    #[track_caller]
    pub(crate) fn write_at(&mut self, start: usize, len: usize, from: Option<&Tensor>) {
        assert!(start + len <= self.len(), "elements {start}..{} of {}", start + len, self.len());
        let (whole, shape, offset) = (self.shape, Shape::new(&[len]), self.offset);
        (self.shape, self.offset) = (shape, offset + start);
        match from {
            Some(from) => self.assign(from),
            None => self.fill(0.0),
        }
        (self.shape, self.offset) = (whole, offset);
    }

    /// The stream that the buffer is used on, if it is in device memory.
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        if let Buf::Cuda(block, _) = &self.buf { Some(block.gpu()) } else { None }
    }

    fn copy_host<T: Element>(&mut self, from: &Tensor) {
        self.host_mut::<T>().copy_from_slice(from.host());
    }
}

// Numbers are read and written as they lie in memory, and a safetensors file has them so.
#[cfg(target_endian = "big")]
compile_error!("expected a processor that is little-endian");

/// To nearest, ties to even; a NaN stays one.
fn to_bf16(x: f32) -> u16 {
    let u = x.to_bits();
    let rounded = if x.is_nan() { (u >> 16) | 0x40 } else { (u + 0x7fff + ((u >> 16) & 1)) >> 16 };
    rounded as u16
}
