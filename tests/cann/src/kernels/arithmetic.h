// Arithmetic shared by the elementwise operators, and scalars as operands.
#pragma once
#include "kernel.h"

namespace emu {

template <class C>
constexpr bool is_integer = std::is_same_v<C, int64_t>;

// Division as PyTorch defines it for floor_divide and remainder: rounded to minus infinity.
template <class C>
C floor_divide(C x, C y) {
  if constexpr (is_integer<C>) {
    if (y == 0) return 0;
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
  } else {
    if (y == 0) return x / y;
    C remainder = std::fmod(x, y), quotient = (x - remainder) / y;
    if (remainder != 0 && (y < 0) != (remainder < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(C(0), x / y);
    C floored = std::floor(quotient);
    return quotient - floored > C(0.5) ? floored + 1 : floored;
  }
}
template <class C>
C remainder(C x, C y) {
  if constexpr (is_integer<C>) {
    if (y == 0) return 0;
    C rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  } else {
    C rest = std::fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  }
}
template <class C>
C fmod(C x, C y) {
  if constexpr (is_integer<C>) return y == 0 ? 0 : x % y;
  else return std::fmod(x, y);
}
template <class C>
C power(C x, C y) {
  if constexpr (is_integer<C>) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
    C result = 1;
    for (; y > 0; y >>= 1, x *= x)
      if (y & 1) result *= x;
    return result;
  } else {
    return std::pow(x, y);
  }
}
template <class C>
C maximum(C x, C y) { return x != x ? x : y != y ? y : std::max(x, y); }
template <class C>
C minimum(C x, C y) { return x != x ? x : y != y ? y : std::min(x, y); }

// x op (scalar), with the scalar in the type of the computation: float32 compares with the float32 it would store.
template <class F>
Work with_scalar(const View& out, const View& x, const aclScalar* scalar, F f) {
  const double number = scalar->number();
  const int64_t integer = scalar->integer();
  const bool fraction = is_floating(scalar->dtype);
  return [=] {
    auto run = [&](auto zero) {
      using C = decltype(zero);
      const C y = is_integer<C> ? static_cast<C>(integer) : static_cast<C>(number);
      map_as<C>(out, [&](C a) { return f(a, y); }, x);
    };
    // An integer tensor with a fractional scalar is computed as float.
    if (fraction) compute_floating({&out, &x}, run);
    else compute({&out, &x}, run);
  };
}

}  // namespace emu
