// gather and scatter: one index per element along one axis.
#include "../kernel.h"

typedef struct gather_job {
  int64_t stride;  // of the indexed tensor along the axis, in elements
  size_t size;
  const sp_tensor *index;
  sp_run *run;
  bool scatters, saves, ok;
} gather_job;

// index is at most a's shape on every axis but `axis`.
static const char *check(const sp_tensor *a, const sp_tensor *index, int64_t axis) {
  if (axis < 0 || axis >= a->rank) return "axis names an axis that the operand does not have";
  if (!sp_is_index(index)) return "index is neither int64 nor int32";
  if (index->rank != a->rank) return "index and operand have different ranks";
  for (int32_t i = 0; i < a->rank; i++)
    if (i != axis && index->shape[i] > a->shape[i]) return "index is longer than the operand";
  return NULL;
}

static void gather_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  gather_job *job = context;
  sp_tensor index = *job->index;
  index.data = data[2];
  for (int64_t i = 0; i < n && job->ok; i++) {
    char *indexed = data[0] + (i * strides[0] + sp_index_at(&index, i * strides[2]) * job->stride) * (int64_t)job->size;
    char *other = data[1] + i * strides[1] * (int64_t)job->size;
    if (job->saves) {
      job->ok = sp_run_save(job->run, indexed, job->size);
    } else if (job->scatters) {
      memcpy(indexed, other, job->size);
    } else {
      memcpy(other, indexed, job->size);
    }
  }
}

// Walks the index with the indexed tensor's other axes and the tensor of the index's own shape beside it.
static void prepare(sp_walk *walk, const sp_tensor *indexed, const sp_tensor *other, const sp_tensor *index,
                    int64_t axis) {
  int64_t strides[SP_MAX_RANK];
  for (int32_t i = 0; i < indexed->rank; i++) strides[i] = i == axis ? 0 : indexed->strides[i];
  sp_walk_start(walk, index->rank, index->shape);
  sp_walk_add(walk, indexed->data, sp_type_size(indexed->scalar_type), strides);
  sp_walk_add(walk, other->data, sp_type_size(other->scalar_type), other->strides);
  sp_walk_add(walk, index->data, sp_type_size(index->scalar_type), index->strides);
  sp_walk_merge(walk);
}

const char *sp_gather_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *out = call->results[0];
  const char *reason = check(a, index, call->ints[0]);
  if (reason) return reason;
  if (out->scalar_type != a->scalar_type) return "operand and result have different scalar types";
  return sp_same_shape(index, out) ? NULL : "the result has the wrong shape";
}

bool sp_gather_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *out = call->results[0];
  const int64_t axis = call->ints[0];
  if (!sp_check_indices(run, index, a->shape[axis], false, (int32_t)axis)) return false;
  gather_job job = {a->strides[axis], sp_type_size(a->scalar_type), index, run, false, false, true};
  sp_walk walk;
  prepare(&walk, a, out, index, axis);
  sp_walk_run(&walk, run->pool, 16384, gather_strip, &job);
  return true;
}

const char *sp_scatter_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *source = call->operands[2];
  const sp_tensor *out = call->results[0];
  const char *reason = check(a, index, call->ints[0]);
  if (reason) return reason;
  if (source->scalar_type != a->scalar_type || out->scalar_type != a->scalar_type)
    return "operands and result have different scalar types";
  if (!sp_same_shape(a, out)) return "the result has the wrong shape";
  if (source->rank != index->rank) return "index and source have different ranks";
  for (int32_t i = 0; i < index->rank; i++)
    if (index->shape[i] > source->shape[i]) return "index is longer than source";
  return NULL;
}

bool sp_scatter_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *index = call->operands[1], *source = call->operands[2];
  const sp_tensor *out = call->results[0];
  const int64_t axis = call->ints[0];
  if (!sp_check_indices(run, index, a->shape[axis], false, (int32_t)axis)) return false;
  gather_job job = {out->strides[axis], sp_type_size(out->scalar_type), index, run, true, false, true};
  sp_walk walk;
  prepare(&walk, out, source, index, axis);
  if (!sp_same_view(a, out)) {
    sp_copy_view(out, a, run->pool);
  } else if (run->undo) {
    job.saves = true;
    sp_walk_range(&walk, 0, walk.elements, gather_strip, &job);
    if (!job.ok) return false;
    job.saves = false;
  }
  // In order, on one thread: of equal indices the last wins.
  sp_walk_range(&walk, 0, walk.elements, gather_strip, &job);
  return true;
}
