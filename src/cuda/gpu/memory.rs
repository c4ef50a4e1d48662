//! Device memory, and copies to and from it.

use super::{Gpu, ahead, emulator, lock};
use crate::cuda::Device;
use bytemuck::Pod;
use cudarc::driver::{CudaStream, result, sys};
use std::sync::Arc;

/// A piece of device memory, given back to the driver when dropped.
pub struct Block {
    gpu: Arc<Gpu>,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    /// The integers that were sent to it last, if nothing has written to it since: what is an index is checked by the
    /// host, which does not wait for the device for that.
    pub(crate) sent: Option<Arc<[i32]>>,
}

impl Block {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream that it is used on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Its address on the device; null for an empty one.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} bytes on {}", self.bytes, self.gpu.device())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes > 0 && self.gpu.ctx.bind_to_thread().is_ok() {
            // SAFETY: the pointer came from `malloc_async` on this stream, and nobody else holds it. After a fault
            // the driver refuses, and the memory goes with the process.
            let _ = unsafe { result::free_async(self.ptr, self.gpu.raw_stream()) };
        }
    }
}

impl Gpu {
    /// Device memory with unspecified contents, or nothing when there is not enough.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Option<Block> {
        if bytes == 0 {
            return Some(Block { gpu: self.clone(), ptr: 0, bytes, sent: None });
        }
        self.bind();
        // Memory that a graph allocates is the graph's own, and gone when it ends: this is to stay.
        let aside = self.captures().then(|| self.aside());
        let stream = aside.map_or(self.raw_stream(), |aside| aside.cu_stream());
        // SAFETY: the stream is alive; the memory is not read before it is written.
        let made = unsafe { result::malloc_async(stream, bytes) };
        if let Some(aside) = aside {
            self.check("waiting for memory", aside.synchronize());
        }
        match made {
            Ok(ptr) => Some(Block { gpu: self.clone(), ptr, bytes, sent: None }),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => None,
            Err(e) => self.check(&format!("allocating {bytes} bytes"), Err(e)),
        }
    }

    #[track_caller]
    fn aside(&self) -> &Arc<CudaStream> {
        self.aside.get_or_init(|| self.check("no second stream", self.ctx.new_stream()))
    }

    /// The emulator is to know that a block begins a new life: what it held is gone, and past `bytes` is out of bounds.
    pub(crate) fn lent(&self, block: &Block, bytes: usize) {
        if self.device == Device::Emulated && bytes > 0 {
            emulator::lend(self.raw_stream(), block.ptr, bytes);
        }
    }

    /// The fault of an allocation that failed.
    #[track_caller]
    pub(crate) fn out_of_memory(&self, bytes: usize, held: usize) -> ! {
        let mib = |n: usize| format!("{:.1} MiB", n as f64 / (1 << 20) as f64);
        let (free, total) = self.ctx.mem_get_info().unwrap_or_default();
        self.fail(format!(
            "device {}: out of memory: {} asked for, {} free of {}, {} in use by this program; a smaller batch or \
             shorter sequences need less",
            self.device,
            mib(bytes),
            mib(free),
            mib(total),
            mib(held)
        ))
    }

    /// Set every byte.
    #[track_caller]
    pub(crate) fn set_bytes(&self, ptr: u64, byte: u8, bytes: usize) {
        if bytes > 0 {
            self.bind();
            // SAFETY: the caller gives a range inside a live block of this stream.
            self.check("filling memory", unsafe { result::memset_d8_async(ptr, byte, bytes, self.raw_stream()) });
        }
    }

    /// Set `n` words of 32 bits.
    #[track_caller]
    pub(crate) fn set_words(&self, ptr: u64, word: i32, n: usize) {
        self.bind();
        // SAFETY: the caller gives a range inside a live block of this stream.
        let done = unsafe { sys::cuMemsetD32Async(ptr, word.cast_unsigned(), n, self.raw_stream()).result() };
        self.check("filling memory", done);
    }

    /// Copy to the device. A recording reads its source at every replay, and so has a copy of it.
    #[track_caller]
    pub(crate) fn upload<T: Pod>(&self, ptr: u64, from: &[T]) {
        if from.is_empty() {
            return;
        }
        self.bind();
        // SAFETY: the range is inside a live block of this stream.
        let copy = |from: &[u8]| unsafe { result::memcpy_htod_async(ptr, from, self.raw_stream()) };
        let bytes: &[u8] = bytemuck::cast_slice(from);
        let done = if self.captures() {
            let mut sources = lock(&self.sources);
            sources.push(bytes.into());
            copy(sources.last().map_or(&[], |own| own))
        } else {
            // Pageable memory: the driver has read it when the call returns.
            copy(bytes)
        };
        self.check("copying to the device", done);
    }

    /// Copy from the device, once all that was asked for is done.
    #[track_caller]
    pub(crate) fn download<T: Pod>(&self, ptr: u64, len: usize) -> Vec<T> {
        let mut to = vec![T::zeroed(); len];
        if len > 0 && !ahead::rehearses() {
            self.bind();
            // SAFETY: the range is inside a live block, and the destination outlives the copy, as we wait for it.
            self.check("copying from the device", unsafe {
                result::memcpy_dtoh_async(&mut to, ptr, self.raw_stream())
            });
            self.synchronize();
        }
        to
    }

    /// Copy within the device.
    #[track_caller]
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) {
        if bytes > 0 {
            self.bind();
            // SAFETY: both ranges are inside live blocks of this stream.
            self.check("copying on the device", unsafe {
                result::memcpy_dtod_async(to, from, bytes, self.raw_stream())
            });
        }
    }
}
