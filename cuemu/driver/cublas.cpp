// The stand-in libcublas.so: matrix products, column-major as in BLAS, with sums in double.
//
// Like a launch, a product goes through its stream's queue or capture. Leading dimensions are checked as cuBLAS
// checks them; when checking, every column read must lie in device memory and have been written.
#include <cstdio>
#include <cstring>

#include "driver.h"

using namespace driver;

struct Handle {
  Stream* stream;
  int mode = 0;
  void* workspace = nullptr;
};
enum { DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };  // of the math mode
enum { NOT_INITIALIZED = 1, INVALID = 7, EXECUTION_FAILED = 13, UNSUPPORTED = 15 };
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };

static size_t size_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

static double get(const char* p, int type, int64_t i) {
  if (type == F64) return ((const double*)p)[i];
  if (type == F32) return ((const float*)p)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)p)[i] << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static void put(char* p, int type, int64_t i, double value) {
  if (type == F64) {
    ((double*)p)[i] = value;
    return;
  }
  float f = (float)value;
  if (type == F32) {
    ((float*)p)[i] = f;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &f, 4);
  // round to nearest even; a NaN stays one
  ((uint16_t*)p)[i] = f != f ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Matrix {
  char* data;
  int type, transposed;
  int64_t leading, stride;
  double at(int64_t row, int64_t column) const { return get(data, type, transposed ? row * leading + column : column * leading + row); }
};
struct Product {
  int64_t m, n, k, batch;
  double alpha, beta;
  Matrix a, b, c;
};

static bool columns_ok(const Matrix& x, int64_t rows, int64_t columns, bool reads, const char* what) {
  std::string fault;
  for (int64_t j = 0; j < columns; j++)
    if (!cuemu::range_ok((uintptr_t)x.data + j * x.leading * size_of(x.type), rows * size_of(x.type), reads, fault)) return refuse(0, "cuBLAS, column %lld of %s: %s", (long long)j, what, fault.c_str()), false;
  return true;
}

static Result multiply(Product p) {
  std::vector<double> a(p.m * p.k), column(p.m);
  for (int64_t batch = 0; batch < p.batch; batch++) {
    if (cuemu::options.check) {
      if (p.alpha != 0 && p.k && !columns_ok(p.a, p.a.transposed ? p.k : p.m, p.a.transposed ? p.m : p.k, true, "A")) return ILLEGAL_ADDRESS;
      if (p.alpha != 0 && p.k && !columns_ok(p.b, p.b.transposed ? p.n : p.k, p.b.transposed ? p.k : p.n, true, "B")) return ILLEGAL_ADDRESS;
      if (!columns_ok(p.c, p.m, p.n, p.beta != 0, "C")) return ILLEGAL_ADDRESS;
    }
    for (int64_t l = 0; l < p.k; l++)
      for (int64_t i = 0; i < p.m; i++) a[l * p.m + i] = p.a.at(i, l);
    for (int64_t j = 0; j < p.n; j++) {
      std::fill(column.begin(), column.end(), 0.0);
      for (int64_t l = 0; l < p.k; l++) {
        const double b = p.b.at(l, j), *al = &a[l * p.m];
        for (int64_t i = 0; i < p.m; i++) column[i] += al[i] * b;
      }
      for (int64_t i = 0; i < p.m; i++) put(p.c.data, p.c.type, j * p.c.leading + i, p.alpha * column[i] + (p.beta != 0 ? p.beta * p.c.at(i, j) : 0));
      cuemu::mark_initialised((uintptr_t)p.c.data + j * p.c.leading * size_of(p.c.type), p.m * size_of(p.c.type));
    }
    for (Matrix* x : {&p.a, &p.b, &p.c}) x->data += x->stride * size_of(x->type);
  }
  return SUCCESS;
}

static int product(Handle* h, const Product& p) {
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  if (!h) return NOT_INITIALIZED;
  if (sticky) return EXECUTION_FAILED;
  auto too_small = [](const char* name, const Matrix& x, int64_t rows) { return x.leading < (rows > 1 ? rows : 1) ? refuse(INVALID, "cuBLAS: ld%s = %lld, its columns have %lld elements", name, (long long)x.leading, (long long)rows) : 0; };
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) return refuse(INVALID, "cuBLAS: m = %lld, n = %lld, k = %lld, batch = %lld", (long long)p.m, (long long)p.n, (long long)p.k, (long long)p.batch);
  if (int r = too_small("a", p.a, p.a.transposed ? p.k : p.m)) return r;
  if (int r = too_small("b", p.b, p.b.transposed ? p.n : p.k)) return r;
  if (int r = too_small("c", p.c, p.m)) return r;
  for (const Matrix* x : {&p.a, &p.b, &p.c})
    if (x->type != F32 && x->type != F64 && x->type != BF16) return refuse(UNSUPPORTED, "cuBLAS: data type %d", x->type);
  // cuBLAS may split a long sum and would add its parts in bf16.
  if (p.c.type == BF16 && !(h->mode & DISALLOW_REDUCED_PRECISION_REDUCTION)) return refuse(UNSUPPORTED, "cuBLAS: a bf16 product whose parts may be added in bf16 (cublasSetMathMode)");
  // Memory that cuBLAS takes for itself then would become a part of the graph.
  if (h->stream && h->stream->capturing && !h->workspace) return refuse(UNSUPPORTED, "cuBLAS: a product is captured without a workspace (cublasSetWorkspace)");
  if (!p.m || !p.n || !p.batch || cuemu::options.record) return SUCCESS;
  return submit(h->stream, [p] { return multiply(p); });
}

