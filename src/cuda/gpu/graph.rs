//! Work that is recorded once and then asked for in one call: a CUDA graph. A training step of a small model is some
//! hundred launches of a few microseconds each; asking for them one by one takes longer than running them.

use super::{Gpu, Turn, lock};
use bytemuck::Pod;
use cudarc::driver::{CudaGraph, CudaStream, result, sys};
use std::{
    marker::PhantomData,
    sync::{Arc, atomic::Ordering},
};

/// Recorded work. It reads and writes the same addresses every time: whoever recorded it keeps them alive. What it copies
/// to the device is its own.
pub struct Graph {
    graph: CudaGraph,
    sources: Vec<Box<[u8]>>,
    stream: Arc<CudaStream>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A replay may be under way, and reads them.
        if !self.sources.is_empty() {
            let _ = self.stream.synchronize();
        }
    }
}

// SAFETY: the driver asks that no two calls on a graph are made at once; `launch` takes it mutably, and it is not Sync.
unsafe impl Send for Graph {}

impl Gpu {
    /// Record what `work` asks this stream for, without doing it. Work that waits, or that reads results back, cannot
    /// be recorded.
    #[track_caller]
    pub fn capture(self: &Arc<Self>, work: impl FnOnce()) -> Graph {
        let _turn = Turn::take();
        self.bind();
        drop(self.ready_for_products());
        // Other threads go on with their own streams meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.check("recording a graph", self.stream.begin_capture(mode));
        self.capturing.store(true, Ordering::Relaxed);
        let recording = Recording(self);
        work();
        drop(recording);
        let flags = sys::CUgraphInstantiate_flags(0);
        match self.check("making a graph", self.stream.end_capture(flags)) {
            Some(graph) => {
                Graph { graph, sources: std::mem::take(&mut *lock(&self.sources)), stream: self.stream.clone() }
            }
            None => self.fail(format!("device {}: a graph of nothing", self.device)),
        }
    }

    /// Whether what is asked for now is recorded and not done.
    pub(crate) fn captures(&self) -> bool {
        self.capturing.load(Ordering::Relaxed)
    }

    /// Do what was recorded.
    #[track_caller]
    pub fn replay(&self, graph: &mut Graph) {
        self.check("launching a graph", graph.graph.launch());
    }
}

/// Ends a recording whose work panicked: the stream would refuse everything else.
struct Recording<'a>(&'a Arc<Gpu>);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.capturing.store(false, Ordering::Relaxed);
        if std::thread::panicking() {
            let _ = self.0.stream.end_capture(sys::CUgraphInstantiate_flags(0));
            lock(&self.0.sources).clear();
        }
    }
}

/// Host memory that the device copies from and to by itself, while the program goes on. (cudarc's `PinnedHostSlice` waits
/// for an event of its own at each access. Copies that a graph replays record none, so it would wait for nothing.)
pub struct Pinned<T> {
    gpu: Arc<Gpu>,
    at: *mut T,
    len: usize,
    of: PhantomData<T>,
}

// SAFETY: it owns its memory, as a Vec does.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// So many zeros.
    #[track_caller]
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Pinned<T> {
        gpu.bind();
        let (_turn, bytes) = (Turn::take(), (len * size_of::<T>()).max(1));
        // SAFETY: the context is current; the memory is as large, and aligned to a page.
        let at = gpu.check("allocating pinned memory", unsafe {
            result::malloc_host(bytes, 0).inspect(|at| at.cast::<u8>().write_bytes(0, bytes))
        });
        Pinned { gpu: gpu.clone(), at: at.cast(), len, of: PhantomData }
    }

    fn all(&self) -> &[T] {
        // SAFETY: there are so many by `new`, aligned, and any bytes, first zeros, are numbers.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    fn all_mut(&mut self) -> &mut [T] {
        // SAFETY: the same, and this is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Overwrite the first of them. No copy may be under way.
    pub fn write(&mut self, from: &[T]) {
        self.all_mut()[..from.len()].copy_from_slice(from);
    }

    /// All of them. No copy may be under way.
    pub fn read(&self) -> Vec<T> {
        self.all().to_vec()
    }

    /// Ask for a copy of the first `len` to the device.
    ///
    /// # Panics
    /// When there are not so many.
    #[track_caller]
    pub(crate) fn upload(&self, to: u64, len: usize) {
        let from = &self.all()[..len];
        if len > 0 {
            self.gpu.bind();
            // SAFETY: the source lives until this struct drops, which waits; the caller gives a range inside a live
            // block of this stream.
            let done = unsafe { result::memcpy_htod_async(to, from, self.gpu.raw_stream()) };
            self.gpu.check("copying to the device", done);
        }
    }

    /// Ask for a copy of all from the device.
    #[track_caller]
    pub(crate) fn download(&mut self, from: u64) {
        if self.len > 0 {
            self.gpu.bind();
            let stream = self.gpu.raw_stream();
            // SAFETY: as for `upload`; nobody reads before having waited.
            let done = unsafe { result::memcpy_dtoh_async(self.all_mut(), from, stream) };
            self.gpu.check("copying from the device", done);
        }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.gpu.ctx.bind_to_thread().is_ok() {
            let _ = self.gpu.stream.synchronize();
            let _turn = Turn::take();
            // SAFETY: allocated by `malloc_host`, freed once, and no copy is under way any more.
            let _ = unsafe { result::free_host(self.at.cast()) };
        }
    }
}
