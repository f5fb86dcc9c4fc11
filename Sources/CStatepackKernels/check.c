#include "kernel.h"

bool sp_same_shape(const sp_tensor *a, const sp_tensor *b) {
  if (a->rank != b->rank) return false;
  for (int32_t i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

bool sp_same_view(const sp_tensor *a, const sp_tensor *b) {
  if (a->data != b->data || a->scalar_type != b->scalar_type || !sp_same_shape(a, b)) return false;
  for (int32_t i = 0; i < a->rank; i++)
    if (a->shape[i] > 1 && a->strides[i] != b->strides[i]) return false;
  return true;
}

bool sp_broadcasts(const sp_tensor *operand, int32_t rank, const int64_t *shape) {
  if (operand->rank > rank) return false;
  const int32_t shift = rank - operand->rank;
  for (int32_t i = 0; i < operand->rank; i++)
    if (operand->shape[i] != 1 && operand->shape[i] != shape[i + shift]) return false;
  return true;
}

void sp_broadcast_strides(const sp_tensor *operand, int32_t rank, int64_t *strides) {
  const int32_t shift = rank - operand->rank;
  for (int32_t i = 0; i < rank; i++)
    strides[i] = i < shift || operand->shape[i - shift] == 1 ? 0 : operand->strides[i - shift];
}

bool sp_is_contiguous(const sp_tensor *t) {
  int64_t expected = 1;
  for (int32_t i = t->rank - 1; i >= 0; i--) {
    if (t->shape[i] == 1) continue;
    if (t->strides[i] != expected) return false;
    expected *= t->shape[i];
  }
  return true;
}

// Two indices never name one element: with the axes in order of stride, each step is longer than everything
// that the smaller ones span. Sufficient, and true of every slice, permutation and reshape of a dense tensor.
static bool is_injective(const sp_tensor *t) {
  int64_t lengths[SP_MAX_RANK];
  uint64_t steps[SP_MAX_RANK];
  int32_t rank = 0;
  for (int32_t i = 0; i < t->rank; i++) {
    if (t->shape[i] == 1) continue;
    const uint64_t step = t->strides[i] < 0 ? 0 - (uint64_t)t->strides[i] : (uint64_t)t->strides[i];
    int32_t at = rank++;
    for (; at > 0 && steps[at - 1] > step; at--) {
      steps[at] = steps[at - 1];
      lengths[at] = lengths[at - 1];
    }
    steps[at] = step;
    lengths[at] = t->shape[i];
  }
  uint64_t span = 0;
  for (int32_t i = 0; i < rank; i++) {
    uint64_t reach;
    if (steps[i] <= span || __builtin_mul_overflow(steps[i], (uint64_t)(lengths[i] - 1), &reach) ||
        __builtin_add_overflow(span, reach, &span))
      return false;
  }
  return true;
}

static const char *check_tensor(const sp_tensor *t, bool may_be_panel) {
  if (t->rank < 0 || t->rank > SP_MAX_RANK) return "a tensor has more than eight axes";
  // Empty axes count as one: the product of any subset of the axes then fits too.
  int64_t elements = 1;
  bool empty = false;
  for (int32_t i = 0; i < t->rank; i++) {
    if (t->shape[i] < 0) return "an axis has a negative length";
    if (t->shape[i] == 0) {
      empty = true;
      continue;
    }
    if (t->shape[i] > SP_MAX_ELEMENTS / elements) return "a tensor has too many elements";
    elements *= t->shape[i];
  }
  if (!empty && !t->data) return "a tensor has no storage";
  if (t->scalar_type != SP_BOOL && t->scalar_type != SP_INT32 && t->scalar_type != SP_INT64 &&
      t->scalar_type != SP_FLOAT32)
    return "a tensor has a scalar type that no kernel computes in";
  if (t->layout != SP_ROW_MAJOR) {
    if (t->layout != SP_PANEL_16 || !may_be_panel) return "an operand has a layout that this kernel does not read";
    if (t->rank != 2 || t->scalar_type != SP_FLOAT32) return "a panel layout needs a float32 matrix";
  }
  return NULL;
}

const char *sp_check_call(const sp_call *call, const sp_row *row) {
  if (row->list ? call->operand_count <= row->operands : call->operand_count != row->operands)
    return "wrong number of operands";
  if (call->result_count != row->results) return "wrong number of results";
  if (call->int_count != row->ints) return "wrong number of integers";
  if (call->float_count != row->floats) return "wrong number of floats";
  for (uint32_t i = 0; i < call->operand_count; i++) {
    const bool in_row = i < row->operands;
    if (!call->operands[i]) {
      if (!in_row || !((row->optional >> i) & 1)) return "a required operand is absent";
      continue;
    }
    const uint32_t bit = in_row ? i : row->operands;
    const char *reason = check_tensor(call->operands[i], (row->panels >> bit) & 1);
    if (reason) return reason;
  }
  for (uint32_t i = 0; i < call->result_count; i++) {
    if (!call->results[i]) return "a result is absent";
    const char *reason = check_tensor(call->results[i], false);
    if (reason) return reason;
    if (sp_elements(call->results[i]) != 0 && !is_injective(call->results[i])) return "a result repeats elements";
  }
  if (!sp_type_allowed(row, call->operands[0]->scalar_type))
    return "an operand has a scalar type that this kernel does not take";
  return NULL;
}

const char *sp_check_broadcast(const sp_call *call) {
  const sp_tensor *out = call->results[0];
  for (uint32_t i = 0; i < call->operand_count; i++)
    if (!sp_broadcasts(call->operands[i], out->rank, out->shape)) return "an operand does not broadcast to the result";
  return NULL;
}

bool sp_index_failure(sp_run *run, int64_t value, int64_t limit, int32_t axis) {
  run->failure.kind = SP_INDEX_OUT_OF_RANGE;
  run->failure.value = value;
  run->failure.limit = limit;
  run->failure.axis = axis;
  return false;
}

typedef struct index_job {
  const sp_tensor *index;
  int64_t lowest, limit, bad;
  bool failed;
} index_job;

static void index_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  index_job *job = context;
  sp_tensor view = *job->index;
  view.data = data[0];
  for (int64_t i = 0; i < n && !job->failed; i++) {
    const int64_t value = sp_index_at(&view, i * strides[0]);
    if (value < job->lowest || value >= job->limit) {
      job->failed = true;
      job->bad = value;
    }
  }
}

bool sp_check_indices(sp_run *run, const sp_tensor *index, int64_t limit, bool wraps, int32_t axis) {
  sp_walk walk;
  sp_walk_start(&walk, index->rank, index->shape);
  if (walk.elements == 0) return true;
  sp_walk_add_tensor(&walk, index);
  sp_walk_merge(&walk);
  index_job job = {index, wraps ? -limit : 0, limit, 0, false};
  sp_walk_range(&walk, 0, walk.elements, index_strip, &job);
  return job.failed ? sp_index_failure(run, job.bad, limit, axis) : true;
}

void *sp_slot_take(sp_slots *slots, unsigned *slot) {
  uint64_t busy = atomic_load_explicit(&slots->busy, memory_order_relaxed);
  for (;;) {
    // More threads than slots cannot work at once, so a free bit always exists.
    const unsigned free_slot = (unsigned)__builtin_ctzll(~busy);
    if (atomic_compare_exchange_weak_explicit(&slots->busy, &busy, busy | ((uint64_t)1 << free_slot),
                                              memory_order_acquire, memory_order_relaxed)) {
      *slot = free_slot;
      return slots->base + slots->stride * free_slot;
    }
  }
}

void sp_slot_give(sp_slots *slots, unsigned slot) {
  atomic_fetch_and_explicit(&slots->busy, ~((uint64_t)1 << slot), memory_order_release);
}