CUEMU_API int cublasCreate_v2(Handle** h) { return *h = new Handle{nullptr}, SUCCESS; }
// It waits for the whole device, which spoils what any stream captures meanwhile.
CUEMU_API int cublasDestroy_v2(Handle* h) {
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  driver::not_while_capturing("cublasDestroy");
  return delete h, SUCCESS;
}
CUEMU_API int cublasSetStream_v2(Handle* h, Stream* s) { return h->stream = s, h->workspace = nullptr, SUCCESS; }  // it takes the workspace back
CUEMU_API int cublasSetMathMode(Handle* h, int mode) { return h->mode = mode, SUCCESS; }
CUEMU_API int cublasSetWorkspace_v2(Handle* h, void* workspace, size_t) { return h->workspace = workspace, SUCCESS; }
CUEMU_API int cublasSetPointerMode_v2(Handle*, int mode) { return mode ? refuse(UNSUPPORTED, "cuBLAS: scalars on the device") : SUCCESS; }
CUEMU_API int cublasGetPointerMode_v2(Handle*, int* mode) { return *mode = 0, SUCCESS; }
CUEMU_API int cublasSetAtomicsMode(Handle*, int) { return SUCCESS; }
CUEMU_API int cublasGetVersion_v2(Handle*, int* version) { return *version = 130000, SUCCESS; }
CUEMU_API const char* cublasGetStatusName(int s) { return s == SUCCESS ? "CUBLAS_STATUS_SUCCESS" : s == INVALID ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_EXECUTION_FAILED"; }
CUEMU_API const char* cublasGetStatusString(int s) { return cublasGetStatusName(s); }

#define GEMM(PREFIX, T, TYPE)                                                                                                                                                   \
  CUEMU_API int cublas##PREFIX##gemmStridedBatched(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, long long sa, const T* b, int ldb,      \
                                                   long long sb, const T* beta, T* c, int ldc, long long sc, int batch) {                                                       \
    return product(h, {m, n, k, batch, *alpha, *beta, {(char*)a, TYPE, ta, lda, sa}, {(char*)b, TYPE, tb, ldb, sb}, {(char*)c, TYPE, 0, ldc, sc}});                             \
  }                                                                                                                                                                             \
  CUEMU_API int cublas##PREFIX##gemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) { \
    return cublas##PREFIX##gemmStridedBatched(h, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);                                                             \
  }
GEMM(S, float, F32)
GEMM(D, double, F64)

// The scalars have the compute type: 70 and 71 are CUBLAS_COMPUTE_64F and its pedantic form.
CUEMU_API int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, long long sa, const void* b, int bt, int ldb, long long sb,
                                         const void* beta, void* c, int ct, int ldc, long long sc, int batch, int compute, int) {
  const bool f64 = compute == 70 || compute == 71;
  const double al = f64 ? *(const double*)alpha : *(const float*)alpha, be = f64 ? *(const double*)beta : *(const float*)beta;
  return product(h, {m, n, k, batch, al, be, {(char*)a, at, ta, lda, sa}, {(char*)b, bt, tb, ldb, sb}, {(char*)c, ct, 0, ldc, sc}});
}
CUEMU_API int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, const void* b, int bt, int ldb, const void* beta, void* c, int ct, int ldc,
                           int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, compute, algorithm);
}
