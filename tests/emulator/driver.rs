//! The emulator's driver and cuBLAS: their results and refusals.

use super::{
    BUGS, GOOD, close, cumulated,
    machine::{self, Arg, Launch, bytes, launch, machine},
    noise,
};
use crate::texts::contains;
use approx::abs_diff_eq;
use cudarc::driver::{result, sys};
use tapezoo::cuda::emulator::{self, Options, Order};

#[test]
fn arguments_by_value_bounds_and_parameter_sizes() {
    let Some(m) = machine() else { return };
    let module = m.module(GOOD, "good.cu");
    let sizes: Vec<u8> = bytes(&[1i64, 10, 100]).to_vec();
    let mut y = vec![0f32];
    let mut args = [Arg::F32(&mut y), Arg::Bytes(sizes), Arg::Double(0.25), Arg::Bytes(vec![2]), Arg::Float(0.5)];
    m.run(&module, "by_value", launch(1, 32), &mut args).unwrap();
    assert_eq!(y, [114.75]);

    let params = |kernel: &str| {
        let f = module.function(kernel);
        let info = |i| {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is loaded.
            let r = unsafe { sys::cuFuncGetParamInfo(f, i, &mut offset, &mut size) };
            r.result().ok().map(|()| (offset, size))
        };
        (0..).map_while(info).collect::<Vec<_>>()
    };
    assert_eq!(params("by_value"), [(0, 8), (8, 24), (32, 8), (40, 1), (44, 4)]);
    assert_eq!(params("scale_f64"), [(0, 8), (8, 8), (16, 4)]);

    // __launch_bounds__, the device's own limit, and dynamic shared memory beyond the limit set.
    let mut x = vec![1f32; 8];
    let mut scale = |l| m.run(&module, "scale_f32", l, &mut [Arg::F32(&mut x), Arg::Float(2.0), Arg::Int(8)]);
    scale(launch(1, 64)).unwrap();
    contains(scale(launch(1, 65)).unwrap_err(), "OUT_OF_RESOURCES");
    contains(scale(launch(0, 32)).unwrap_err(), "INVALID_VALUE");
    let big = Launch { shared: 50_000, ..launch(1, 32) };
    contains(scale(big).unwrap_err(), "INVALID_VALUE");
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let raise = |n| unsafe { result::function::set_function_attribute(module.function("scale_f32"), attribute, n) };
    // The arrays of `tiled` count for each kernel of the file.
    raise(232_448 - 16 * 17 * 4).unwrap();
    assert!(raise(232_448 - 16 * 17 * 4 + 1).is_err());
    assert_eq!(x, [2.0; 8]);
}

#[test]
fn static_shared_memory_counts_towards_the_limits() {
    use sys::CUfunction_attribute::{
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as LIMIT, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as OWN,
    };
    const SOURCE: &str = "__device__ float turned(float x) {
            __shared__ float s[32];
            s[threadIdx.x] = x;
            __syncthreads();
            return s[31 - threadIdx.x];
        }
        extern \"C\" __global__ void turn(float* x) { x[threadIdx.x] = turned(x[threadIdx.x]); }
        extern \"C\" __global__ void twice(float* x) {
            __shared__ double more[32];
            more[threadIdx.x] = turned(x[threadIdx.x]);
            x[threadIdx.x] = turned(more[threadIdx.x]);
        }";
    let Some(m) = machine() else { return };
    let module = m.module(SOURCE, "turn.cu");
    // SAFETY: the function is loaded.
    let get =
        |kernel, attribute| unsafe { result::function::get_function_attribute(module.function(kernel), attribute) };
    let own = 32 * 4 + 32 * 8;
    assert_eq!(["turn", "twice"].map(|kernel| get(kernel, OWN).unwrap()), [128, own]);
    assert_eq!(get("twice", LIMIT), Ok(49_152 - own));
    let mut x = vec![1f32; 32];
    let mut twice = |shared: i32| {
        let l = Launch { shared: u32::try_from(shared).unwrap(), ..launch(1, 32) };
        m.run(&module, "twice", l, &mut [Arg::F32(&mut x)])
    };
    twice(49_152 - own).unwrap();
    contains(twice(49_152 - own + 1).unwrap_err(), "INVALID_VALUE");
    // SAFETY: as above.
    let raise = |n| unsafe { result::function::set_function_attribute(module.function("twice"), LIMIT, n) };
    assert!(raise(232_448 - own + 1).is_err());
    raise(232_448 - own).unwrap();
    twice(232_448 - own).unwrap();
    assert_eq!(x, [1.0; 32]);
}

#[test]
fn what_does_not_compile_says_where() {
    let Some(m) = machine() else { return };
    let error =
        machine::compile("\n#line 7 \"scan.cu\"\nextern \"C\" __global__ void f(float* y) { y[0] = z; }", "x.cu", &[]);
    let error = error.unwrap_err();
    assert!(error.contains("scan.cu:7") && error.contains('z'), "{error}");
    // The C library is not available, as with NVRTC.
    assert!(machine::compile("extern \"C\" __global__ void f(float* y) { y[0] = INFINITY; }", "x.cu", &[]).is_err());
    // An invalid image. SAFETY: the driver reads up to the zero.
    assert!(unsafe { result::module::load_data(c"no module".as_ptr().cast()) }.is_err());
    drop(m);
}

