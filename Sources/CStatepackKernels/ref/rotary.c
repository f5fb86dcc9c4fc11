// Rotary position embedding: out = a * cos + (-a[h:2h], a[:h]) * sin over the first 2h elements of a row, where 2h is
// the length of the last axis of cos and sin; what follows in the row passes through. With the write into a state's
// rows as a second kernel.
//
// Each product and the sum round on their own, so that the bits are those of mul, neg, cat, mul and add. A fused
// multiply-add would round once, so the compiler must not make one.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
#include "../kernel.h"

enum { ROTARY_GRAIN = 16384 };

// One row: lengths and the strides along the last axis of out, a, cos and sin.
typedef struct row_shape {
  int64_t half, length;
  int64_t out, a, cos, sin;
} row_shape;

static void rotate(const row_shape *s, float *out, const float *a, const float *cos, const float *sin) {
  const int64_t half = s->half;
  if (s->out == 1 && s->a == 1 && s->cos == 1 && s->sin == 1) {
    for (int64_t i = 0; i < half; i++) out[i] = a[i] * cos[i] + -a[half + i] * sin[i];
    for (int64_t i = half; i < 2 * half; i++) out[i] = a[i] * cos[i] + a[i - half] * sin[i];
  } else {
    for (int64_t i = 0; i < half; i++)
      out[i * s->out] = a[i * s->a] * cos[i * s->cos] + -a[(half + i) * s->a] * sin[i * s->sin];
    for (int64_t i = half; i < 2 * half; i++)
      out[i * s->out] = a[i * s->a] * cos[i * s->cos] + a[(i - half) * s->a] * sin[i * s->sin];
  }
  for (int64_t i = 2 * half; i < s->length; i++) out[i * s->out] = a[i * s->a];
}

// `a`, `cos` and `sin` fit a result of that shape.
static const char *check(const sp_tensor *a, const sp_tensor *cos, const sp_tensor *sin) {
  if (a->scalar_type != SP_FLOAT32 || cos->scalar_type != SP_FLOAT32 || sin->scalar_type != SP_FLOAT32)
    return "operands and result must be float32";
  if (a->rank < 1 || cos->rank < 1 || sin->rank < 1) return "an operand has no axes";
  const int64_t rotated = cos->shape[cos->rank - 1];
  if (sin->shape[sin->rank - 1] != rotated) return "cos and sin differ in length";
  if (rotated % 2 != 0 || rotated > a->shape[a->rank - 1]) return "cos and sin do not fit the last axis";
  const sp_tensor *angles[] = {cos, sin};
  for (int i = 0; i < 2; i++) {
    const sp_tensor *t = angles[i];
    if (t->rank > a->rank) return "cos or sin does not broadcast to the operand";
    for (int32_t axis = 0; axis < t->rank - 1; axis++)
      if (t->shape[axis] != 1 && t->shape[axis] != a->shape[a->rank - t->rank + axis])
        return "cos or sin does not broadcast to the operand";
  }
  return NULL;
}

static row_shape row_of(const sp_tensor *out, const sp_tensor *a, const sp_tensor *cos, const sp_tensor *sin) {
  const int32_t last = a->rank - 1;
  return (row_shape){
      cos->shape[cos->rank - 1] / 2, a->shape[last], out->strides[last], a->strides[last], cos->strides[cos->rank - 1],
      sin->strides[sin->rank - 1]};
}

const char *sp_rotary_check(const sp_call *call) {
  const sp_tensor *out = call->results[0];
  if (out->scalar_type != SP_FLOAT32 || !sp_same_shape(call->operands[0], out))
    return "the result differs from the operand in type or shape";
  return check(call->operands[0], call->operands[1], call->operands[2]);
}

static void row_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const row_shape *shape = context;
  for (int64_t i = 0; i < n; i++)
    rotate(shape, (float *)(void *)data[0] + i * strides[0], (const float *)(const void *)data[1] + i * strides[1],
           (const float *)(const void *)data[2] + i * strides[2],
           (const float *)(const void *)data[3] + i * strides[3]);
}

