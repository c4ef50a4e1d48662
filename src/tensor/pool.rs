//! Buffers by length, kept between steps: after the second step of a fixed shape nothing is allocated.

use super::{DType, Element, Shape, Tensor};
use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// Free buffers of one element type, sorted by length.
#[derive(Default)]
pub struct Bin<T>(Vec<(usize, Vec<Arc<Vec<T>>>)>);

impl<T> Bin<T> {
    fn take(&mut self, len: usize) -> Option<Arc<Vec<T>>> {
        let at = self.0.binary_search_by_key(&len, |e| e.0).ok()?;
        self.0[at].1.pop()
    }

    fn give(&mut self, mut buf: Arc<Vec<T>>) {
        // A buffer that somebody still holds (a window, a reshaped copy) goes back with its last holder.
        if Arc::get_mut(&mut buf).is_none() {
            return;
        }
        let len = buf.len();
        match self.0.binary_search_by_key(&len, |e| e.0) {
            Ok(at) => self.0[at].1.push(buf),
            Err(at) => self.0.insert(at, (len, vec![buf])),
        }
    }
}

/// Recycles the buffers of a tape. Their old contents stay: an op writes every element of its outputs.
#[derive(Default)]
pub struct Pool {
    pub(super) f32: Bin<f32>,
    pub(super) f64: Bin<f64>,
    pub(super) i32: Bin<i32>,
    fresh: usize,
    poison: bool,
}

impl Pool {
    /// How many buffers had to be allocated because no free one fitted.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// Fill every buffer handed out with NaN, so that an element which an op forgets to write is seen.
    pub fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    fn take<T: Element>(&mut self, len: usize) -> Arc<Vec<T>> {
        let found = T::bin(self).take(len);
        let mut buf = found.unwrap_or_else(|| {
            self.fresh += 1;
            Arc::new(vec![T::default(); len])
        });
        if let Some(v) = Arc::get_mut(&mut buf).filter(|_| self.poison) {
            v.fill(T::POISON);
        }
        buf
    }

    /// A tensor of this shape; its contents are unspecified.
    pub fn get(&mut self, dtype: DType, shape: Shape) -> Tensor {
        let n = shape.len();
        let buf = match dtype {
            DType::F32 => f32::wrap(self.take(n)),
            DType::F64 => f64::wrap(self.take(n)),
            DType::I32 => i32::wrap(self.take(n)),
        };
        Tensor { shape, offset: 0, buf }
    }

    /// Give a tensor's buffer back for reuse.
    pub fn put(&mut self, t: Tensor) {
        match t.buf {
            super::Buf::F32(v) => self.f32.give(v),
            super::Buf::F64(v) => self.f64.give(v),
            super::Buf::I32(v) => self.i32.give(v),
        }
    }
}

/// What an op sees of the CPU: the pool, from which it borrows scratch memory.
#[derive(Default)]
pub struct Cpu {
    pool: RefCell<Pool>,
}

impl Cpu {
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
    buf: Option<Arc<Vec<T>>>,
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
            T::bin(&mut self.cpu.pool()).give(buf);
        }
    }
}
