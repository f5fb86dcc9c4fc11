#include "../lines.h"
#include "../vector_math.h"

const char *sp_softmax_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  if (out->scalar_type != SP_FLOAT32) return "the result is not float32";
  if (!sp_same_shape(a, out)) return "the result has the wrong shape";
  return sp_check_axis(a, call->ints[0]);
}

// Each line's maximum is subtracted first, which keeps the exponentials from overflowing. Their sum is taken in
// double precision, left to right.
static void softmax_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const sp_lines *lines = context;
  const int64_t length = lines->length, so = lines->out_stride, sa = lines->a_stride;
  for (int64_t i = 0; i < n; i++) {
    float *out = (float *)(void *)data[0] + i * strides[0];
    const float *a = (const float *)(const void *)data[1] + i * strides[1];
    float largest = -INFINITY;
    for (int64_t j = 0; j < length; j++) largest = a[j * sa] > largest ? a[j * sa] : largest;
    if (so == 1 && sa == 1) {
      for (int64_t j = 0; j < length; j++) out[j] = sp_exp(a[j] - largest);
    } else {
      for (int64_t j = 0; j < length; j++) out[j * so] = sp_exp(a[j * sa] - largest);
    }
    double sum = 0;
    for (int64_t j = 0; j < length; j++) sum += (double)out[j * so];
    const float scale = (float)(1.0 / sum);
    for (int64_t j = 0; j < length; j++) out[j * so] *= scale;
  }
}

bool sp_softmax_run(const sp_call *call, sp_run *run) {
  sp_lines lines;
  sp_lines_of(&lines, call->operands[0], call->results[0], call->ints[0], false);
  sp_walk_run(&lines.starts, run->pool, sp_max(1, 8192 / sp_max(1, lines.length)), softmax_strip, &lines);
  return true;
}
