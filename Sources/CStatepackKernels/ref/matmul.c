#include "../kernel.h"

// [..., M, K] x [..., K, N], leading axes equal. Sums run along k in order, in float32.
const char *sp_matmul_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *b = call->operands[1], *out = call->results[0];
  if (b->scalar_type != SP_FLOAT32 || out->scalar_type != SP_FLOAT32) return "operands and result must be float32";
  const int32_t r = a->rank;
  if (r < 2 || b->rank != r || out->rank != r) return "operands and result must be matrices of one rank";
  for (int32_t i = 0; i < r - 2; i++)
    if (a->shape[i] != b->shape[i] || a->shape[i] != out->shape[i]) return "leading axes differ";
  if (a->shape[r - 1] != b->shape[r - 2]) return "the inner axes differ";
  if (out->shape[r - 2] != a->shape[r - 2] || out->shape[r - 1] != b->shape[r - 1])
    return "the result has the wrong shape";
  return NULL;
}

enum { ROWS = 4, COLUMNS = 16 };

typedef struct matmul_job {
  const sp_tensor *a, *b, *out;
  sp_walk batches;  // out, a, b
  int64_t row_blocks;
} matmul_job;

typedef struct starts {
  char *data[3];
} starts;

static void start_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  (void)n;
  (void)strides;
  memcpy(((starts *)context)->data, data, sizeof(starts));
}

static void matmul_chunk(void *context, size_t chunk) {
  const matmul_job *job = context;
  starts s;
  sp_walk_range(&job->batches, (int64_t)chunk / job->row_blocks, 1, start_strip, &s);
  const sp_tensor *ta = job->a, *tb = job->b, *to = job->out;
  const int32_t r = ta->rank;
  const int64_t m = ta->shape[r - 2], k = ta->shape[r - 1], n = tb->shape[r - 1];
  const int64_t am = ta->strides[r - 2], ak = ta->strides[r - 1], bk = tb->strides[r - 2], bn = tb->strides[r - 1];
  const int64_t om = to->strides[r - 2], on = to->strides[r - 1];
  const int64_t row = (int64_t)chunk % job->row_blocks * ROWS, rows = sp_min(ROWS, m - row);
  const float *a = (const float *)(const void *)s.data[1] + row * am;
  float *out = (float *)(void *)s.data[0] + row * om;
  for (int64_t column = 0; column < n; column += COLUMNS) {
    const int64_t columns = sp_min(COLUMNS, n - column);
    const float *b = (const float *)(const void *)s.data[2] + column * bn;
    float sums[ROWS][COLUMNS] = {{0}};
    if (rows == ROWS && columns == COLUMNS && bn == 1) {
      for (int64_t i = 0; i < k; i++)
        for (int x = 0; x < ROWS; x++)
          for (int y = 0; y < COLUMNS; y++) sums[x][y] += a[x * am + i * ak] * b[i * bk + y];
    } else {
      for (int64_t i = 0; i < k; i++)
        for (int64_t x = 0; x < rows; x++)
          for (int64_t y = 0; y < columns; y++) sums[x][y] += a[x * am + i * ak] * b[i * bk + y * bn];
    }
    for (int64_t x = 0; x < rows; x++)
      for (int64_t y = 0; y < columns; y++) out[x * om + (column + y) * on] = sums[x][y];
  }
}

bool sp_matmul_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *b = call->operands[1], *out = call->results[0];
  const int32_t r = a->rank;
  if (sp_elements(out) == 0) return true;
  matmul_job job = {.a = a, .b = b, .out = out, .row_blocks = sp_ceil_div(a->shape[r - 2], ROWS)};
  sp_walk_start(&job.batches, r - 2, out->shape);
  sp_walk_add(&job.batches, out->data, 4, out->strides);
  sp_walk_add(&job.batches, a->data, 4, a->strides);
  sp_walk_add(&job.batches, b->data, 4, b->strides);
  sp_walk_merge(&job.batches);
  const int64_t chunks = job.batches.elements * job.row_blocks;
  const bool small = sp_elements(out) * (double)a->shape[r - 1] < 65536;
  sp_parallel_for(small ? NULL : run->pool, (size_t)chunks, matmul_chunk, &job);
  return true;
}
