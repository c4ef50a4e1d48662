// Mathematics of device code: the names CUDA has without a header, on the host's libm.
//
// As on the device, `exp(float)` is the float function. The fast approximations (`__expf` …) are exact here, and
// g++ does not fuse `a * b + c` unless told: compare results with tolerances, or write `fmaf` where bits matter.
#pragma once

// CUEMU_SEEN: the result of what the counters (count.h) take for a function, as exp is.
#define CUEMU_MATH1(F)                                                   \
  inline float F##f(float x) { return CUEMU_SEEN(__builtin_##F##f(x)); } \
  inline float F(float x) { return CUEMU_SEEN(__builtin_##F##f(x)); }    \
  inline double F(double x) { return CUEMU_SEEN(__builtin_##F(x)); }
#define CUEMU_MATH2(F)                                                               \
  inline float F##f(float x, float y) { return CUEMU_SEEN(__builtin_##F##f(x, y)); } \
  inline float F(float x, float y) { return CUEMU_SEEN(__builtin_##F##f(x, y)); }    \
  inline double F(double x, double y) { return CUEMU_SEEN(__builtin_##F(x, y)); }
#define CUEMU_SEEN(x) cuemu::counted(x)
CUEMU_MATH1(exp) CUEMU_MATH1(exp2) CUEMU_MATH1(expm1) CUEMU_MATH1(log) CUEMU_MATH1(log2) CUEMU_MATH1(log10) CUEMU_MATH1(log1p)
CUEMU_MATH1(sin) CUEMU_MATH1(cos) CUEMU_MATH1(tan) CUEMU_MATH1(asin) CUEMU_MATH1(acos) CUEMU_MATH1(atan)
CUEMU_MATH1(sinh) CUEMU_MATH1(cosh) CUEMU_MATH1(tanh) CUEMU_MATH1(asinh) CUEMU_MATH1(acosh) CUEMU_MATH1(atanh)
CUEMU_MATH1(sqrt) CUEMU_MATH1(cbrt) CUEMU_MATH1(erf) CUEMU_MATH1(erfc) CUEMU_MATH1(tgamma) CUEMU_MATH1(lgamma)
CUEMU_MATH2(pow) CUEMU_MATH2(fmod) CUEMU_MATH2(atan2) CUEMU_MATH2(hypot)
#undef CUEMU_SEEN
#define CUEMU_SEEN(x) x
CUEMU_MATH1(floor) CUEMU_MATH1(ceil) CUEMU_MATH1(trunc) CUEMU_MATH1(round) CUEMU_MATH1(rint) CUEMU_MATH1(nearbyint) CUEMU_MATH1(fabs)
CUEMU_MATH2(fmin) CUEMU_MATH2(fmax) CUEMU_MATH2(copysign) CUEMU_MATH2(fdim)
#undef CUEMU_MATH1
#undef CUEMU_MATH2
#undef CUEMU_SEEN

inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
inline float frexp(float x, int* e) { return __builtin_frexpf(x, e); }
inline double frexp(double x, int* e) { return __builtin_frexp(x, e); }
inline int ilogb(float x) { return __builtin_ilogbf(x); }
inline int ilogb(double x) { return __builtin_ilogb(x); }
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincos(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }
inline float sinpif(float x) { return (float)sin(3.14159265358979323846 * x); }
inline float cospif(float x) { return (float)cos(3.14159265358979323846 * x); }
inline double sinpi(double x) { return sin(3.14159265358979323846 * x); }
inline double cospi(double x) { return cos(3.14159265358979323846 * x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }
inline bool signbit(double x) { return __builtin_signbit(x); }

inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }

// The arithmetic conversions decide the common type, as on the device: min(int, unsigned) is unsigned.
template <class A, class B> constexpr auto min(A a, B b) { decltype(a + b) x = a, y = b; return y < x ? y : x; }
template <class A, class B> constexpr auto max(A a, B b) { decltype(a + b) x = a, y = b; return x < y ? y : x; }
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }

// ---- fast approximations and directed rounding, here exact or to nearest
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frsqrt_rn(float a) { return rsqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }

// ---- bits
namespace cuemu {
template <class To, class From> inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace cuemu
inline int __float_as_int(float x) { return cuemu::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cuemu::bits<unsigned>(x); }
inline float __int_as_float(int x) { return cuemu::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cuemu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cuemu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cuemu::bits<double>(x); }
inline int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)__builtin_floorf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __double2float_rn(double x) { return (float)x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}
