#include "../blocks.h"

void sp_block_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const sp_block *block = context;
  const size_t size = block->element_size;
  if (strides[0] == 1 && strides[1] == 1) {
    memmove(data[0], data[1], (size_t)n * size);
    return;
  }
  if (size == 4) {
    for (int64_t i = 0; i < n; i++)
      ((uint32_t *)(void *)data[0])[i * strides[0]] = ((const uint32_t *)(const void *)data[1])[i * strides[1]];
  } else if (size == 8) {
    for (int64_t i = 0; i < n; i++)
      ((uint64_t *)(void *)data[0])[i * strides[0]] = ((const uint64_t *)(const void *)data[1])[i * strides[1]];
  } else {
    for (int64_t i = 0; i < n; i++) data[0][i * strides[0]] = data[1][i * strides[1]];
  }
}

const char *sp_index_select_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *out = call->results[0];
  const int64_t axis = call->ints[0];
  if (axis < 0 || axis >= a->rank) return "axis names an axis that the operand does not have";
  if (!sp_is_index(index)) return "index is neither int64 nor int32";
  if (index->rank != 1) return "index is not 1-dimensional";
  if (out->scalar_type != a->scalar_type) return "operand and result have different scalar types";
  if (out->rank != a->rank) return "the result has the wrong shape";
  for (int32_t i = 0; i < a->rank; i++)
    if (out->shape[i] != (i == axis ? index->shape[0] : a->shape[i])) return "the result has the wrong shape";
  return NULL;
}

bool sp_index_select_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *out = call->results[0];
  const int32_t axis = (int32_t)call->ints[0];
  if (!sp_check_indices(run, index, a->shape[axis], false, axis)) return false;
  if (sp_elements(out) == 0) return true;
  int64_t shape[SP_MAX_RANK];
  memcpy(shape, out->shape, sizeof shape);
  shape[axis] = 1;
  sp_block block;
  sp_block_of(&block, out->rank, shape, sp_type_size(out->scalar_type), out->strides, a->strides);
  for (int64_t i = 0; i < index->shape[0]; i++)
    sp_block_move(&block, sp_at(out, i * out->strides[axis]),
                  sp_at(a, sp_index_at(index, i * index->strides[0]) * a->strides[axis]));
  return true;
}
