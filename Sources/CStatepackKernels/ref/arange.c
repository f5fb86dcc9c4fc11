#include "../kernel.h"

const char *sp_arange_check(const sp_call *call) {
  const sp_tensor *out = call->results[0];
  for (int i = 0; i < 2; i++) {
    if (call->operands[i]->rank != 0) return "start and step must be 0-dimensional";
    if (call->operands[i]->scalar_type != out->scalar_type) return "start, step and result have different scalar types";
  }
  return out->rank == 1 ? NULL : "the result is not 1-dimensional";
}

// out[i] = start + i * step. float32 is computed in double precision and rounded once, as torch does.
bool sp_arange_run(const sp_call *call, sp_run *run) {
  (void)run;
  const sp_tensor *start = call->operands[0], *step = call->operands[1], *out = call->results[0];
  const int64_t n = out->shape[0], stride = out->strides[0];
  if (out->scalar_type == SP_FLOAT32) {
    const double from = *(const float *)start->data, by = *(const float *)step->data;
    for (int64_t i = 0; i < n; i++) ((float *)out->data)[i * stride] = (float)(from + (double)i * by);
  } else if (out->scalar_type == SP_INT64) {
    const uint64_t from = *(const uint64_t *)start->data, by = *(const uint64_t *)step->data;
    for (int64_t i = 0; i < n; i++) ((uint64_t *)out->data)[i * stride] = from + (uint64_t)i * by;
  } else {
    const uint32_t from = *(const uint32_t *)start->data, by = *(const uint32_t *)step->data;
    for (int64_t i = 0; i < n; i++) ((uint32_t *)out->data)[i * stride] = from + (uint32_t)i * by;
  }
  return true;
}
