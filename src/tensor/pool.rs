//! Buffers by size class, kept between steps: after the second step of a fixed shape nothing is allocated, and with
//! shapes that change not much more is kept than the largest step needs. Before a pool gives up an idle buffer to
//! make another, it lends a larger one: the system would have to clear new memory first. So the shorter parts of a batch
//! have the buffers of the longest.

mod free;

pub use free::Bin;

use super::{Arena, Buf, Cores, DType, Element, Host, Products, Shape, Tensor, host, simd};
use crate::{
    cuda::{Block, Gpu},
    error::OUT_OF_MEMORY,
};
use free::{Usage, class};
use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

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
    usage: Usage,
    /// How often blocks went back to the driver.
    generation: usize,
    fresh: usize,
    poison: bool,
    /// Whether tensors have a shape and no elements.
    hollow: bool,
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

    /// Hand out tensors that have a shape and no elements, and count the bytes that they would have.
    pub fn set_hollow(&mut self) {
        self.hollow = true;
    }

    /// Fill every buffer handed out with NaN, so that an element which an op forgets to write is seen.
    pub fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    /// The bytes of all buffers: those in use, and those kept for later.
    pub fn held(&self) -> usize {
        self.usage.held()
    }

    /// The most bytes that were in use at once in the last steps.
    pub fn peak(&self) -> usize {
        self.usage.peak()
    }

    /// A step is over, and everything that it had comes back before the next one.
    pub fn end_step(&mut self) {
        self.usage.end_step();
        if self.usage.step.is_multiple_of(Usage::PERIOD) {
            self.trim(0);
        }
    }

    /// Give up what has been idle, as far as there is more than is worth keeping with `more` bytes.
    fn trim(&mut self, more: usize) {
        // A buffer freed during recording would be freed again at each replay.
        if self.gpu.as_ref().is_some_and(|gpu| gpu.captures()) {
            return;
        }
        let oldest = |pool: &Pool| [pool.f32.oldest(), pool.f64.oldest(), pool.i32.oldest(), pool.blocks.oldest()];
        while self.usage.too_much(more)
            && let Some((Some(step), bin)) = oldest(self).into_iter().zip(0..).filter(|of| of.0.is_some()).min()
            && self.usage.idle(step)
        {
            fn bytes<T>(buf: Option<Arc<Host<T>>>) -> usize {
                buf.map_or(0, |buf| buf.room() * size_of::<T>())
            }
            let bytes = match bin {
                0 => bytes(self.f32.take_oldest()),
                1 => bytes(self.f64.take_oldest()),
                2 => bytes(self.i32.take_oldest()),
                _ => {
                    self.generation += 1;
                    self.blocks.take_oldest().map_or(0, |block| block.bytes())
                }
            };
            self.usage.dropped(bytes);
        }
    }

    #[track_caller]
    fn take<T: Element>(&mut self, len: usize) -> Arc<Host<T>> {
        let (class, room) = class(len);
        let bytes = room.saturating_mul(size_of::<T>());
        let mut buf = match T::bin(self).take(class) {
            Some(buf) => {
                self.usage.taken(bytes);
                buf
            }
            None => self.larger_or_new(class, room),
        };
        // `get_mut` asks whether this is the only holder by an atomic exchange, so it is called only where needed.
        if (buf.len() != len || self.poison)
            && let Some(v) = Arc::get_mut(&mut buf)
        {
            v.set_len(len);
            if self.poison {
                v.fill(T::POISON);
            }
        }
        buf
    }

    /// A larger buffer, where the pool would give up an idle one for a new one: the shapes change. Else a new one.
    #[cold]
    #[track_caller]
    fn larger_or_new<T: Element>(&mut self, class: usize, room: usize) -> Arc<Host<T>> {
        let bytes = room.saturating_mul(size_of::<T>());
        let oldest = || [self.f32.oldest(), self.f64.oldest(), self.i32.oldest()].into_iter().flatten().min();
        let gives_up = self.usage.too_much(bytes) && oldest().is_some_and(|step| self.usage.idle(step));
        if gives_up && let Some(buf) = T::bin(self).take_larger(class) {
            self.usage.taken(buf.room() * size_of::<T>());
            return buf;
        }
        self.trim(bytes);
        self.fresh += 1;
        let buf = self.arena.host(room).unwrap_or_else(|| out_of_memory(bytes, self.usage.held()));
        self.usage.made(bytes);
        Arc::new(buf)
    }

    fn give<T: Element>(&mut self, mut buf: Arc<Host<T>>) {
        // A buffer that somebody still holds (a window, a reshaped copy) goes back with its last holder.
        let free = Arc::get_mut(&mut buf).is_some();
        let (class, room) = class(buf.room());
        self.usage.returned(room * size_of::<T>(), free && room == buf.room());
        if free && room == buf.room() {
            let step = self.usage.step;
            T::bin(self).give(class, buf, step);
        }
    }

    /// Device memory for `bytes` bytes. Sizes are rounded up, so that nearly equal ones share.
    #[track_caller]
    fn block(&mut self, gpu: &Arc<Gpu>, bytes: usize) -> Arc<Block> {
        let (class, units) = class(bytes.div_ceil(UNIT));
        let size = units.saturating_mul(UNIT);
        // A device clears no memory, so that a block has the size that is asked for.
        let block = match self.blocks.take(class) {
            Some(block) => {
                self.usage.taken(size);
                block
            }
            None => {
                self.trim(size);
                self.fresh += 1;
                // Memory held for sizes that may not come again is given up when there is no more. While a step is
                // recorded this would only be recorded too.
                let block = gpu.allocate(size).or_else(|| {
                    if gpu.captures() {
                        return None;
                    }
                    self.usage.clear();
                    self.blocks.clear();
                    self.generation += 1;
                    gpu.allocate(size)
                });
                let block = block.unwrap_or_else(|| gpu.out_of_memory(size, self.usage.held()));
                self.usage.made(size);
                Arc::new(block)
            }
        };
        gpu.lent(&block, bytes);
        if self.poison {
            gpu.set_bytes(block.ptr(), 0xff, bytes);
        }
        block
    }

    /// A tensor of this shape; its contents are unspecified.
    ///
    /// # Panics
    /// When there is no memory for it: see [`crate::error::OUT_OF_MEMORY`].
    #[track_caller]
    pub fn get(&mut self, dtype: DType, shape: Shape) -> Tensor {
        let n = shape.len();
        if self.hollow {
            self.usage.made(n.saturating_mul(dtype.bytes()));
            return Tensor::hollow(shape, dtype);
        }
        if let Some(gpu) = self.gpu.clone() {
            return Tensor {
                shape,
                offset: 0,
                buf: Buf::Cuda(self.block(&gpu, n.saturating_mul(dtype.bytes())), dtype),
            };
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
            Buf::F32(v) => self.give(v),
            Buf::F64(v) => self.give(v),
            Buf::I32(v) => self.give(v),
            // Of another stream, whose work may still be under way: not to be reused here.
            Buf::Cuda(block, _) if !self.gpu.as_ref().is_some_and(|gpu| Arc::ptr_eq(gpu, block.gpu())) => {}
            Buf::Cuda(mut block, _) => {
                let (size, free) = (block.bytes(), Arc::get_mut(&mut block).is_some());
                self.usage.returned(size, free);
                if free {
                    self.blocks.give(class(size / UNIT).0, block, self.usage.step);
                }
            }
        }
    }
}

