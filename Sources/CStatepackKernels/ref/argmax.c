#include "../lines.h"

const char *sp_argmax_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  const int64_t axis = call->ints[0], keep = call->ints[1];
  const char *reason = sp_check_axis(a, axis);
  if (reason) return reason;
  if (keep != 0 && keep != 1) return "keep is neither 0 nor 1";
  if (out->scalar_type != SP_INT64) return "the result is not int64";
  if (a->rank && a->shape[axis] == 0) return "the axis is empty";
  int32_t at = 0;
  for (int32_t i = 0; i < a->rank; i++) {
    if (i == axis && !keep) continue;
    if (at >= out->rank || out->shape[at] != (i == axis ? 1 : a->shape[i])) return "the result has the wrong shape";
    at++;
  }
  return at == out->rank ? NULL : "the result has the wrong shape";
}

static void argmax_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const sp_lines *lines = context;
  for (int64_t i = 0; i < n; i++) {
    const float *a = (const float *)(const void *)data[1] + i * strides[1];
    int64_t best = 0;
    float value = *a;
    for (int64_t j = 1; j < lines->length && value == value; j++) {
      const float x = a[j * lines->a_stride];
      if (x > value || x != x) {
        value = x;
        best = j;
      }
    }
    ((int64_t *)(void *)data[0])[i * strides[0]] = best;
  }
}

bool sp_argmax_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  sp_lines lines;
  sp_lines_of(&lines, a, out, call->ints[0], !call->ints[1]);
  sp_walk_run(&lines.starts, run->pool, sp_max(1, 65536 / lines.length), argmax_strip, &lines);
  return true;
}
