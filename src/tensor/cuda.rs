//! A CUDA device as ops see it: a pool of its memory, and launches with tensors for arguments.

use super::{DType, Device, Mat, Pool, Shape, Tensor};
use crate::{
    args,
    cuda::{Arg, Gpu, Launch, Module, View},
};
use std::{
    cell::{RefCell, RefMut},
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// A CUDA device as an op sees it.
pub struct Cuda {
    gpu: Arc<Gpu>,
    pool: RefCell<Pool>,
}

impl Cuda {
    /// Open a device: a new stream, and a pool of its own.
    ///
    /// # Errors
    /// When a library or the device is missing: which, and where it was looked for.
    pub fn open(device: Device) -> Result<Cuda, String> {
        let gpu = Arc::new(Gpu::open(device)?);
        Ok(Cuda { pool: RefCell::new(Pool::on(gpu.clone())), gpu })
    }

    /// The stream that everything runs on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The pool, mutably.
    pub fn pool(&self) -> RefMut<'_, Pool> {
        self.pool.borrow_mut()
    }

    /// Scratch memory of `len` elements with unspecified contents; it goes back to the pool when dropped.
    pub fn temp(&self, dtype: DType, len: usize) -> CudaTemp<'_> {
        CudaTemp::new(self, self.pool().get(dtype, Shape::new(&[len])))
    }

    /// Scratch memory of `len` zeros.
    pub fn zeros(&self, dtype: DType, len: usize) -> CudaTemp<'_> {
        let mut t = self.temp(dtype, len);
        t.fill(0.0);
        t
    }

    /// A launch over `n` elements; see [`Gpu::elements`].
    pub fn elements(&self, n: usize) -> Launch {
        self.gpu.elements(n)
    }

    /// A launch over rows of `n` entries; see [`Gpu::rows`].
    pub fn rows(&self, rows: usize, n: usize) -> (Launch, i32) {
        self.gpu.rows(rows, n)
    }

    /// Launch a kernel; see [`Gpu::launch`].
    #[track_caller]
    pub fn launch(&self, module: &'static Module, kernel: &'static str, dtype: DType, launch: Launch, args: &[Arg]) {
        self.gpu.launch(module, kernel, dtype, launch, args);
    }

    /// A matrix product; see [`Gpu::gemm`].
    #[track_caller]
    pub fn gemm(&self, alpha: f64, a: View, b: View, y: View, acc: bool, batch: usize) {
        self.gpu.gemm(alpha, a, b, y, acc, batch);
    }
}

/// Scratch memory on loan from a pool; use it as a tensor.
pub struct CudaTemp<'a> {
    cuda: &'a Cuda,
    tensor: Option<Tensor>,
}

impl<'a> CudaTemp<'a> {
    fn new(cuda: &'a Cuda, tensor: Tensor) -> CudaTemp<'a> {
        CudaTemp { cuda, tensor: Some(tensor) }
    }
}

impl Deref for CudaTemp<'_> {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        self.tensor.as_ref().expect("there until dropped")
    }
}

impl DerefMut for CudaTemp<'_> {
    fn deref_mut(&mut self) -> &mut Tensor {
        self.tensor.as_mut().expect("there until dropped")
    }
}

impl Drop for CudaTemp<'_> {
    fn drop(&mut self) {
        if let Some(t) = self.tensor.take() {
            self.cuda.pool().put(t);
        }
    }
}

/// Kernels of the engine itself: filling, changing the type, adding, looking for NaN.
static TENSOR: Module = Module::new("tensor/tensor.cu", &[include_str!("tensor.cu")]);

impl Gpu {
    /// y = x, or y += x when `acc`, in whatever type each is.
    #[track_caller]
    pub(crate) fn convert(&self, x: &Tensor, y: &mut Tensor, acc: bool) {
        assert_eq!(x.len(), y.len(), "tensors that do not fit");
        let kernel = match y.dtype() {
            DType::F32 => "to_f32",
            DType::F64 => "to_f64",
            DType::BF16 => "to_bf16",
            DType::I32 => panic!("integers take no part in arithmetic"),
        };
        let n = x.len();
        self.launch(&TENSOR, kernel, x.dtype(), self.elements(n), args![x, y, acc, n]);
    }

    /// Write one value everywhere.
    #[track_caller]
    pub(super) fn fill(&self, t: &mut Tensor, value: f64) {
        let (dtype, n) = (t.dtype(), t.len());
        if value == 0.0 {
            self.set_bytes(t.device_ptr(), 0, n * dtype.bytes());
        } else if dtype == DType::I32 {
            self.set_words(t.device_ptr(), value as i32, n);
        } else {
            self.launch(&TENSOR, "fill", dtype, self.elements(n), args![t, value, n]);
        }
    }

    /// Whether every element is finite.
    #[track_caller]
    pub(super) fn all_finite(self: &Arc<Self>, t: &Tensor) -> bool {
        let (n, bytes) = (t.len(), DType::I32.bytes());
        let Some(found) = self.allocate(bytes) else { self.out_of_memory(bytes, 0) };
        self.set_bytes(found.ptr(), 0, bytes);
        let args = args![t, n, Arg::Ptr(found.ptr())];
        self.launch(&TENSOR, "any_not_finite", t.dtype(), self.elements(n), args);
        self.download::<i32>(found.ptr(), 1) == [0]
    }
}

impl View {
    /// One matrix, to read.
    #[track_caller]
    pub fn new(t: &Tensor, mat: Mat) -> View {
        View { ptr: t.device_ptr(), len: t.len(), dtype: t.dtype(), mat, step: 0 }
    }

    /// One matrix, to write.
    #[track_caller]
    pub fn out(t: &mut Tensor, mat: Mat) -> View {
        View { ptr: t.device_ptr_mut(), len: t.len(), dtype: t.dtype(), mat, step: 0 }
    }
}

impl From<&Tensor> for Arg {
    #[track_caller]
    fn from(t: &Tensor) -> Arg {
        Arg::Ptr(t.device_ptr())
    }
}
impl From<&mut Tensor> for Arg {
    #[track_caller]
    fn from(t: &mut Tensor) -> Arg {
        Arg::Ptr(t.device_ptr_mut())
    }
}
impl From<&CudaTemp<'_>> for Arg {
    #[track_caller]
    fn from(t: &CudaTemp) -> Arg {
        Arg::from(&**t)
    }
}
impl From<&mut CudaTemp<'_>> for Arg {
    #[track_caller]
    fn from(t: &mut CudaTemp) -> Arg {
        Arg::from(&mut **t)
    }
}
impl<'a> From<&'a Option<Tensor>> for Arg {
    #[track_caller]
    fn from(t: &'a Option<Tensor>) -> Arg {
        Arg::from(t.as_ref())
    }
}