#[test]
fn memory_is_guarded() {
    let Some(m) = machine() else { return };
    m.set(true, Order::Forward);
    let before = emulator::memory();
    // SAFETY: the driver refuses all that is wrong here.
    unsafe {
        let p = result::malloc_sync(100).unwrap();
        assert_eq!(emulator::memory(), (before.0 + 1, before.1 + 100));
        let mut host = vec![0u8; 101];
        assert!(result::memcpy_htod_sync(p, &host).is_err(), "one byte too many");
        result::memcpy_htod_sync(p, &host[..100]).unwrap();
        assert!(result::memcpy_dtoh_sync(&mut host, p).is_err());
        assert!(result::memcpy_dtod_sync(p + 10, p, 20).is_err(), "overlap");
        assert!(result::memset_d8_sync(p + 90, 1, 11).is_err());
        assert!(result::free_sync(p + 4).is_err(), "not its start");
        result::free_sync(p).unwrap();
        assert!(result::free_sync(p).is_err(), "twice");
        assert_eq!(emulator::memory(), before);
        let refused = result::malloc_sync(5 << 30).unwrap_err();
        assert_eq!(refused.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // A buffer that a pool lends again is shorter, and its contents count as unwritten.
    let module = m.module(BUGS, "bugs.cu");
    let copy = module.function("uninitialised_device");
    // SAFETY: as above; the kernel reads and writes 64 floats.
    let run = |x: u64, y: u64| unsafe {
        let (mut x, mut y) = (x, y);
        let mut args = [(&raw mut x).cast(), (&raw mut y).cast()];
        result::launch_kernel(copy, (1, 1, 1), (64, 1, 1), 0, std::ptr::null_mut(), &mut args).unwrap();
        let done = m.context.synchronize();
        let fault = emulator::fault();
        emulator::reset();
        done.map_err(|_| fault.unwrap())
    };
    unsafe {
        let (x, y) = (result::malloc_sync(1024).unwrap(), result::malloc_sync(1024).unwrap());
        result::memset_d8_sync(x, 0, 1024).unwrap();
        run(x, y).unwrap();
        emulator::lend(std::ptr::null_mut(), x, 256);
        contains(run(x, y).unwrap_err(), "uninitialised");
        result::memset_d8_sync(x, 0, 256).unwrap();
        run(x, y).unwrap();
        emulator::lend(std::ptr::null_mut(), y, 252);
        contains(run(x, y).unwrap_err(), "4 bytes past the end of a buffer of 252 bytes");
        result::free_sync(x).unwrap();
        contains(run(x, y).unwrap_err(), "has been freed");
        result::free_sync(y).unwrap();
    }
}

#[test]
fn a_captured_step_is_replayed() {
    let Some(m) = machine() else { return };
    let module = m.module(GOOD, "good.cu");
    let stream = m.context.new_stream().unwrap();
    let f = module.function("scale_f32");
    // SAFETY: the buffers live to the end of the test.
    unsafe {
        let s = stream.cu_stream();
        let (p, q) = (result::malloc_sync(16).unwrap(), result::malloc_sync(16).unwrap());
        result::memcpy_htod_sync(p, bytes(&[1f32; 4])).unwrap();
        result::stream::begin_capture(s, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        {
            let (mut x, mut by, mut n) = (p, 2f32, 4i32);
            let mut args = [(&raw mut x).cast(), (&raw mut by).cast(), (&raw mut n).cast()];
            result::launch_kernel(f, (1, 1, 1), (32, 1, 1), 0, s, &mut args).unwrap();
            result::memcpy_dtod_async(q, p, 16, s).unwrap();
        }
        let graph = result::stream::end_capture(s).unwrap();
        let read = |p| {
            let mut v = [0f32; 4];
            result::memcpy_dtoh_sync(machine::bytes_mut(&mut v), p).unwrap();
            v[3]
        };
        assert_eq!(read(p), 1.0, "a capture runs nothing");
        let exec = result::graph::instantiate(
            graph,
            sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        )
        .unwrap();
        for _ in 0..3 {
            result::graph::launch(exec, s).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!((read(p), read(q)), (8.0, 8.0));

        // A forbidden call invalidates a capture.
        result::stream::begin_capture(s, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        assert!(stream.synchronize().is_err());
        assert!(result::malloc_async(s, 16).is_err());
        assert!(result::stream::end_capture(s).is_err());
        result::free_sync(p).unwrap();
        result::free_sync(q).unwrap();
    }
}

#[test]
fn late_work_shows_a_missing_synchronisation() {
    let Some(m) = machine() else { return };
    let stream = m.context.new_stream().unwrap();
    // SAFETY: the buffers live until the copies are done.
    unsafe {
        let device = result::malloc_sync(4).unwrap();
        result::memcpy_htod_sync(device, bytes(&[7f32])).unwrap();
        let host = result::malloc_host(4, 0).unwrap().cast::<f32>();
        emulator::configure(Options { check: false, order: Order::Forward, late: true }).unwrap();
        *host = 0.0;
        result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(host, 1), device, stream.cu_stream()).unwrap();
        let at_once = host.read_volatile();
        stream.synchronize().unwrap();
        assert_eq!((at_once, host.read_volatile()), (0.0, 7.0));
        m.set(false, Order::Forward);
        result::free_host(host.cast()).unwrap();
        result::free_sync(device).unwrap();
    }
}

#[test]
fn products_agree_with_the_sum_over_k() {
    use cudarc::cublas::{result as blas, sys::cublasOperation_t as Op};
    let Some(m) = machine() else { return };
    m.set(true, Order::Forward);
    let handle = blas::create_handle().unwrap();
    let (rows, cols, inner) = (5usize, 4usize, 7usize);
    let (a, b) = (noise(rows * inner), noise(inner * cols));
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        let (lda, ldb) = (if ta { inner } else { rows }, if tb { cols } else { inner });
        let op = |t| if t { Op::CUBLAS_OP_T } else { Op::CUBLAS_OP_N };
        // SAFETY: sizes as declared.
        unsafe {
            let upload = |v: &[f32]| {
                let p = result::malloc_sync(4 * v.len()).unwrap();
                result::memcpy_htod_sync(p, bytes(v)).unwrap();
                p
            };
            let (pa, pb, pc) = (upload(&a), upload(&b), upload(&vec![1f32; rows * cols]));
            let gemm = |ldc: usize, a: u64| {
                let (m, n, k) = (rows as i32, cols as i32, inner as i32);
                let (a, b, c) = (a as *const f32, pb as *const f32, pc as *mut f32);
                blas::sgemm(handle, op(ta), op(tb), m, n, k, &2.0, a, lda as i32, b, ldb as i32, &0.5, c, ldc as i32)
            };
            gemm(rows, pa).unwrap();
            assert!(gemm(rows - 1, pa).is_err(), "ldc < m");
            let mut c = vec![0f32; rows * cols];
            result::memcpy_dtoh_sync(machine::bytes_mut(&mut c), pc).unwrap();
            for i in 0..rows * cols {
                let (row, col) = (i % rows, i / rows);
                let at = |k: usize| if ta { a[row * lda + k] } else { a[k * lda + row] };
                let bt = |k: usize| if tb { b[k * ldb + col] } else { b[col * ldb + k] };
                let want = 2.0 * (0..inner).map(|k| at(k) * bt(k)).sum::<f32>() + 0.5;
                assert!(abs_diff_eq!(c[i], want, epsilon = 1e-5), "{} for {want}", c[i]);
            }
            gemm(rows, pb + 4 * 1000).unwrap();
            assert!(m.context.synchronize().is_err(), "a matrix outside its buffer");
            emulator::reset();
            [pa, pb, pc].into_iter().for_each(|p| result::free_sync(p).unwrap());
        }
    }
}

#[test]
fn threads_of_the_host_may_launch_at_once() {
    let Some(m) = machine() else { return };
    let module = m.module(GOOD, "good.cu").function("scan_rows") as usize;
    std::thread::scope(|scope| {
        for t in 0..4 {
            let context = m.context.clone();
            scope.spawn(move || {
                context.bind_to_thread().unwrap();
                for round in 0..5 {
                    let n = 300 + 17 * t + round;
                    let x = noise(3 * n);
                    let mut y = vec![0f32; 3 * n];
                    // SAFETY: sizes as declared.
                    unsafe {
                        let (mut p, mut q, mut len) =
                            (result::malloc_sync(12 * n).unwrap(), result::malloc_sync(12 * n).unwrap(), n as i32);
                        result::memcpy_htod_sync(p, bytes(&x)).unwrap();
                        let mut args = [(&raw mut p).cast(), (&raw mut q).cast(), (&raw mut len).cast()];
                        let f = module as sys::CUfunction;
                        result::launch_kernel(f, (3, 1, 1), (64, 1, 1), 0, std::ptr::null_mut(), &mut args).unwrap();
                        result::memcpy_dtoh_sync(machine::bytes_mut(&mut y), q).unwrap();
                        result::free_sync(p).unwrap();
                        result::free_sync(q).unwrap();
                    }
                    assert!(close(&y, &cumulated(&x, n), 1e-3), "{y:?}, not {:?}", cumulated(&x, n));
                }
            });
        }
    });
}

/// Not a test by itself: the next test starts it as a process.
#[test]
#[ignore = "leaves memory behind on purpose"]
fn leaves_memory_behind() {
    let Some(_m) = machine() else { return };
    // SAFETY: never used.
    unsafe { [result::malloc_sync(100).unwrap(), result::malloc_sync(28).unwrap()] };
}

#[test]
fn leaks_are_reported_at_the_end() {
    if machine().is_none() {
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "driver::leaves_memory_behind"]).env("TAPEZOO_EMU_LEAKS", "1");
    let said = child.output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("2 never freed (bytes: ") && said.contains("100") && said.contains("28"), "{said}");
}
