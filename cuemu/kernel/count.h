// Mathematical functions that the counters count; without counters, nothing (machine/count.cpp).
#pragma once
#ifdef CUEMU_COUNT

namespace cuemu {

// A function's result, counted: the call takes and gives the number, so that the compiler moves, shares and drops it
// as it would the function.
inline __attribute__((always_inline)) float counted(float x) { return __builtin_constant_p(x) ? x : cuemu_counted_float(x); }
inline __attribute__((always_inline)) double counted(double x) { return __builtin_constant_p(x) ? x : cuemu_counted_double(x); }

// A division is an operator of C++, which cannot be replaced for numbers. So the compile step writes `a *cuemu::over* b`
// for `a / b`, and `a *=cuemu::over|= b` for `a /= b`: operators of the same precedence, on types of their own.
struct Over {};
constexpr Over over{};
template <class A> struct Dividend { A value; };
template <class B> struct Divisor { B value; };
template <class T> constexpr bool is_real = false;
template <> constexpr bool is_real<float> = true;
template <> constexpr bool is_real<double> = true;

template <class A> constexpr inline __attribute__((always_inline)) Dividend<A> operator*(A a, Over) { return {a}; }
template <class B> constexpr inline __attribute__((always_inline)) Divisor<B> operator|=(Over, B b) { return {b}; }
template <class A, class B> constexpr inline __attribute__((always_inline)) auto operator*(Dividend<A> a, B b) {
  typedef decltype(a.value / b) Quotient;
  // By a constant it is a product, or nothing that the device computes.
  if constexpr (is_real<Quotient>)
    if (!__builtin_is_constant_evaluated() && !__builtin_constant_p(b)) return counted(a.value / b);
  return a.value / b;
}
template <class A, class B> constexpr inline __attribute__((always_inline)) A& operator*=(A& a, Divisor<B> b) { return a = Dividend<A>{a} * b.value; }

}  // namespace cuemu
struct cuemu_divisions_follow;  // the compile step begins behind this line

#else

namespace cuemu {
inline float counted(float x) { return x; }
inline double counted(double x) { return x; }
}  // namespace cuemu

#endif
