#include "../lines.h"

const char *sp_cumsum_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  if (out->scalar_type != a->scalar_type) return "operand and result have different scalar types";
  if (!sp_same_shape(a, out)) return "the result has the wrong shape";
  return sp_check_axis(a, call->ints[0]);
}

#define CUMSUM(T, SUM)                                                                          \
  static void cumsum_##T(void *context, int64_t n, char *const *data, const int64_t *strides) { \
    const sp_lines *lines = context;                                                            \
    for (int64_t i = 0; i < n; i++) {                                                           \
      T *out = (T *)(void *)data[0] + i * strides[0];                                           \
      const T *a = (const T *)(const void *)data[1] + i * strides[1];                           \
      SUM sum = 0;                                                                              \
      for (int64_t j = 0; j < lines->length; j++) {                                             \
        sum += (SUM)a[j * lines->a_stride];                                                     \
        out[j * lines->out_stride] = (T)sum;                                                    \
      }                                                                                         \
    }                                                                                           \
  }
CUMSUM(float, double)
CUMSUM(uint32_t, uint32_t)
CUMSUM(uint64_t, uint64_t)

bool sp_cumsum_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  sp_lines lines;
  sp_lines_of(&lines, a, out, call->ints[0], false);
  const sp_strip strip = a->scalar_type == SP_FLOAT32 ? cumsum_float
                         : a->scalar_type == SP_INT64 ? cumsum_uint64_t
                                                      : cumsum_uint32_t;
  sp_walk_run(&lines.starts, run->pool, sp_max(1, 32768 / sp_max(1, lines.length)), strip, &lines);
  return true;
}
