//! Shared by the tests of the emulator: compile a text, launch a kernel on vectors, get the fault's text.
#![allow(dead_code, reason = "not every test file needs all of it")]

use bytemuck::Pod;
use cudarc::driver::{CudaContext, result, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tapezoo::cuda::emulator::{self, Options, Order};

/// The orders that every kernel is tried in.
pub const ORDERS: [Order; 4] = [Order::Forward, Order::Reverse, Order::Random(1), Order::Random(2)];

/// The emulator, for one test at a time: its options and faults belong to the whole process.
pub struct Machine {
    pub context: Arc<CudaContext>,
    _alone: MutexGuard<'static, ()>,
}

/// An argument of a kernel. Vectors are copied to the device before the launch and back after it.
pub enum Arg<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I32(&'a mut [i32]),
    U16(&'a mut [u16]),
    /// Unwritten device memory of this many bytes.
    Unwritten(usize),
    Null,
    Int(i32),
    Float(f32),
    Double(f64),
    Bytes(Vec<u8>),
}

/// A kernel launch; `shared` bytes of dynamic shared memory; `together`: cooperative.
#[derive(Clone, Copy)]
pub struct Launch {
    pub grid: (u32, u32, u32),
    pub block: (u32, u32, u32),
    pub shared: u32,
    pub together: bool,
}

pub fn launch(blocks: u32, threads: u32) -> Launch {
    Launch { grid: (blocks, 1, 1), block: (threads, 1, 1), shared: 0, together: false }
}

/// The emulator; without a C++ compiler `None`, and a line that says so.
pub fn machine() -> Option<Machine> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = match emulator::libraries() {
        Ok(dir) => dir,
        Err(why) => {
            crate::device::skipped(&why);
            return None;
        }
    };
    for name in ["libcuda.so", "libnvrtc.so", "libcublas.so"] {
        // SAFETY: our own libraries, whose initialisers only read the environment.
        std::mem::forget(unsafe { libloading::Library::new(dir.join(name)) }.unwrap());
    }
    emulator::reset();
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    let machine = Machine { context, _alone: alone };
    machine.set(false, Order::Forward);
    Some(machine)
}

pub struct Module(sys::CUmodule);

impl Module {
    pub fn function(&self, name: &str) -> sys::CUfunction {
        // SAFETY: modules are never unloaded.
        unsafe { result::module::get_function(self.0, CString::new(name).unwrap()) }.unwrap()
    }
}

/// The image of a text, or the compiler's complaints.
pub fn compile(source: &str, name: &str, expressions: &[&str]) -> Result<Vec<u8>, String> {
    let c = |s: &str| CString::new(s).unwrap();
    let program = nvrtc::create_program(&c(source), Some(&c(name))).unwrap();
    // SAFETY: the program was just made; the buffers have the sizes that NVRTC says.
    unsafe {
        for e in expressions {
            assert_eq!(nvrtc_sys::nvrtcAddNameExpression(program, c(e).as_ptr()).result(), Ok(()));
        }
        let done = nvrtc::compile_program(program, &["--gpu-architecture=sm_90"]);
        if done.is_err() {
            let log = nvrtc::get_program_log(program).unwrap();
            return Err(log.iter().map(|&c| c as u8 as char).filter(|&c| c != '\0').collect());
        }
        let mut size = 0;
        assert_eq!(nvrtc_sys::nvrtcGetCUBINSize(program, &mut size).result(), Ok(()));
        let mut image = vec![0u8; size];
        assert_eq!(nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result(), Ok(()));
        nvrtc::destroy_program(program).unwrap();
        Ok(image)
    }
}

impl Machine {
    /// Set checks and the order of threads, without counters, for all that is compiled and allocated from now on.
    pub fn set(&self, check: bool, order: Order) {
        emulator::count(false);
        emulator::configure(Options { check, order, late: false }).unwrap();
    }

    pub fn module(&self, source: &str, name: &str) -> Module {
        self.module_with(source, name, &[])
    }

    pub fn module_with(&self, source: &str, name: &str, expressions: &[&str]) -> Module {
        let image = compile(source, name, expressions).unwrap();
        // SAFETY: the image is what NVRTC made.
        Module(unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap())
    }

    /// Launch, wait, copy back; the fault's text if the kernel faults, the driver's error if it refuses.
    pub fn run(&self, module: &Module, kernel: &str, l: Launch, args: &mut [Arg]) -> Result<(), String> {
        let mut values: Vec<Vec<u8>> = vec![];
        let mut buffers = vec![];
        for arg in args.iter_mut() {
            let mut device = |bytes: &[u8], written: bool| {
                // SAFETY: a live allocation of this size, freed below.
                let p = unsafe { result::malloc_sync(bytes.len()) }.unwrap();
                if written {
                    // SAFETY: as above.
                    unsafe { result::memcpy_htod_sync(p, bytes) }.unwrap();
                }
                buffers.push(p);
                bytemuck::bytes_of(&p).to_vec()
            };
            values.push(match arg {
                Arg::F32(v) => device(bytes(v), true),
                Arg::F64(v) => device(bytes(v), true),
                Arg::I32(v) => device(bytes(v), true),
                Arg::U16(v) => device(bytes(v), true),
                Arg::Unwritten(n) => device(&vec![0; *n], false),
                Arg::Null => vec![0; 8],
                Arg::Int(x) => bytemuck::bytes_of(x).to_vec(),
                Arg::Float(x) => bytemuck::bytes_of(x).to_vec(),
                Arg::Double(x) => bytemuck::bytes_of(x).to_vec(),
                Arg::Bytes(b) => b.clone(),
            });
        }
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        let f = module.function(kernel);
        let run = if l.together { result::launch_cooperative_kernel } else { result::launch_kernel };
        // SAFETY: the arguments are those that the kernel declares; that they are used well is what is tested.
        let launched = unsafe { run(f, l.grid, l.block, l.shared, std::ptr::null_mut(), &mut pointers) };
        let waited = self.context.synchronize();
        let fault = emulator::fault();
        emulator::reset();
        let mut given = buffers.iter();
        for arg in args.iter_mut() {
            let mut back = |bytes: &mut [u8]| {
                // SAFETY: the allocation of this argument, of this size.
                unsafe { result::memcpy_dtoh_sync(bytes, *given.next().unwrap()) }.unwrap();
            };
            match arg {
                Arg::F32(v) => back(bytes_mut(v)),
                Arg::F64(v) => back(bytes_mut(v)),
                Arg::I32(v) => back(bytes_mut(v)),
                Arg::U16(v) => back(bytes_mut(v)),
                Arg::Unwritten(_) => drop(given.next()),
                _ => {}
            }
        }
        for p in buffers {
            // SAFETY: allocated above, used no more.
            unsafe { result::free_sync(p) }.unwrap();
        }
        launched.and(waited).map_err(|e| fault.unwrap_or_else(|| format!("{e:?}")))
    }
}

pub fn bytes<T: Pod>(v: &[T]) -> &[u8] {
    bytemuck::cast_slice(v)
}

pub fn bytes_mut<T: Pod>(v: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(v)
}
