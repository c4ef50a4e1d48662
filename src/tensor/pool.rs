//! Buffers by length, kept between steps: after the second step of a fixed shape nothing is allocated.

use super::{Arena, Buf, DType, Element, Host, Products, Shape, Tensor};
use crate::cuda::{Block, Gpu};
use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// Free buffers of one kind, sorted by length.
pub struct Bin<B>(Vec<(usize, Vec<Arc<B>>)>);

impl<B> Default for Bin<B> {
    fn default() -> Bin<B> {
        Bin(vec![])
    }
}

impl<B> Bin<B> {
    fn take(&mut self, len: usize) -> Option<Arc<B>> {
        let at = self.0.binary_search_by_key(&len, |e| e.0).ok()?;
        self.0[at].1.pop()
    }

    fn give(&mut self, mut buf: Arc<B>, len: usize) {
        // A buffer that somebody still holds (a window, a reshaped copy) goes back with its last holder.
        if Arc::get_mut(&mut buf).is_none() {
            return;
        }
        match self.0.binary_search_by_key(&len, |e| e.0) {
            Ok(at) => self.0[at].1.push(buf),
            Err(at) => self.0.insert(at, (len, vec![buf])),
        }
    }
}

impl Bin<Block> {
    /// Drop all free blocks; how many bytes they were.
    fn clear(&mut self) -> usize {
        self.0.drain(..).map(|(len, blocks)| len * blocks.len()).sum()
    }
}

/// Recycles the buffers of a tape. Their old contents stay: an op writes every element of its outputs.
#[derive(Default)]
pub struct Pool {
    pub(super) f32: Bin<Host<f32>>,
    pub(super) f64: Bin<Host<f64>>,
    pub(super) i32: Bin<Host<i32>>,
    arena: Arena,
    /// Where new buffers come from, if not from host memory.
    gpu: Option<Arc<Gpu>>,
    blocks: Bin<Block>,
    /// Bytes of all device buffers that this pool ever made.
    held: usize,
    /// How often blocks went back to the driver.
    generation: usize,
    fresh: usize,
    poison: bool,
}

impl Pool {
    /// A pool of device buffers.
    pub(crate) fn on(gpu: Arc<Gpu>) -> Pool {
        Pool { gpu: Some(gpu), ..Pool::default() }
    }

    /// How many buffers had to be allocated because no free one fitted.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// A number that changes when buffers that the pool handed out before may be no more.
    pub(crate) fn generation(&self) -> usize {
        self.generation
    }

    /// Fill every buffer handed out with NaN, so that an element which an op forgets to write is seen.
    pub fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    fn take<T: Element>(&mut self, len: usize) -> Arc<Host<T>> {
        let found = T::bin(self).take(len);
        let mut buf = found.unwrap_or_else(|| {
            self.fresh += 1;
            Arc::new(self.arena.host(len))
        });
        // To look whether one is the only holder is an atomic exchange, for every buffer.
        if self.poison
            && let Some(v) = Arc::get_mut(&mut buf)
        {
            v.fill(T::POISON);
        }
        buf
    }

    /// Device memory for `bytes` bytes. Lengths are rounded up, so that nearly equal ones share.
    #[track_caller]
    fn block(&mut self, gpu: &Arc<Gpu>, bytes: usize) -> Arc<Block> {
        let size = bytes.next_multiple_of(512);
        let block = self.blocks.take(size).unwrap_or_else(|| {
            self.fresh += 1;
            // Memory held for sizes that may not come again is given up only when there is no more.
            let block = gpu.allocate(size).or_else(|| {
                self.held -= self.blocks.clear();
                self.generation += 1;
                gpu.allocate(size)
            });
            self.held += size;
            Arc::new(block.unwrap_or_else(|| gpu.out_of_memory(size, self.held - size)))
        });
        gpu.lent(&block, bytes);
        if self.poison {
            gpu.set_bytes(block.ptr(), 0xff, bytes);
        }
        block
    }

    /// A tensor of this shape; its contents are unspecified.
    #[track_caller]
    pub fn get(&mut self, dtype: DType, shape: Shape) -> Tensor {
        let n = shape.len();
        if let Some(gpu) = self.gpu.clone() {
            return Tensor { shape, offset: 0, buf: Buf::Cuda(self.block(&gpu, n * dtype.bytes()), dtype) };
        }
        let buf = match dtype {
            DType::F32 => f32::wrap(self.take(n)),
            DType::F64 => f64::wrap(self.take(n)),
            DType::I32 => i32::wrap(self.take(n)),
            DType::BF16 => panic!("bf16 lives on CUDA devices only"),
        };
        Tensor { shape, offset: 0, buf }
    }

    /// Give a tensor's buffer back for reuse.
    pub fn put(&mut self, t: Tensor) {
        match t.buf {
            Buf::F32(v) => give(&mut self.f32, v),
            Buf::F64(v) => give(&mut self.f64, v),
            Buf::I32(v) => give(&mut self.i32, v),
            // Of another stream, whose work may still be under way: not to be reused here.
            Buf::Cuda(block, _) if !self.gpu.as_ref().is_some_and(|gpu| Arc::ptr_eq(gpu, block.gpu())) => {}
            Buf::Cuda(block, _) => {
                let bytes = block.bytes();
                self.blocks.give(block, bytes);
            }
        }
    }
}

fn give<T>(bin: &mut Bin<Host<T>>, buf: Arc<Host<T>>) {
    let len = buf.len();
    bin.give(buf, len);
}

/// What an op sees of the CPU: the pool, from which it borrows scratch memory.
#[derive(Default)]
pub struct Cpu {
    pool: RefCell<Pool>,
    products: Products,
}

impl Cpu {
    /// One whose products are these.
    ///
    /// # Errors
    /// When this processor has no such products.
    pub fn new(products: Products) -> Result<Cpu, String> {
        products.check_processor()?;
        Ok(Cpu { products, ..Cpu::default() })
    }

    /// What the operands of products are rounded to.
    pub fn products(&self) -> Products {
        self.products
    }

    /// The pool, mutably.
    pub fn pool(&self) -> std::cell::RefMut<'_, Pool> {
        self.pool.borrow_mut()
    }

    /// Scratch memory of `len` elements with unspecified contents; it goes back to the pool when dropped.
    pub fn temp<T: Element>(&self, len: usize) -> Temp<'_, T> {
        Temp { cpu: self, buf: Some(self.pool().take(len)) }
    }

    /// Scratch memory of `len` zeros.
    pub fn zeros<T: Element>(&self, len: usize) -> Temp<'_, T> {
        let mut t = self.temp(len);
        t.fill(T::default());
        t
    }
}

/// Scratch memory on loan from a pool; use it as a slice.
pub struct Temp<'a, T: Element> {
    cpu: &'a Cpu,
    buf: Option<Arc<Host<T>>>,
}

impl<T: Element> Deref for Temp<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.buf.as_deref().map_or(&[], |v| v)
    }
}

impl<T: Element> DerefMut for Temp<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.buf.as_mut().and_then(Arc::get_mut).map_or(&mut [], |v| v)
    }
}

impl<T: Element> Drop for Temp<'_, T> {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            give(T::bin(&mut self.cpu.pool()), buf);
        }
    }
}
