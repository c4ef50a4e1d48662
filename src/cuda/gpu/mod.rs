//! A device: one stream of it, what is known of it, and all that it is asked for.

#[doc(hidden)]
pub mod ahead;
mod blas;
#[doc(hidden)]
pub mod cache;
mod call;
#[doc(hidden)]
pub mod compile;
pub mod emulator;
mod graph;
#[doc(hidden)]
pub mod locate;
mod mark;
mod memory;

pub use graph::{Graph, Pinned};
pub use mark::Mark;
pub use memory::Block;

use super::{Device, Launch, module};
use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};
use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicBool},
};

/// One stream of one device. Everything on it happens in order, so a buffer may be given back while a kernel that
/// reads it is still under way: whoever gets it next comes later.
pub struct Gpu {
    device: Device,
    ctx: Arc<CudaContext>,
    /// Dropped before its stream: fields are, in their order.
    blas: Mutex<Option<blas::Handle>>,
    stream: Arc<CudaStream>,
    functions: Mutex<HashMap<(module::Key, &'static str), call::Function>>,
    /// Such as 90.
    capability: i32,
    /// The target that kernels are compiled for, such as "sm_90".
    arch: String,
    processors: usize,
    /// Bytes that a block may have.
    shared: usize,
    fault: OnceLock<String>,
    /// Whether a graph is being recorded. Work that cannot be recorded then runs on another stream.
    capturing: AtomicBool,
    aside: OnceLock<Arc<CudaStream>>,
    /// The host memory that the copies to the device in the recorded graph read.
    sources: Mutex<Vec<Box<[u8]>>>,
    /// While each launch is timed: the marks around those so far.
    launches: Mutex<Option<mark::Launches>>,
}

/// A call that waits for the whole device, such as freeing a cuBLAS handle, would spoil another thread's recording. So
/// such calls and recordings take turns.
static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static MINE: Cell<bool> = const { Cell::new(false) };
}

/// Held by the thread whose turn it is. A thread that holds it may take it again, as a recording does when it makes a
/// handle that it needs.
struct Turn {
    _hold: Option<MutexGuard<'static, ()>>,
}

impl Turn {
    fn take() -> Turn {
        let _hold = (!MINE.get()).then(|| lock(&TURN));
        MINE.set(true);
        Turn { _hold }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self._hold.is_some() {
            MINE.set(false);
        }
    }
}

