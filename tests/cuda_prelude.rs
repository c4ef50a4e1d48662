//! The prelude of all kernels, `src/cuda/prelude.cuh`: sums over warps and blocks, storage types, functions.
#![allow(clippy::unwrap_used)]

mod close;
mod device;

use close::all_close;
use device::device;
use tapezoo::{
    args,
    autograd::{Gen, Tape},
    cuda::{Launch, Module},
    tensor::{Cx, DType, Tensor},
};

static MODULE: Module = Module::new(
    "tests/prelude.cu",
    &[r#"
// Four rows: the sum, minus twice the sum, the maximum and minus the minimum of the block's elements, as each thread
// gets them. All calls use the same scratch memory, which the barriers at the end of each call allow.
extern "C" __global__ void __launch_bounds__(1024) over_a_block(const real* x, real* y) {
    __shared__ real scratch[32];
    const int t = threadIdx.x, n = blockDim.x;
    x += blockIdx.x * n;
    y += blockIdx.x * 4 * n;
    const real v = x[t];
    y[t] = block_sum(v, scratch);
    y[n + t] = block_sum(real(-2) * v, scratch);
    y[2 * n + t] = block_max(v, scratch);
    y[3 * n + t] = block_max(-v, scratch);
}

// The sum over each warp, and the largest number in it.
extern "C" __global__ void over_a_warp(const real* x, real* y) {
    const int t = threadIdx.x;
    y[t] = warp_sum(x[t]);
    y[blockDim.x + t] = warp_max(x[t]);
}

extern "C" __global__ void functions(const real* x, real* y, i64 n) {
    for (i64 i = thread(); i < n; i += threads()) {
        const real v = x[i];
        const real all[] = {sigmoid(v), softplus(v), normal_cdf(v), normal_pdf(v), select(v < 0.0, 0.25, v), real(is_finite(v / (v - 1.0)))};
        for (int k = 0; k < 6; k++) y[k * n + i] = all[k];
    }
}

// Stored as S, read back; then added to.
extern "C" __global__ void storage(const real* x, S* y, real* back, i64 n) {
    for (i64 i = thread(); i < n; i += threads()) {
        put(y + i, x[i], 0);
        back[i] = ld(y + i);
        put(y + i, real(1), 1);
    }
}
"#],
);

/// Runs `kernel` on the device with `x` and an output of `len` numbers, both `real`.
fn run(
    kernel: &'static str,
    dtype: DType,
    launch: Launch,
    x: &Tensor,
    len: usize,
    n: Option<usize>,
) -> Option<Vec<f64>> {
    let tape = Tape::new(device()?);
    let Cx::Cuda(cu) = tape.cx() else { panic!("not a CUDA device") };
    let x = x.to_device_as(tape.cx(), dtype.real());
    let mut y = cu.temp(dtype.real(), len);
    match n {
        Some(n) => cu.launch(&MODULE, kernel, dtype, launch, args![&x, &mut y, n]),
        None => cu.launch(&MODULE, kernel, dtype, launch, args![&x, &mut y]),
    }
    Some(y.to_f64())
}

#[track_caller]
fn close(got: &[f64], want: &[f64], dtype: DType) {
    let tolerance = if dtype == DType::F64 { 1e-13 } else { 1e-5 };
    all_close(got, want, tolerance, dtype);
}

#[test]
fn every_thread_of_a_block_gets_its_sum_and_its_largest() {
    for dtype in [DType::F64, DType::F32] {
        for (blocks, threads) in [(1, 32), (3, 64), (2, 256), (1, 1024)] {
            let x = Gen::new(threads as u64).normal([blocks * threads]);
            let launch = Launch::blocks(blocks, threads);
            let Some(got) = run("over_a_block", dtype, launch, &x, 4 * blocks * threads, None) else { return };
            for (x, got) in x.to_f64().chunks(threads).zip(got.chunks(4 * threads)) {
                let sum: f64 = x.iter().sum();
                let largest = |sign: f64| x.iter().map(|x| sign * x).fold(f64::NEG_INFINITY, f64::max);
                let want = [sum, -2.0 * sum, largest(1.0), largest(-1.0)];
                close(got, &want.map(|w| vec![w; threads]).concat(), dtype);
            }
        }
    }
}

#[test]
fn every_lane_of_a_warp_gets_its_sum_and_its_largest() {
    let x = Gen::new(1).normal([96]);
    let Some(got) = run("over_a_warp", DType::F64, Launch::blocks(1, 96), &x, 192, None) else { return };
    let each = |f: &dyn Fn(&[f64]) -> f64| x.to_f64().chunks(32).flat_map(|w| vec![f(w); 32]).collect::<Vec<_>>();
    let want = [each(&|w| w.iter().sum()), each(&|w| w.iter().copied().fold(f64::NEG_INFINITY, f64::max))];
    close(&got, &want.concat(), DType::F64);
}

#[test]
fn functions_are_those_of_the_cpu() {
    use tapezoo::kernels::math::m64;
    let x = Tensor::from_vec((-40..=40).map(|i| f64::from(i) * 0.75).chain([1.0, 700.0, -700.0]).collect(), [84]);
    for dtype in [DType::F64, DType::F32] {
        let Some(got) = run("functions", dtype, Launch::blocks(1, 32), &x, 6 * 84, Some(84)) else { return };
        let each = |f: &dyn Fn(f64) -> f64| x.to_f64().into_iter().map(f).collect::<Vec<_>>();
        let pdf = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        let want = [
            each(&m64::sigmoid),
            each(&m64::softplus),
            each(&|x| 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)),
            each(&pdf),
            each(&|x| if x < 0.0 { 0.25 } else { x }),
            each(&|x| if x == 1.0 { 0.0 } else { 1.0 }),
        ];
        close(&got, &want.concat(), dtype);
    }
}

#[test]
fn numbers_are_rounded_to_what_is_stored() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    let Cx::Cuda(cu) = tape.cx() else { panic!("not a CUDA device") };
    // Ties go to the even neighbour; the largest numbers become infinite; NaN stays NaN.
    let cases: [(f32, f32); 8] = [
        (1.0, 1.0),
        (1.0 + 1.0 / 256.0, 1.0),
        (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
        (1.0 + 1.01 / 256.0, 1.0 + 2.0 / 256.0),
        (-0.0, -0.0),
        (f32::MAX, f32::INFINITY),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
        (f32::NAN, f32::NAN),
    ];
    let n = cases.len();
    let x = Tensor::from_vec(cases.iter().map(|c| c.0).collect(), [n]).to_device(tape.cx());
    let (mut y, mut back) = (cu.temp(DType::BF16, n), cu.temp(DType::F32, n));
    cu.launch(&MODULE, "storage", DType::BF16, Launch::blocks(1, 32), args![&x, &mut y, &mut back, n]);
    let bits = |v: Vec<f64>| v.into_iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect::<Vec<_>>();
    assert_eq!(bits(back.to_f64()), bits(cases.iter().map(|c| f64::from(c.1)).collect()));
    assert_eq!(y.to_f64()[..3], [2.0, 2.0, 2.015625]);
}
