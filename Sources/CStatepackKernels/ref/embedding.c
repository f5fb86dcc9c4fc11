#include "../kernel.h"

// out[..., :] = weight[index[...], :]
const char *sp_embedding_check(const sp_call *call) {
  const sp_tensor *weight = call->operands[0], *index = call->operands[1], *out = call->results[0];
  if (weight->rank != 2) return "weight is not a matrix";
  if (!sp_is_index(index)) return "index is neither int64 nor int32";
  if (out->scalar_type != SP_FLOAT32) return "the result is not float32";
  if (out->rank != index->rank + 1 || out->shape[out->rank - 1] != weight->shape[1])
    return "the result has the wrong shape";
  for (int32_t i = 0; i < index->rank; i++)
    if (out->shape[i] != index->shape[i]) return "the result has the wrong shape";
  return NULL;
}

typedef struct embedding_job {
  const sp_tensor *weight, *index;
  int64_t width, out_stride;
} embedding_job;

static void embedding_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const embedding_job *job = context;
  const float *weight = job->weight->data;
  const int64_t k = job->width, so = job->out_stride;
  sp_tensor index = *job->index;
  index.data = data[1];
  for (int64_t i = 0; i < n; i++) {
    const int64_t row = sp_index_at(&index, i * strides[1]);
    float *out = (float *)(void *)data[0] + i * strides[0];
    if (job->weight->layout == SP_PANEL_16) {
      const float *from = weight + row / 16 * 16 * k + row % 16;
      for (int64_t j = 0; j < k; j++) out[j * so] = from[j * 16];
    } else if (so == 1 && job->weight->strides[1] == 1) {
      memcpy(out, weight + row * job->weight->strides[0], (size_t)k * 4);
    } else {
      for (int64_t j = 0; j < k; j++) out[j * so] = weight[row * job->weight->strides[0] + j * job->weight->strides[1]];
    }
  }
}

bool sp_embedding_run(const sp_call *call, sp_run *run) {
  const sp_tensor *weight = call->operands[0], *index = call->operands[1], *out = call->results[0];
  if (!sp_check_indices(run, index, weight->shape[0], false, 0)) return false;
  embedding_job job = {weight, index, weight->shape[1], out->strides[out->rank - 1]};
  sp_walk walk;
  sp_walk_start(&walk, index->rank, index->shape);
  if (walk.elements == 0 || job.width == 0) return true;
  sp_walk_add(&walk, out->data, 4, out->strides);
  sp_walk_add_tensor(&walk, index);
  sp_walk_merge(&walk);
  sp_walk_run(&walk, run->pool, sp_max(1, 16384 / job.width), embedding_strip, &job);
  return true;
}
