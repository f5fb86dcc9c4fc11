#include "../kernel.h"

// out = condition ? a : b, by element size; nothing is computed, so every bit of a and b survives.
#define WHERE_STRIP(T)                                                                         \
  static void where_##T(void *context, int64_t n, char *const *data, const int64_t *strides) { \
    (void)context;                                                                             \
    T *out = (T *)(void *)data[0];                                                             \
    const uint8_t *condition = (const uint8_t *)data[1];                                       \
    const T *a = (const T *)(const void *)data[2], *b = (const T *)(const void *)data[3];      \
    const int64_t so = strides[0], sc = strides[1], sa = strides[2], sb = strides[3];          \
    if (so == 1 && sc == 1 && sa == 1 && sb == 1) {                                            \
      for (int64_t i = 0; i < n; i++) {                                                        \
        const T x = a[i], y = b[i];                                                            \
        out[i] = condition[i] ? x : y;                                                         \
      }                                                                                        \
    } else {                                                                                   \
      for (int64_t i = 0; i < n; i++) out[i * so] = condition[i * sc] ? a[i * sa] : b[i * sb]; \
    }                                                                                          \
  }
WHERE_STRIP(uint8_t)
WHERE_STRIP(uint32_t)
WHERE_STRIP(uint64_t)

const char *sp_where_check(const sp_call *call) {
  const uint16_t type = call->results[0]->scalar_type;
  if (call->operands[0]->scalar_type != SP_BOOL) return "condition is not bool";
  if (call->operands[1]->scalar_type != type || call->operands[2]->scalar_type != type)
    return "operands and result have different scalar types";
  return sp_check_broadcast(call);
}

bool sp_where_run(const sp_call *call, sp_run *run) {
  const size_t size = sp_type_size(call->results[0]->scalar_type);
  return sp_pointwise_run(call, run, size == 1 ? where_uint8_t : size == 4 ? where_uint32_t : where_uint64_t, 32768);
}
