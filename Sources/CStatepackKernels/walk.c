#include "kernel.h"

void sp_walk_start(sp_walk *walk, int32_t rank, const int64_t *shape) {
  walk->rank = rank;
  walk->count = 0;
  walk->elements = 1;
  for (int32_t i = 0; i < rank; i++) {
    walk->shape[i] = shape[i];
    walk->elements *= shape[i];
  }
}

void sp_walk_add(sp_walk *walk, void *data, size_t element_size, const int64_t *strides) {
  const int32_t n = walk->count++;
  walk->data[n] = data;
  walk->sizes[n] = (int64_t)element_size;
  for (int32_t i = 0; i < walk->rank; i++) walk->strides[n][i] = strides[i];
}

void sp_walk_add_tensor(sp_walk *walk, const sp_tensor *t) {
  int64_t strides[SP_MAX_RANK];
  sp_broadcast_strides(t, walk->rank, strides);
  sp_walk_add(walk, t->data, sp_type_size(t->scalar_type), strides);
}

void sp_walk_merge(sp_walk *walk) {
  // Strides of an empty walk are never followed and may be anything, so they are not multiplied either.
  if (walk->elements == 0) return;
  int32_t rank = 0;
  for (int32_t i = 0; i < walk->rank; i++) {
    if (walk->shape[i] == 1) continue;
    bool merges = rank > 0;
    for (int32_t n = 0; merges && n < walk->count; n++)
      merges = walk->strides[n][rank - 1] == walk->strides[n][i] * walk->shape[i];
    if (merges) {
      walk->shape[rank - 1] *= walk->shape[i];
    } else {
      walk->shape[rank++] = walk->shape[i];
    }
    for (int32_t n = 0; n < walk->count; n++) walk->strides[n][rank - 1] = walk->strides[n][i];
  }
  walk->rank = rank;
}

void sp_walk_range(const sp_walk *walk, int64_t first, int64_t n, sp_strip strip, void *context) {
  if (n <= 0) return;
  char *data[SP_WALK_TENSORS];
  int64_t strides[SP_WALK_TENSORS];
  if (walk->rank == 0) {
    for (int32_t t = 0; t < walk->count; t++) {
      data[t] = walk->data[t];
      strides[t] = 1;
    }
    strip(context, 1, data, strides);
    return;
  }
  const int32_t inner = walk->rank - 1;
  for (int32_t t = 0; t < walk->count; t++) strides[t] = walk->strides[t][inner];
  int64_t index[SP_MAX_RANK], rest = first;
  for (int32_t i = inner; i >= 0; i--) {
    index[i] = rest % walk->shape[i];
    rest /= walk->shape[i];
  }
  while (n > 0) {
    const int64_t length = sp_min(n, walk->shape[inner] - index[inner]);
    for (int32_t t = 0; t < walk->count; t++) {
      int64_t offset = 0;
      for (int32_t i = 0; i <= inner; i++) offset += index[i] * walk->strides[t][i];
      data[t] = walk->data[t] + offset * walk->sizes[t];
    }
    strip(context, length, data, strides);
    n -= length;
    index[inner] = 0;
    for (int32_t i = inner - 1; i >= 0; i--) {
      if (++index[i] < walk->shape[i]) break;
      index[i] = 0;
    }
  }
}

typedef struct walk_job {
  const sp_walk *walk;
  int64_t grain;
  sp_strip strip;
  void *context;
} walk_job;

static void walk_chunk(void *context, size_t chunk) {
  const walk_job *job = context;
  const int64_t first = (int64_t)chunk * job->grain;
  sp_walk_range(job->walk, first, sp_min(job->grain, job->walk->elements - first), job->strip, job->context);
}

void sp_walk_run(const sp_walk *walk, sp_pool *pool, int64_t grain, sp_strip strip, void *context) {
  if (walk->elements < 2 * grain) {
    sp_walk_range(walk, 0, walk->elements, strip, context);
    return;
  }
  walk_job job = {walk, grain, strip, context};
  sp_parallel_for(pool, (size_t)sp_ceil_div(walk->elements, grain), walk_chunk, &job);
}