impl Gpu {
    pub(crate) fn open(device: Device) -> Result<Gpu, String> {
        let ordinal = match device {
            Device::Cuda(n) => n,
            Device::Emulated => 0,
            Device::Cpu => return Err("the CPU is no CUDA device".into()),
        };
        let ctx = context(device, ordinal)?;
        let failed = |what: &str, e: DriverError| format!("device {device}: {what}: {}", describe(e));
        let stream = ctx.new_stream().map_err(|e| failed("no stream", e))?;
        let (major, minor) = ctx.compute_capability().map_err(|e| failed("no compute capability", e))?;
        let arch = compile::target(10 * major + minor, &compile::targets()?, compile::nvrtc_version()?);
        let arch = arch.map_err(|why| format!("device {device}: {why}"))?;
        use sys::CUdevice_attribute as Of;
        let attribute = |of| ctx.attribute(of).map_err(|e| failed(&format!("{of:?}"), e));
        let processors = attribute(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        Ok(Gpu {
            device,
            ctx,
            stream,
            blas: Mutex::new(None),
            functions: Mutex::default(),
            capability: 10 * major + minor,
            arch,
            processors: usize::try_from(processors).unwrap_or(1),
            shared: usize::try_from(shared).unwrap_or(0),
            fault: OnceLock::new(),
            capturing: AtomicBool::new(false),
            aside: OnceLock::new(),
            sources: Mutex::default(),
            launches: Mutex::new(None),
        })
    }

    /// Which device this is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Bytes of shared memory that a block may have.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// The device's own name.
    pub fn name(&self) -> String {
        self.ctx.name().unwrap_or_else(describe)
    }

    /// The first error, if there was one. A device does nothing more after it.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// A launch in which every thread takes some of `n` elements, `for (i64 i = thread(); i < n; i += threads())`.
    pub fn elements(&self, n: usize) -> Launch {
        const THREADS: usize = 256;
        // Enough blocks to keep every processor busy, more only adds starts; few in emulation, so that the loop over
        // the rest is run there too.
        let most = if self.device == Device::Emulated { 2 } else { 8 * self.processors };
        Launch::blocks(n.div_ceil(THREADS).min(most), THREADS)
    }

    /// A launch in which groups of threads share rows of `n` entries, and how many share one: 1, 2, 4, … 32, or all of
    /// a block.
    pub fn rows(&self, rows: usize, n: usize) -> (Launch, i32) {
        let lanes = if n <= 512 { n.next_power_of_two().min(32) } else { 256 };
        (self.elements(rows * lanes), lanes as i32)
    }

    /// Wait until everything asked for is done.
    #[track_caller]
    pub fn synchronize(&self) {
        self.check("waiting for the device", self.stream.synchronize());
    }

    /// Remember a failure, and panic with it.
    #[track_caller]
    pub(crate) fn fail(&self, message: String) -> ! {
        panic!("{}", self.fault.get_or_init(|| message))
    }

    #[track_caller]
    fn check<T>(&self, what: &str, result: Result<T, DriverError>) -> T {
        match result {
            Ok(t) => t,
            Err(e) => self.fail(format!("device {}: {what}: {}", self.device, describe(e))),
        }
    }

    /// The driver's calls are about the context that the calling thread has made its own.
    #[track_caller]
    fn bind(&self) {
        self.check("making the device current", self.ctx.bind_to_thread());
    }

    fn raw_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }
}

/// The device's primary context. It is kept to the end of the process, as the modules loaded into it are.
fn context(device: Device, ordinal: usize) -> Result<Arc<CudaContext>, String> {
    static OPEN: Mutex<Vec<(Device, Arc<CudaContext>)>> = Mutex::new(vec![]);
    locate::load(device)?;
    let mut open = lock(&OPEN);
    if let Some((_, ctx)) = open.iter().find(|(known, _)| *known == device) {
        return Ok(ctx.clone());
    }
    let failed = |what: &str, e: DriverError| format!("device {device}: {what}: {}", describe(e));
    newer_than_the_libraries(device)?;
    let count = CudaContext::device_count().map_err(|e| failed("the driver does not start", e))?;
    if ordinal as i64 >= i64::from(count) {
        return Err(format!("device {device}: there are {count} CUDA devices, counted from 0"));
    }
    let ctx = CudaContext::new(ordinal).map_err(|e| failed("cannot be opened", e))?;
    open.push((device, ctx.clone()));
    Ok(ctx)
}

/// An error if the driver is older than NVRTC: it may not load what NVRTC compiles.
fn newer_than_the_libraries(device: Device) -> Result<(), String> {
    let ((driver, minor), nvrtc) = (locate::driver().unwrap_or_default(), compile::nvrtc_version()?);
    match driver < nvrtc.0 {
        true => Err(format!(
            "device {device}: the driver is for CUDA {driver}.{minor}, and NVRTC {}.{} needs a newer one; with this \
             driver, TAPEZOO_CUDA_LIBS must name libraries of CUDA {driver}, and LD_LIBRARY_PATH no other libnvrtc.so",
            nvrtc.0, nvrtc.1
        )),
        false => Ok(()),
    }
}

/// The driver's words for an error: "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
fn describe(e: DriverError) -> String {
    let text = |s: Result<&std::ffi::CStr, DriverError>| s.map(|s| s.to_string_lossy().into_owned()).ok();
    match (text(e.error_name()), text(e.error_string())) {
        (Some(name), Some(what)) if what != name => format!("{name} ({what})"),
        (Some(name), _) => name,
        _ => format!("{:?}", e.0),
    }
}

/// A lock whose holder panicked guards nothing that could be half done.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
