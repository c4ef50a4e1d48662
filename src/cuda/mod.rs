//! CUDA: the same ops on device buffers, by kernels that lie beside them in `.cu` files.
//!
//! What an op sees is [`Cuda`]: a pool of device buffers, [`Cuda::launch`] for its kernels and [`Cuda::gemm`] for
//! matrix products. Below it lie [`Gpu`], one stream of one device, and three libraries that are looked for at run
//! time: the driver, the run-time compiler NVRTC and cuBLAS. Without them everything else works as before.
//!
//! A [`Device::Emulated`] device is the same code over stand-ins for the three libraries, which run the kernels on
//! the CPU: that is how kernels are tested and debugged on a machine without a GPU.
//!
//! A kernel that fails, a launch that cannot be or memory that runs out is remembered ([`Gpu::fault`]) and panics
//! with what happened; the training loop turns it into an [`Error::Device`](crate::error::Error::Device).
//!
//! # Panics
//! So do the functions of these modules where what they are given does not fit, such as a tensor in host memory.
//!
//! In a build without the feature `cuda` there is no [`Gpu`], and nothing above it knows: to open a device is an error.

#[doc(hidden)]
pub mod counters;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "without.rs"]
mod gpu;
mod launch;
mod module;
mod temp;
mod tiles;
mod view;

#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use gpu::emulator;
#[doc(hidden)]
pub use gpu::{Block, Gpu, Graph, Mark, Pinned};
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use gpu::{cache, compile, locate};
pub use launch::{Arg, Launch, in_packs};
pub use module::Module;
#[doc(hidden)]
pub use module::{PRELUDE, TILES};
#[doc(hidden)]
pub use temp::Temp;
#[doc(hidden)]
pub use tiles::Tiles;
#[doc(hidden)]
pub use view::View;

use crate::tensor::{DType, Device, Pool, Shape, Tensor};
use std::{
    cell::{RefCell, RefMut},
    sync::Arc,
};

/// What an op sees of a CUDA device.
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
    pub fn temp(&self, dtype: DType, len: usize) -> Temp<'_> {
        Temp::new(self, self.pool().get(dtype, Shape::new(&[len])))
    }

    /// Scratch memory of `len` zeros.
    pub fn zeros(&self, dtype: DType, len: usize) -> Temp<'_> {
        let mut t = self.temp(dtype, len);
        t.fill(0.0);
        t
    }

    /// A launch in which every thread takes some of `n` elements, `for (i64 i = thread(); i < n; i += threads())`.
    pub fn elements(&self, n: usize) -> Launch {
        self.gpu.elements(n)
    }

    /// A launch in which groups of threads share rows of `n` entries, and how many share one: 1, 2, 4, … 32, or all of
    /// a block.
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

/// Run `f` on this device (none: the CPU); its panic over a fault of the device, or a lack of memory, becomes an error.
///
/// # Errors
/// When the device failed, or there is not enough memory: what happened.
pub fn guarded<R>(gpu: Option<Arc<Gpu>>, f: impl FnOnce() -> R) -> crate::error::Result<R> {
    let Some(gpu) = gpu else { return crate::error::within_memory(f) };
    match crate::error::quietly(f) {
        Ok(done) => Ok(done),
        Err(message) => match gpu.fault() {
            Some(fault) => Err(crate::error::Error::Device(fault.into())),
            None => panic!("{message}"),
        },
    }
}

/// The kernels that the engine itself needs: filling, adding, changing the type, looking for NaN.
static TENSOR: Module = Module::new("cuda/tensor.cu", &[include_str!("tensor.cu")]);

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
        self.launch(&TENSOR, kernel, x.dtype(), self.elements(n), crate::args![x, y, acc, n]);
    }
}
