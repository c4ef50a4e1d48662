//! Launching a kernel, and the checks that a mistake in its arguments or its grid is found by.

use super::{Gpu, ahead, describe, emulator, lock};
use crate::{
    cuda::{Arg, Device, Launch, Module},
    dtype::DType,
};
use cudarc::driver::{result, sys};
use std::{ffi::c_void, sync::atomic::Ordering};

/// The most arguments of a kernel.
const MAX_ARGS: usize = 40;

/// A kernel on a device.
#[derive(Clone)]
pub(super) struct Function {
    handle: sys::CUfunction,
    /// How much dynamic shared memory it may use so far, and how much at most: what it declares itself counts too.
    shared: usize,
    most: usize,
    /// The size of each parameter; known in debug builds.
    params: Option<Vec<usize>>,
}
// SAFETY: a handle to something that the driver guards itself.
unsafe impl Send for Function {}

/// The shared memory that every kernel may use without asking, in bytes.
const FREE_SHARED: usize = 48 << 10;

impl Gpu {
    /// Launch `kernel` of `module`, compiled for `dtype`.
    ///
    /// # Panics
    /// When the launch is refused or the kernel fails; with both named. A real device tells of a failing kernel
    /// later, at the next thing that waits for it, unless `CUDA_LAUNCH_BLOCKING=1` is set.
    #[track_caller]
    pub fn launch(&self, module: &'static Module, kernel: &'static str, dtype: DType, launch: Launch, args: &[Arg]) {
        if launch.grid.contains(&0) || ahead::notes(self, module, kernel, dtype) {
            return;
        }
        self.bind();
        let function = self.function(module, kernel, dtype, launch.shared);
        let mut values = [[0u8; 64]; MAX_ARGS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        assert!(args.len() <= MAX_ARGS, "{kernel}: {} arguments, {MAX_ARGS} are possible", args.len());
        for (i, (arg, value)) in args.iter().zip(&mut values).enumerate() {
            let size = arg.write(dtype, value);
            if let Some(params) = &function.params {
                let wanted = params.get(i).copied();
                assert_eq!(Some(size), wanted, "{}: {kernel}: size of argument {i}, {arg:?}", module.name);
            }
            pointers[i] = value.as_mut_ptr().cast();
        }
        if let Some(params) = &function.params {
            assert_eq!(args.len(), params.len(), "{}: {kernel}: number of arguments", module.name);
        }
        let three = |v: [usize; 3]| {
            let [x, y, z] = v.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            (x, y, z)
        };
        let (grid, block) = (three(launch.grid), three(launch.block));
        let shared = u32::try_from(launch.shared).unwrap_or(u32::MAX);
        let from = self.times_launches().then(|| self.mark());
        // SAFETY: the function is loaded; the arguments have the sizes that it declares (compared in debug builds),
        // and the tensors behind them live on this stream.
        let done = unsafe {
            let run = if launch.together { result::launch_cooperative_kernel } else { result::launch_kernel };
            run(function.handle, grid, block, shared, self.raw_stream(), &mut pointers[..args.len()])
        };
        // Emulation fails at once: so it can say where. What is recorded runs later.
        let now = self.device == Device::Emulated && !self.capturing.load(Ordering::Relaxed);
        let done = if now { done.and_then(|()| self.stream.synchronize()) } else { done };
        if let Err(e) = done {
            let fault = if self.device == Device::Emulated { emulator::fault() } else { None };
            let why = fault.unwrap_or_else(|| describe(e));
            let Launch { grid, block, shared, .. } = launch;
            self.fail(format!(
                "device {}: kernel '{kernel}' of {} for {dtype}, grid {grid:?}, block {block:?}, {shared} bytes of \
                 shared memory: {why}",
                self.device, module.name
            ));
        }
        if let Some(from) = from {
            self.launched(kernel, from);
        }
    }

    /// How many blocks of this kernel the device runs at once.
    #[track_caller]
    pub fn room(&self, module: &'static Module, kernel: &'static str, dtype: DType, launch: Launch) -> usize {
        if ahead::notes(self, module, kernel, dtype) {
            return self.processors;
        }
        self.bind();
        let function = self.function(module, kernel, dtype, launch.shared);
        let threads = i32::try_from(launch.block.iter().product::<usize>()).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(function.handle, threads, launch.shared) };
        self.processors * usize::try_from(self.check(&format!("room for kernel '{kernel}'"), blocks)).unwrap_or(0)
    }

    #[track_caller]
    fn function(&self, module: &'static Module, kernel: &'static str, dtype: DType, shared: usize) -> Function {
        let key = (module.key(dtype), kernel);
        let known = lock(&self.functions).get(&key).cloned();
        let mut function = known.unwrap_or_else(|| {
            let handle = self.find(module, kernel, dtype);
            let own = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            let own = unsafe { result::function::get_function_attribute(handle, own) };
            let own = usize::try_from(self.check(&format!("kernel '{kernel}' of {}", module.name), own)).unwrap_or(0);
            let (shared, most) = (FREE_SHARED.saturating_sub(own), self.shared.saturating_sub(own));
            Function { handle, shared, most, params: cfg!(debug_assertions).then(|| params(handle)) }
        });
        if shared > function.most {
            self.fail(format!(
                "device {}: kernel '{kernel}' of {} needs {} KiB of shared memory for {dtype}, and a block may have {} \
                 there{}",
                self.device,
                module.name,
                shared.div_ceil(1024),
                function.most / 1024,
                if dtype == DType::F64 { "; --dtype f32 needs half of it" } else { "" }
            ));
        }
        if shared > function.shared {
            // All that it can have: the limit is the loaded kernel's, which other streams launch with other sizes.
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(function.most).unwrap_or(i32::MAX);
            // SAFETY: the function is loaded.
            let done = unsafe { result::function::set_function_attribute(function.handle, attribute, bytes) };
            self.check(&format!("kernel '{kernel}' of {} needs {shared} bytes of shared memory", module.name), done);
            function.shared = function.most;
        }
        lock(&self.functions).insert(key, function.clone());
        function
    }
}

/// The size of each of a kernel's parameters.
fn params(function: sys::CUfunction) -> Vec<usize> {
    let mut sizes = vec![];
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is loaded, and both results are ours.
        match unsafe { sys::cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size) } {
            sys::CUresult::CUDA_SUCCESS => sizes.push(size),
            _ => return sizes,
        }
    }
}
