//! A device in a build without the feature `cuda` has a name, and cannot be opened. There is
//! no value of [`Gpu`], so that no method here is ever called.

use super::{Arg, Device, Launch, Module, View};
use crate::dtype::DType;
use std::{marker::PhantomData, sync::Arc};

/// One stream of one device.
#[derive(Debug)]
pub enum Gpu {}

/// A piece of device memory.
#[derive(Debug)]
pub struct Block {
    gpu: Arc<Gpu>,
    pub(crate) sent: Option<Arc<[i32]>>,
}

/// Recorded work.
pub enum Graph {}

/// A place in a stream's work.
pub enum Mark {}

/// Host memory that the device copies from and to by itself.
pub struct Pinned<T> {
    gpu: Arc<Gpu>,
    of: PhantomData<T>,
}

/// Kernels compiled before a run begins: none.
pub mod ahead {
    /// The source of a file; there is none.
    pub enum Source {}

    /// To be called first of all by a program that trains on devices; see the module of the same name with the feature.
    pub fn helper() -> Option<std::process::ExitCode> {
        None
    }

    /// The sources that this work needs: none, and it is not done.
    pub fn rehearse(_target: Option<(super::Device, &'static str)>, _work: impl FnOnce()) -> Vec<Source> {
        vec![]
    }

    /// Compile none.
    pub fn compile_ahead(_sources: Vec<Source>, _told: &(dyn Fn(usize, usize) -> bool + Sync)) {}
}

/// Methods that are never called: there is no device.
macro_rules! never {
    ($of:ident: $($vis:vis fn $name:ident(&self$(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?;)*) => {
        #[allow(missing_docs, clippy::unused_self)]
        impl $of {
            $($vis fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { $(let _ = $arg;)* unreachable!("without a device") })*
        }
    };
}

impl Gpu {
    pub(crate) fn open(device: Device) -> Result<Gpu, String> {
        Err(format!("device {device}: this program was built without the feature 'cuda' of tapezoo"))
    }

    /// Record what `work` asks this stream for.
    pub fn capture(self: &Arc<Self>, _work: impl FnOnce()) -> Graph {
        match **self {}
    }

    pub(crate) fn allocate(self: &Arc<Self>, _bytes: usize) -> Option<Block> {
        match **self {}
    }

    pub(crate) fn upload<T>(&self, _ptr: u64, _from: &[T]) {
        match *self {}
    }

    pub(crate) fn download<T>(&self, _ptr: u64, _len: usize) -> Vec<T> {
        match *self {}
    }

    pub(crate) fn out_of_memory(&self, _bytes: usize, _held: usize) -> ! {
        match *self {}
    }
}

never! { Gpu:
    pub fn device(&self) -> Device;
    pub fn shared(&self) -> usize;
    pub fn name(&self) -> String;
    pub fn fault(&self) -> Option<&str>;
    pub fn elements(&self, n: usize) -> Launch;
    pub fn rows(&self, rows: usize, n: usize) -> (Launch, i32);
    pub fn synchronize(&self);
    pub fn launch(&self, module: &'static Module, kernel: &'static str, dtype: DType, at: Launch, args: &[Arg]);
    pub fn room(&self, module: &'static Module, kernel: &'static str, dtype: DType, at: Launch) -> usize;
    pub fn gemm(&self, alpha: f64, a: View, b: View, y: View, acc: bool, batch: usize);
    pub fn mark(&self) -> Mark;
    pub fn seconds(&self, from: &Mark, to: &Mark) -> f64;
    pub fn each_launch(&self, work: impl FnOnce()) -> Vec<(&'static str, f64)>;
    pub fn replay(&self, graph: &mut Graph);
    pub(crate) fn captures(&self) -> bool;
    pub(crate) fn lent(&self, block: &Block, bytes: usize);
    pub(crate) fn set_bytes(&self, ptr: u64, byte: u8, bytes: usize);
    pub(crate) fn set_words(&self, ptr: u64, word: i32, n: usize);
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize);
}

never! { Block:
    pub fn bytes(&self) -> usize;
    pub fn gpu(&self) -> &Arc<Gpu>;
    pub fn ptr(&self) -> u64;
}

#[allow(missing_docs, clippy::len_without_is_empty)]
impl<T> Pinned<T> {
    pub fn new(gpu: &Arc<Gpu>, _len: usize) -> Pinned<T> {
        match **gpu {}
    }

    pub fn len(&self) -> usize {
        match *self.gpu {}
    }

    pub fn write(&mut self, _from: &[T]) {
        match *self.gpu {}
    }

    pub fn read(&self) -> Vec<T> {
        match *self.gpu {}
    }

    pub(crate) fn upload(&self, _to: u64, _len: usize) {
        match *self.gpu {}
    }

    pub(crate) fn download(&mut self, _from: u64) {
        match *self.gpu {}
    }
}