bool sp_pointwise_run(const sp_call *call, sp_run *run, sp_strip strip, int64_t grain) {
  const sp_tensor *out = call->results[0];
  sp_walk walk;
  sp_walk_start(&walk, out->rank, out->shape);
  if (walk.elements == 0) return true;
  sp_walk_add_tensor(&walk, out);
  for (uint32_t i = 0; i < call->operand_count; i++) sp_walk_add_tensor(&walk, call->operands[i]);
  sp_walk_merge(&walk);
  sp_walk_run(&walk, run->pool, grain, strip, NULL);
  return true;
}

// --- Copies of equal element size ---------------------------------------------------------------

#define COPY_STRIP(T)                                                                         \
  static void copy_##T(void *context, int64_t n, char *const *data, const int64_t *strides) { \
    (void)context;                                                                            \
    T *out = (T *)(void *)data[0];                                                            \
    const T *a = (const T *)(const void *)data[1];                                            \
    const int64_t so = strides[0], sa = strides[1];                                           \
    if (so == 1 && sa == 1) {                                                                 \
      memmove(out, a, (size_t)n * sizeof(T));                                                 \
    } else if (so == 1 && sa == 0) {                                                          \
      const T value = *a;                                                                     \
      for (int64_t i = 0; i < n; i++) out[i] = value;                                         \
    } else {                                                                                  \
      for (int64_t i = 0; i < n; i++) out[i * so] = a[i * sa];                                \
    }                                                                                         \
  }
COPY_STRIP(uint8_t)
COPY_STRIP(uint32_t)
COPY_STRIP(uint64_t)

void sp_copy_strided(int32_t rank, const int64_t *shape, size_t element_size, void *out, const int64_t *out_strides,
                     const void *a, const int64_t *a_strides, sp_pool *pool) {
  sp_walk walk;
  sp_walk_start(&walk, rank, shape);
  if (walk.elements == 0) return;
  sp_walk_add(&walk, out, element_size, out_strides);
  sp_walk_add(&walk, (void *)(uintptr_t)a, element_size, a_strides);
  sp_walk_merge(&walk);
  const sp_strip strip = element_size == 1 ? copy_uint8_t : element_size == 4 ? copy_uint32_t : copy_uint64_t;
  sp_walk_run(&walk, pool, (int64_t)(131072 / element_size), strip, NULL);
}

void sp_copy_view(const sp_tensor *out, const sp_tensor *a, sp_pool *pool) {
  int64_t strides[SP_MAX_RANK];
  sp_broadcast_strides(a, out->rank, strides);
  sp_copy_strided(out->rank, out->shape, sp_type_size(out->scalar_type), out->data, out->strides, a->data, strides,
                  pool);
}

typedef struct save_job {
  sp_run *run;
  size_t element_size;
  bool ok;
} save_job;

static void save_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  save_job *job = context;
  const int64_t size = (int64_t)job->element_size;
  if (strides[0] == 1 || n == 1) {
    job->ok = job->ok && sp_run_save(job->run, data[0], (size_t)(n * size));
    return;
  }
  for (int64_t i = 0; i < n && job->ok; i++)
    job->ok = sp_run_save(job->run, data[0] + i * strides[0] * size, job->element_size);
}

bool sp_save_strided(sp_run *run, int32_t rank, const int64_t *shape, size_t element_size, void *data,
                     const int64_t *strides) {
  if (!run->undo) return true;
  sp_walk walk;
  sp_walk_start(&walk, rank, shape);
  if (walk.elements == 0) return true;
  sp_walk_add(&walk, data, element_size, strides);
  sp_walk_merge(&walk);
  save_job job = {run, element_size, true};
  sp_walk_range(&walk, 0, walk.elements, save_strip, &job);
  return job.ok;
}
