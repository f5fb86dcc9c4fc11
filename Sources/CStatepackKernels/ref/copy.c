#include "../kernel.h"

// What float to integer gives in eager torch on x86: towards zero, the lowest integer for what does not fit.
SP_INLINE int32_t int32_of_float(float a) { return a >= -2147483648.0f && a < 2147483648.0f ? (int32_t)a : INT32_MIN; }
SP_INLINE int64_t int64_of_float(float a) {
  return a >= -9223372036854775808.0f && a < 9223372036854775808.0f ? (int64_t)a : INT64_MIN;
}

#define CONVERT_STRIP(NAME, A, R, EXPRESSION)                                             \
  static void NAME(void *context, int64_t n, char *const *data, const int64_t *strides) { \
    (void)context;                                                                        \
    R *out = (R *)(void *)data[0];                                                        \
    const A *x = (const A *)(const void *)data[1];                                        \
    const int64_t so = strides[0], sx = strides[1];                                       \
    if (so == 1 && sx == 1) {                                                             \
      for (int64_t i = 0; i < n; i++) {                                                   \
        const A a = x[i];                                                                 \
        out[i] = (EXPRESSION);                                                            \
      }                                                                                   \
    } else {                                                                              \
      for (int64_t i = 0; i < n; i++) {                                                   \
        const A a = x[i * sx];                                                            \
        out[i * so] = (EXPRESSION);                                                       \
      }                                                                                   \
    }                                                                                     \
  }
CONVERT_STRIP(bool_to_int32, uint8_t, int32_t, a != 0)
CONVERT_STRIP(bool_to_int64, uint8_t, int64_t, a != 0)
CONVERT_STRIP(bool_to_float32, uint8_t, float, a != 0 ? 1.0f : 0.0f)
CONVERT_STRIP(int32_to_bool, int32_t, uint8_t, a != 0)
CONVERT_STRIP(int32_to_int64, int32_t, int64_t, a)
CONVERT_STRIP(int32_to_float32, int32_t, float, (float)a)
CONVERT_STRIP(int64_to_bool, int64_t, uint8_t, a != 0)
CONVERT_STRIP(int64_to_int32, int64_t, int32_t, (int32_t)(uint32_t)(uint64_t)a)
CONVERT_STRIP(int64_to_float32, int64_t, float, (float)a)
CONVERT_STRIP(float32_to_bool, float, uint8_t, a != 0.0f)
CONVERT_STRIP(float32_to_int32, float, int32_t, int32_of_float(a))
CONVERT_STRIP(float32_to_int64, float, int64_t, int64_of_float(a))

static sp_strip conversion(uint16_t from, uint16_t to) {
  switch (from) {
    case SP_BOOL:
      return to == SP_INT32 ? bool_to_int32 : to == SP_INT64 ? bool_to_int64 : bool_to_float32;
    case SP_INT32:
      return to == SP_BOOL ? int32_to_bool : to == SP_INT64 ? int32_to_int64 : int32_to_float32;
    case SP_INT64:
      return to == SP_BOOL ? int64_to_bool : to == SP_INT32 ? int64_to_int32 : int64_to_float32;
    default:
      return to == SP_BOOL ? float32_to_bool : to == SP_INT32 ? float32_to_int32 : float32_to_int64;
  }
}

const char *sp_copy_check(const sp_call *call) { return sp_check_broadcast(call); }

bool sp_copy_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  if (a->scalar_type != out->scalar_type) {
    return sp_pointwise_run(call, run, conversion(a->scalar_type, out->scalar_type), 32768);
  }
  if (!sp_same_view(a, out)) sp_copy_view(out, a, run->pool);
  return true;
}
