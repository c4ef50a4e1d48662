//! Matrix products by cuBLAS, with sizes and strides as `kernels::gemm` has them.

use super::{Gpu, Turn, ahead, lock};
use crate::{
    cuda::{Device, View},
    dtype::DType,
};
use cudarc::{
    cublas::{result, sys},
    driver::result as driver,
};
use std::sync::MutexGuard;

/// A cuBLAS handle and its workspace: not to be used by two threads at once.
pub(super) struct Handle(sys::cublasHandle_t, Option<u64>);
// SAFETY: a handle may move between threads; a lock keeps them from using it at once.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // It waits for the whole device.
        let _turn = Turn::take();
        // SAFETY: made by `create_handle`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.0) };
        if let Some(workspace) = self.1 {
            // SAFETY: made by `malloc_sync`, freed once, and nobody else has it.
            let _ = unsafe { driver::free_sync(workspace) };
        }
    }
}

impl Gpu {
    /// y = alpha a b, or y += alpha a b when `acc`, for each of `batch` products.
    ///
    /// bf16 matrices are multiplied with f32 sums, into y in bf16 or f32; f32 ones in full single precision.
    ///
    /// # Panics
    /// When sizes or element types do not fit, a tensor is too short, a matrix has neither contiguous rows nor
    /// contiguous columns, or cuBLAS fails.
    #[track_caller]
    pub fn gemm(&self, alpha: f64, a: View, b: View, y: View, acc: bool, batch: usize) {
        let (ma, mb, my) = (a.mat, b.mat, y.mat);
        assert!(
            ma.rows == my.rows && mb.cols == my.cols && ma.cols == mb.rows,
            "gemm: {ma:?} times {mb:?} into {my:?}"
        );
        let fits = a.dtype == b.dtype && [a.dtype, a.dtype.real()].contains(&y.dtype);
        assert!(fits, "gemm: {} times {} into {}", a.dtype, b.dtype, y.dtype);
        for v in [a, b, y] {
            assert!(v.span(batch) <= v.len, "gemm: {batch} times {:?} does not fit in {} elements", v.mat, v.len);
        }
        if my.rows == 0 || my.cols == 0 || batch == 0 {
            return;
        }
        let layout = |v: &View| v.layout().unwrap_or_else(|| panic!("gemm: {:?} has no contiguous axis", v.mat));
        let (ldy, by_rows) = layout(&y);
        // cuBLAS counts along columns: a row-major y is to it yᵀ = bᵀ aᵀ.
        let (a, b, m, n) = if by_rows { (b.t(), a.t(), my.cols, my.rows) } else { (a, b, my.rows, my.cols) };
        let ((lda, ta), (ldb, tb)) = (layout(&a), layout(&b));
        let k = ma.cols;
        let int = |n: usize| i32::try_from(n).unwrap_or_else(|_| panic!("gemm: size {n} is past cuBLAS's 2^31"));
        let (m, n, k, batch) = (int(m), int(n), int(k), int(batch));
        let steps = [a.step, b.step, y.step].map(|s| s as i64);
        let op = |rows: bool| {
            if rows { sys::cublasOperation_t::CUBLAS_OP_T } else { sys::cublasOperation_t::CUBLAS_OP_N }
        };
        let (ta, tb) = (op(ta), op(tb));
        let beta = f64::from(u8::from(acc));
        let out = y.dtype;

        if ahead::rehearses() {
            return;
        }
        self.bind();
        let blas = self.ready_for_products();
        let h = blas.as_ref().map_or(std::ptr::null_mut(), |h| h.0);
        // SAFETY: all three spans were compared with their tensors, which live on the handle's stream.
        let done = unsafe {
            match a.dtype {
                DType::F64 => {
                    let (a, b, y) = (a.ptr as *const f64, b.ptr as *const f64, y.ptr as *mut f64);
                    let [sa, sb, sy] = steps;
                    result::dgemm_strided_batched(
                        h, ta, tb, m, n, k, &alpha, a, lda, sa, b, ldb, sb, &beta, y, ldy, sy, batch,
                    )
                }
                DType::F32 => {
                    let (alpha, beta) = (alpha as f32, beta as f32);
                    let (a, b, y) = (a.ptr as *const f32, b.ptr as *const f32, y.ptr as *mut f32);
                    let [sa, sb, sy] = steps;
                    result::sgemm_strided_batched(
                        h, ta, tb, m, n, k, &alpha, a, lda, sa, b, ldb, sb, &beta, y, ldy, sy, batch,
                    )
                }
                DType::BF16 => {
                    let (alpha, beta) = (alpha as f32, beta as f32);
                    let (alpha, beta) = ((&raw const alpha).cast(), (&raw const beta).cast());
                    let (a, b, y) = (a.ptr as *const _, b.ptr as *const _, y.ptr as *mut _);
                    let (t, [sa, sb, sy]) = (sys::cudaDataType_t::CUDA_R_16BF, steps);
                    let ty = if out == DType::F32 { sys::cudaDataType_t::CUDA_R_32F } else { t };
                    let (compute, algo) =
                        (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
                    result::gemm_strided_batched_ex(
                        h, ta, tb, m, n, k, alpha, a, t, lda, sa, b, t, ldb, sb, beta, y, ty, ldy, sy, batch, compute,
                        algo,
                    )
                }
                DType::I32 => panic!("gemm: integers take no part in arithmetic"),
            }
        };
        drop(blas);
        if let Err(e) = done {
            self.fail(format!("device {}: cuBLAS: {batch} products of {ma:?} and {mb:?}: {:?}", self.device, e.0));
        }
    }

    /// The handle, made if it is not there: that cannot be done while a graph is recorded.
    #[track_caller]
    pub(super) fn ready_for_products(&self) -> MutexGuard<'_, Option<Handle>> {
        let blas = lock(&self.blas);
        if blas.is_some() {
            return blas;
        }
        // The turn comes before the lock: a recording has it when it asks for this.
        drop(blas);
        let _turn = Turn::take();
        let mut blas = lock(&self.blas);
        blas.get_or_insert_with(|| self.make_handle());
        blas
    }

    #[track_caller]
    fn make_handle(&self) -> Handle {
        // The workspace is ours: memory that cuBLAS allocates while a graph is recorded would become a part of the graph,
        // where that is possible at all. NVIDIA advises this size for a Hopper. If memory is short, there is no workspace,
        // and products are as right.
        let bytes = if self.device == Device::Emulated { 1 << 16 } else { 32 << 20 };
        // Parts of a sum that is split are added in single precision, whatever the result is stored in.
        let exact = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        let made = result::create_handle().and_then(|h| {
            // SAFETY: the context is current, all are alive, and the stream outlives the handle: it is dropped after it (see
            // Gpu). Setting the stream takes back the workspace, so the stream is set first.
            unsafe {
                let h = Handle(h, driver::malloc_sync(bytes).ok());
                result::set_stream(h.0, self.raw_stream().cast())?;
                if let Some(at) = h.1 {
                    sys::cublasSetWorkspace_v2(h.0, at as *mut _, bytes).result()?;
                }
                sys::cublasSetMathMode(h.0, exact).result()?;
                Ok(h)
            }
        });
        made.unwrap_or_else(|e| self.fail(format!("device {}: cuBLAS does not start: {:?}", self.device, e.0)))
    }
}
