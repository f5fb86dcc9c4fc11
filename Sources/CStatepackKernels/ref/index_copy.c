#include "../blocks.h"

const char *sp_index_copy_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *source = call->operands[2];
  const sp_tensor *out = call->results[0];
  const int64_t axis = call->ints[0];
  if (axis < 0 || axis >= a->rank) return "axis names an axis that the operand does not have";
  if (!sp_is_index(index)) return "index is neither int64 nor int32";
  if (index->rank > 1) return "index has more than one axis";
  if (source->scalar_type != a->scalar_type || out->scalar_type != a->scalar_type)
    return "operands and result have different scalar types";
  if (!sp_same_shape(a, out)) return "the result has the wrong shape";
  if (source->rank != a->rank) return "source has the wrong shape";
  for (int32_t i = 0; i < a->rank; i++)
    if (source->shape[i] != (i == axis ? sp_elements(index) : a->shape[i])) return "source has the wrong shape";
  return NULL;
}

bool sp_index_copy_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *source = call->operands[2];
  const sp_tensor *out = call->results[0];
  const int32_t axis = (int32_t)call->ints[0];
  const int64_t rows = sp_elements(index), step = index->rank ? index->strides[0] : 0;
  if (!sp_check_indices(run, index, a->shape[axis], false, axis)) return false;
  int64_t shape[SP_MAX_RANK];
  memcpy(shape, out->shape, sizeof shape);
  if (out->rank) shape[axis] = 1;
  const size_t size = sp_type_size(out->scalar_type);
  if (sp_same_view(a, out)) {
    for (int64_t i = 0; i < rows && run->undo; i++) {
      void *row = sp_at(out, sp_index_at(index, i * step) * out->strides[axis]);
      if (!sp_save_strided(run, out->rank, shape, size, row, out->strides)) return false;
    }
  } else {
    sp_copy_view(out, a, run->pool);
  }
  sp_block block;
  sp_block_of(&block, out->rank, shape, size, out->strides, source->strides);
  if (block.walk.elements == 0) return true;
  for (int64_t i = 0; i < rows; i++)
    sp_block_move(&block, sp_at(out, sp_index_at(index, i * step) * out->strides[axis]),
                  sp_at(source, i * source->strides[axis]));
  return true;
}
