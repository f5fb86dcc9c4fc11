// The loops of point-wise kernels. A strip is n elements with one stride per tensor; the loops for unit strides
// and for one operand that stays the same are those the compiler vectorises.
#ifndef STATEPACK_POINTWISE_H
#define STATEPACK_POINTWISE_H

#include "vector_math.h"

static inline const char *sp_check_pointwise(const sp_call *call, bool comparison) {
  const uint16_t type = call->operands[0]->scalar_type;
  for (uint32_t i = 1; i < call->operand_count; i++)
    if (call->operands[i]->scalar_type != type) return "operands have different scalar types";
  if (call->results[0]->scalar_type != (comparison ? SP_BOOL : type)) return "the result has the wrong scalar type";
  return sp_check_broadcast(call);
}

// LOAD makes bools 0 or 1 whatever their byte holds. T and U are the element type and its unsigned twin.
#define SP_LOAD(x) (x)
#define SP_LOAD_BOOL(x) ((x) != 0)

#define SP_UNARY_BODY(CT, CU, CR, LOAD, ...)      \
  typedef CT T;                                   \
  typedef CU U;                                   \
  (void)sizeof(U);                                \
  (void)context;                                  \
  CR *out = (CR *)(void *)data[0];                \
  const T *x = (const T *)(const void *)data[1];  \
  const int64_t so = strides[0], sx = strides[1]; \
  if (so == 1 && sx == 1) {                       \
    for (int64_t i = 0; i < n; i++) {             \
      const T a = LOAD(x[i]);                     \
      out[i] = (CR)(__VA_ARGS__);                 \
    }                                             \
  } else {                                        \
    for (int64_t i = 0; i < n; i++) {             \
      const T a = LOAD(x[i * sx]);                \
      out[i * so] = (CR)(__VA_ARGS__);            \
    }                                             \
  }

#define SP_BINARY_BODY(CT, CU, CR, LOAD, ...)                      \
  typedef CT T;                                                    \
  typedef CU U;                                                    \
  (void)sizeof(U);                                                 \
  (void)context;                                                   \
  CR *out = (CR *)(void *)data[0];                                 \
  const T *x = (const T *)(const void *)data[1];                   \
  const T *y = (const T *)(const void *)data[2];                   \
  const int64_t so = strides[0], sx = strides[1], sy = strides[2]; \
  if (so == 1 && sx == 1 && sy == 1) {                             \
    for (int64_t i = 0; i < n; i++) {                              \
      const T a = LOAD(x[i]), b = LOAD(y[i]);                      \
      out[i] = (CR)(__VA_ARGS__);                                  \
    }                                                              \
  } else if (so == 1 && sx == 1 && sy == 0) {                      \
    const T b = LOAD(*y);                                          \
    for (int64_t i = 0; i < n; i++) {                              \
      const T a = LOAD(x[i]);                                      \
      out[i] = (CR)(__VA_ARGS__);                                  \
    }                                                              \
  } else if (so == 1 && sx == 0 && sy == 1) {                      \
    const T a = LOAD(*x);                                          \
    for (int64_t i = 0; i < n; i++) {                              \
      const T b = LOAD(y[i]);                                      \
      out[i] = (CR)(__VA_ARGS__);                                  \
    }                                                              \
  } else {                                                         \
    for (int64_t i = 0; i < n; i++) {                              \
      const T a = LOAD(x[i * sx]), b = LOAD(y[i * sy]);            \
      out[i * so] = (CR)(__VA_ARGS__);                             \
    }                                                              \
  }

#define SP_STRIP(NAME) static void NAME(void *context, int64_t n, char *const *data, const int64_t *strides)

#define SP_UNARY(NAME, CT, CU, CR, ...) \
  SP_STRIP(NAME) { SP_UNARY_BODY(CT, CU, CR, SP_LOAD, __VA_ARGS__) }
#define SP_UNARY_BOOL(NAME, CT, CU, CR, ...) \
  SP_STRIP(NAME) { SP_UNARY_BODY(CT, CU, CR, SP_LOAD_BOOL, __VA_ARGS__) }
#define SP_BINARY(NAME, CT, CU, CR, ...) \
  SP_STRIP(NAME) { SP_BINARY_BODY(CT, CU, CR, SP_LOAD, __VA_ARGS__) }
#define SP_BINARY_BOOL(NAME, CT, CU, CR, ...) \
  SP_STRIP(NAME) { SP_BINARY_BODY(CT, CU, CR, SP_LOAD_BOOL, __VA_ARGS__) }

// One body, compiled once per instruction set.
#if defined(__x86_64__)
#define SP_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define SP_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define SP_UNARY_VECTOR(NAME, CT, CU, CR, ...)                                                                    \
  SP_STRIP(NAME##_generic){SP_UNARY_BODY(CT, CU, CR, SP_LOAD, __VA_ARGS__)} SP_TARGET_AVX2 SP_STRIP(NAME##_avx2){ \
      SP_UNARY_BODY(CT, CU, CR, SP_LOAD, __VA_ARGS__)} SP_TARGET_AVX512 SP_STRIP(NAME##_avx512) {                 \
    SP_UNARY_BODY(CT, CU, CR, SP_LOAD, __VA_ARGS__)                                                               \
  }                                                                                                               \
  static sp_strip NAME##_pick(void) {                                                                             \
    const sp_isa isa = sp_isa_in_use();                                                                           \
    return isa == SP_ISA_AVX512 ? NAME##_avx512 : isa == SP_ISA_AVX2 ? NAME##_avx2 : NAME##_generic;              \
  }
#else
#define SP_UNARY_VECTOR(NAME, CT, CU, CR, ...)                                 \
  SP_STRIP(NAME##_generic) { SP_UNARY_BODY(CT, CU, CR, SP_LOAD, __VA_ARGS__) } \
  static sp_strip NAME##_pick(void) { return NAME##_generic; }
#endif

#endif