/// The unit in which device memory is given out.
const UNIT: usize = 512;

/// The system has no such memory: a panic whose message says so, as an op has no other way to say it, and
/// [`quietly`](crate::error::quietly) makes an error of it.
#[track_caller]
fn out_of_memory(bytes: usize, held: usize) -> ! {
    let [bytes, held] = [bytes, held].map(crate::error::bytes);
    panic!(
        "{OUT_OF_MEMORY}: {bytes} asked for, {held} in use by this run; a smaller batch or shorter sequences need less, \
         as do fewer runs side by side (--threads, --jobs)"
    )
}

/// See that there is memory for a vector of so many bytes: to make one that there is none for ends the process.
#[track_caller]
pub(super) fn ask_for(bytes: usize) {
    if !host::is_there(bytes) {
        let bytes = crate::error::bytes(bytes);
        panic!(
            "{OUT_OF_MEMORY}: {bytes} asked for; a smaller model or batch needs less, as do fewer runs side by side (--threads, --jobs)"
        )
    }
}

/// The CPU as an op sees it: the pool, from which it borrows scratch memory.
#[derive(Default)]
pub struct Cpu {
    pool: RefCell<Pool>,
    products: Products,
    cores: Cores,
    /// For the other threads of a kernel, from one call to the next.
    helpers: Mutex<Vec<Cpu>>,
}

impl Cpu {
    /// One whose products are these.
    ///
    /// # Errors
    /// When this processor has no such products.
    pub fn new(products: Products) -> Result<Cpu, String> {
        simd::check()?;
        products.check_processor()?;
        Ok(Cpu { products, cores: Cores::others(), ..Cpu::default() })
    }

    /// From now on, the other cores are these.
    pub(crate) fn share(&mut self, cores: &Cores) {
        self.cores = cores.clone();
    }

    /// Do all of these jobs, on this thread and on idle cores: side by side, in any order. Each thread has a pool of its
    /// own.
    pub(crate) fn side_by_side<J: Send>(&self, jobs: Vec<J>, work: impl Fn(&Cpu, J) + Sync) {
        let (helpers, products, poison) = (&self.helpers, self.products, self.pool().poison);
        let (threads, jobs) = (jobs.len(), Mutex::new(jobs.into_iter()));
        self.cores.work(threads, || {
            let cpu = lock(helpers).pop().unwrap_or_else(|| Cpu { products, ..Cpu::default() });
            cpu.pool().set_poison(poison);
            std::iter::from_fn(|| lock(&jobs).next()).for_each(|job| work(&cpu, job));
            lock(helpers).push(cpu);
        });
    }

    /// A step is over, for this thread's pool and for those of its helpers.
    pub fn end_step(&self) {
        self.pool().end_step();
        lock(&self.helpers).iter().for_each(|helper| helper.pool().end_step());
    }

    /// The type that operands of products are rounded to.
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

/// A thread that panicked leaves nothing half done behind these locks.
fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.cpu.pool().give(buf);
        }
    }
}
