// Kernels that work along one axis: argmax, cumsum, softmax.
#ifndef STATEPACK_LINES_H
#define STATEPACK_LINES_H

#include "kernel.h"

// The walk over the starts of all lines of `a` along `axis`, with `out` beside it. out has a's shape, or length one
// or no axis at all there.
typedef struct sp_lines {
  sp_walk starts;  // 0: out, 1: a
  int64_t length, out_stride, a_stride;
} sp_lines;

SP_INLINE const char *sp_check_axis(const sp_tensor *a, int64_t axis) {
  // A 0-dimensional tensor is a line of one element.
  return axis >= 0 && axis < (a->rank ? a->rank : 1) ? NULL : "axis names an axis that the operand does not have";
}

SP_INLINE void sp_lines_of(sp_lines *lines, const sp_tensor *a, const sp_tensor *out, int64_t axis,
                           bool out_drops_axis) {
  int64_t shape[SP_MAX_RANK], of_a[SP_MAX_RANK], of_out[SP_MAX_RANK];
  int32_t rank = 0;
  lines->length = a->rank ? a->shape[axis] : 1;
  lines->a_stride = a->rank ? a->strides[axis] : 1;
  lines->out_stride = !out_drops_axis && out->rank ? out->strides[axis] : 1;
  for (int32_t i = 0; i < a->rank; i++) {
    if (i == axis) continue;
    shape[rank] = a->shape[i];
    of_a[rank] = a->strides[i];
    of_out[rank++] = out->strides[out_drops_axis && i > axis ? i - 1 : i];
  }
  sp_walk_start(&lines->starts, rank, shape);
  sp_walk_add(&lines->starts, out->data, sp_type_size(out->scalar_type), of_out);
  sp_walk_add(&lines->starts, a->data, sp_type_size(a->scalar_type), of_a);
  sp_walk_merge(&lines->starts);
}

#endif