bool sp_rotary_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *cos = call->operands[1], *sin = call->operands[2], *out = call->results[0];
  int64_t cos_strides[SP_MAX_RANK], sin_strides[SP_MAX_RANK];
  if (sp_elements(a) == 0) return true;
  sp_broadcast_strides(cos, a->rank, cos_strides);
  sp_broadcast_strides(sin, a->rank, sin_strides);
  row_shape row = row_of(out, a, cos, sin);
  sp_walk walk;
  sp_walk_start(&walk, a->rank - 1, a->shape);
  sp_walk_add(&walk, out->data, 4, out->strides);
  sp_walk_add(&walk, a->data, 4, a->strides);
  sp_walk_add(&walk, cos->data, 4, cos_strides);
  sp_walk_add(&walk, sin->data, 4, sin_strides);
  sp_walk_merge(&walk);
  sp_walk_run(&walk, run->pool, sp_max(1, ROTARY_GRAIN / row.length), row_strip, &row);
  return true;
}

// --- The write ----------------------------------------------------------------------------------

const char *sp_rotary_index_copy_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *source = call->operands[2];
  const sp_tensor *out = call->results[0];
  const int64_t axis = call->ints[0];
  if (axis < 0 || axis >= (int64_t)a->rank - 1) return "axis names no axis in front of the last";
  if (!sp_is_index(index)) return "index is neither int64 nor int32";
  if (index->rank > 1) return "index has more than one axis";
  if (out->scalar_type != SP_FLOAT32 || !sp_same_shape(a, out))
    return "the result differs from the operand in type or shape";
  if (source->rank != a->rank) return "source has the wrong shape";
  for (int32_t i = 0; i < a->rank; i++)
    if (source->shape[i] != (i == axis ? sp_elements(index) : a->shape[i])) return "source has the wrong shape";
  return check(source, call->operands[3], call->operands[4]);
}

typedef struct write_job {
  row_shape row;
  const sp_tensor *index;
  int64_t rows, index_step;
  int64_t out, a, cos, sin;  // floats from one position along the axis to the next
} write_job;

// All positions of one head after another: of equal indices the last wins, whatever the threads do.
static void write_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const write_job *job = context;
  for (int64_t i = 0; i < n; i++) {
    float *out = (float *)(void *)data[0] + i * strides[0];
    const float *a = (const float *)(const void *)data[1] + i * strides[1];
    const float *cos = (const float *)(const void *)data[2] + i * strides[2];
    const float *sin = (const float *)(const void *)data[3] + i * strides[3];
    for (int64_t r = 0; r < job->rows; r++)
      rotate(&job->row, out + sp_index_at(job->index, r * job->index_step) * job->out, a + r * job->a,
             cos + r * job->cos, sin + r * job->sin);
  }
}

bool sp_rotary_index_copy_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *source = call->operands[2];
  const sp_tensor *cos = call->operands[3], *sin = call->operands[4], *out = call->results[0];
  const int32_t axis = (int32_t)call->ints[0];
  const int64_t rows = sp_elements(index), step = index->rank ? index->strides[0] : 0;
  if (!sp_check_indices(run, index, a->shape[axis], false, axis)) return false;
  int64_t shape[SP_MAX_RANK];
  memcpy(shape, out->shape, sizeof shape);
  shape[axis] = 1;
  if (sp_same_view(a, out)) {
    for (int64_t i = 0; i < rows && run->undo; i++) {
      void *row = sp_at(out, sp_index_at(index, i * step) * out->strides[axis]);
      if (!sp_save_strided(run, out->rank, shape, 4, row, out->strides)) return false;
    }
  } else {
    sp_copy_view(out, a, run->pool);
  }
  if (sp_elements(source) == 0) return true;
  int64_t cos_strides[SP_MAX_RANK], sin_strides[SP_MAX_RANK];
  sp_broadcast_strides(cos, a->rank, cos_strides);
  sp_broadcast_strides(sin, a->rank, sin_strides);
  write_job job = {row_of(out, source, cos, sin),
                   index,
                   rows,
                   step,
                   out->strides[axis],
                   source->strides[axis],
                   cos_strides[axis],
                   sin_strides[axis]};
  sp_walk walk;
  sp_walk_start(&walk, a->rank - 1, shape);
  sp_walk_add(&walk, out->data, 4, out->strides);
  sp_walk_add(&walk, source->data, 4, source->strides);
  sp_walk_add(&walk, cos->data, 4, cos_strides);
  sp_walk_add(&walk, sin->data, 4, sin_strides);
  sp_walk_merge(&walk);
  sp_walk_run(&walk, run->pool, sp_max(1, ROTARY_GRAIN / (rows * job.row.length)), write_strip, &job);
  return true;
}
