#include "../kernel.h"

const char *sp_cat_check(const sp_call *call) {
  const sp_tensor *out = call->results[0];
  const int64_t axis = call->ints[0];
  if (axis < 0 || axis >= out->rank) return "axis names an axis that the result does not have";
  int64_t length = 0;
  for (uint32_t i = 0; i < call->operand_count; i++) {
    const sp_tensor *part = call->operands[i];
    if (part->scalar_type != out->scalar_type) return "parts and result have different scalar types";
    if (part->rank != out->rank) return "parts and result have different ranks";
    for (int32_t j = 0; j < out->rank; j++)
      if (j != axis && part->shape[j] != out->shape[j]) return "parts and result differ on another axis";
    if (part->shape[axis] > out->shape[axis] - length) return "the parts are longer than the result";
    length += part->shape[axis];
  }
  return length == out->shape[axis] ? NULL : "the parts are shorter than the result";
}

bool sp_cat_run(const sp_call *call, sp_run *run) {
  const sp_tensor *out = call->results[0];
  const int64_t axis = call->ints[0];
  int64_t at = 0;
  for (uint32_t i = 0; i < call->operand_count; i++) {
    const sp_tensor *part = call->operands[i];
    if (sp_elements(part) != 0) {
      sp_tensor slice = *out;
      slice.shape[axis] = part->shape[axis];
      slice.data = sp_at(out, at * out->strides[axis]);
      sp_copy_view(&slice, part, run->pool);
    }
    at += part->shape[axis];
  }
  return true;
}
