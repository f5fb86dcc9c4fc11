// Functions that the compiler turns into vector code: no calls, no branches.
#ifndef STATEPACK_VECTOR_MATH_H
#define STATEPACK_VECTOR_MATH_H

#include "kernel.h"

SP_INLINE float sp_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// e^x within 1.5 units in the last place for normal results, 0 and infinity where they belong, NaN for NaN.
// n = round(x / ln 2), so x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial of degree 7 (minimax of
// (e^r - 1 - r) / r^2, error 5e-11 over that range before rounding); the scale 2^n in two factors so that results near
// both ends of the range stay exact.
SP_INLINE float sp_exp(float x) {
  // Beyond these the result is infinity and 0 anyway; comparisons with NaN are false and leave it.
  float c = x > 104.0f ? 104.0f : x;
  c = c < -104.0f ? -104.0f : c;
  // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits.
  const float shifted = c * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = c - n * 0.693145752f;  // the leading 16 bits of ln 2: exact products
  r = r - n * 1.42860677e-6f;
  float p = 1.9918385e-4f;
  p = p * r + 1.3946074e-3f;
  p = p * r + 8.3332639e-3f;
  p = p * r + 4.1666269e-2f;
  p = p * r + 1.6666667e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, 4);
  const int32_t whole = (int32_t)(bits - 0x4b400000u);
  const int32_t half = whole / 2;
  const float first = sp_float_of_bits((uint32_t)(half + 127) << 23);
  const float second = sp_float_of_bits((uint32_t)(whole - half + 127) << 23);
  const float result = p * first * second;
  return x != x ? x : result;
}

#endif
