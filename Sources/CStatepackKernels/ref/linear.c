// out [..., N] = a [..., K] x weight [N, K] transposed + bias [N].
//
// Few rows are bound by memory: a chunk takes the same panel from several equal stripes of the matrix, so that
// several streams of weights run at once. Many rows are bound by arithmetic: a chunk is a block of rows times a
// group of panels small enough for the second cache. Both use the same tile, so one row's result is the same
// whatever stands beside it; where many rows go through oneDNN (onednn.h) that holds up to 15 rows.
#include "linear.h"

bool sp_linear_rows(const sp_tensor *t, int64_t *row_stride) {
  sp_walk walk;
  sp_walk_start(&walk, t->rank - 1, t->shape);
  if (walk.elements == 0) return false;
  sp_walk_add(&walk, t->data, 4, t->strides);
  sp_walk_merge(&walk);
  if (walk.rank > 1 || (t->shape[t->rank - 1] > 1 && t->strides[t->rank - 1] != 1)) return false;
  *row_stride = walk.rank == 1 ? walk.strides[0][0] : t->shape[t->rank - 1];
  return true;
}

sp_tensor sp_linear_dense_like(const sp_tensor *t, void *data) {
  sp_tensor dense = *t;
  dense.data = data;
  int64_t step = 1;
  for (int32_t i = t->rank - 1; i >= 0; i--) {
    dense.strides[i] = step;
    step *= t->shape[i];
  }
  return dense;
}

const char *sp_linear_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *weight = call->operands[1], *bias = call->operands[2];
  const sp_tensor *out = call->results[0];
  if (weight->scalar_type != SP_FLOAT32 || out->scalar_type != SP_FLOAT32) return "operands and result must be float32";
  if (weight->rank != 2) return "weight is not a matrix";
  if (a->rank < 1 || out->rank != a->rank) return "operand and result have different ranks";
  for (int32_t i = 0; i < a->rank - 1; i++)
    if (a->shape[i] != out->shape[i]) return "the result has the wrong shape";
  if (a->shape[a->rank - 1] != weight->shape[1]) return "the inner axes differ";
  if (out->shape[out->rank - 1] != weight->shape[0]) return "the result has the wrong shape";
  if (bias && (bias->scalar_type != SP_FLOAT32 || bias->rank != 1 || bias->shape[0] != weight->shape[0]))
    return "bias has the wrong shape or type";
  sp_linear_many_prepare(call);
  return NULL;
}

// What a call needs besides its operands: dense copies of a and out where their rows are not evenly spaced, and
// room for one panel per thread where the weight is not packed.
typedef struct layout {
  int64_t rows, n, k;
  size_t a_copy, out_copy, panel;
  int64_t a_row, out_row;
} layout;

static size_t rounded(int64_t floats) { return ((size_t)floats * 4 + 63) & ~(size_t)63; }

static layout layout_of(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *weight = call->operands[1], *out = call->results[0];
  layout l = {.n = weight->shape[0], .k = weight->shape[1], .rows = 1};
  for (int32_t i = 0; i < a->rank - 1; i++) l.rows *= a->shape[i];
  if (!sp_linear_rows(a, &l.a_row)) {
    l.a_row = l.k;
    l.a_copy = rounded(l.rows * l.k);
  }
  if (!sp_linear_rows(out, &l.out_row)) {
    l.out_row = l.n;
    l.out_copy = rounded(l.rows * l.n);
  }
  l.panel = sp_linear_many_room(weight);
  return l;
}

size_t sp_linear_scratch(const sp_call *call, unsigned threads) {
  const layout l = layout_of(call);
  return l.a_copy + l.out_copy + l.panel * threads;
}

void sp_linear_add_bias(const sp_linear_job *job, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  if (!job->bias) return;
  for (int64_t r = row; r < row + rows; r++) {
    float *out = job->out + r * job->out_row;
    for (int64_t i = column; i < column + columns; i++) out[i] += job->bias[i];
  }
}

void sp_linear_tile(const sp_linear_job *job, int64_t row, int64_t rows, int64_t panel, int64_t panel_step,
                    int64_t count, const float *w) {
  sp_tile t = {.rows = (int)rows,
               .panels = (int)count,
               .k = job->k,
               .a = job->a + row * job->a_row,
               .a_row = job->a_row,
               .w = w,
               .w_step = 16,
               .w_panel = panel_step * 16 * job->k,
               .out = job->out + row * job->out_row + panel * 16,
               .out_row = job->out_row,
               .out_panel = panel_step * 16};
  const int64_t last = panel + (count - 1) * panel_step, tail = job->n - last * 16;
  if (tail < 16) {
    t.panels--;
    if (t.panels > 0) job->tiler->run(&t);
    float sums[16 * 16];
    t.panels = 1;
    t.w = w + (count - 1) * t.w_panel;
    t.out = sums;
    t.out_row = 16;
    job->tiler->run(&t);
    for (int64_t r = 0; r < rows; r++)
      memcpy(job->out + (row + r) * job->out_row + last * 16, sums + r * 16, (size_t)tail * 4);
  } else {
    job->tiler->run(&t);
  }
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = (panel + i * panel_step) * 16;
    sp_linear_add_bias(job, row, rows, at, sp_min(16, job->n - at));
  }
}

bool sp_linear_are_few(const sp_linear_job *job) { return job->rows <= job->tiler->rows && job->rows <= 8; }

void sp_linear_few_chunk(const sp_linear_job *job, size_t chunk) {
  const int64_t panel = (int64_t)chunk;
  const int64_t count = sp_min(job->stripes, sp_ceil_div(job->panels - panel, job->groups));
  sp_linear_tile(job, 0, job->rows, panel, job->groups, count, job->weight + panel * 16 * job->k);
}

static void few_rows_chunk(void *context, size_t chunk) { sp_linear_few_chunk(context, chunk); }

void sp_linear_run_few(sp_linear_job *jobs, int count, sp_pool *pool, void (*chunk)(void *, size_t), void *context) {
  int64_t stripes = jobs[0].tiler->panels[jobs[0].rows], chunks, bytes = 0;
  for (;; stripes--) {
    chunks = 0;
    for (int i = 0; i < count; i++) {
      jobs[i].stripes = stripes;
      jobs[i].groups = sp_ceil_div(jobs[i].panels, stripes);
      chunks += jobs[i].groups;
    }
    if (stripes == 1 || chunks >= 12) break;
  }
  for (int i = 0; i < count; i++) bytes += jobs[i].panels * jobs[i].k * 64;
  sp_parallel_for(bytes < SP_LINEAR_SMALL ? NULL : pool, (size_t)chunks, chunk, context);
}

bool sp_linear_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *weight = call->operands[1], *bias = call->operands[2];
  const sp_tensor *out = call->results[0];
  const layout l = layout_of(call);
  if (l.rows == 0 || l.n == 0) return true;
  char *scratch = call->scratch;
  sp_linear_job job = {.tiler = sp_tiler_in_use(),
                       .a = a->data,
                       .weight = weight->data,
                       .out = out->data,
                       .rows = l.rows,
                       .n = l.n,
                       .k = l.k,
                       .a_row = l.a_row,
                       .out_row = l.out_row,
                       .panels = sp_ceil_div(l.n, 16)};
  if (l.a_copy) {
    const sp_tensor dense = sp_linear_dense_like(a, scratch);
    sp_copy_view(&dense, a, run->pool);
    job.a = (const float *)(const void *)scratch;
    scratch += l.a_copy;
  }
  if (l.out_copy) {
    job.out = (float *)(void *)scratch;
    scratch += l.out_copy;
  }
  // A strided bias is rare and small: it is added at the end instead of by every chunk.
  if (bias && (bias->strides[0] == 1 || l.n == 1)) job.bias = bias->data;
  if (weight->layout == SP_PANEL_16 && sp_linear_are_few(&job)) {
    sp_linear_run_few(&job, 1, run->pool, few_rows_chunk, &job);
  } else {
    const bool small = l.k * job.panels * 64 < SP_LINEAR_SMALL && l.rows < 16;
    sp_linear_many(&job, weight, scratch, small ? NULL : run->pool);
  }
  if (bias && !job.bias) {
    const float *values = bias->data;
    for (int64_t r = 0; r < l.rows; r++)
      for (int64_t i = 0; i < l.n; i++) job.out[r * job.out_row + i] += values[i * bias->strides[0]];
  }
  if (l.out_copy) {
    const sp_tensor dense = sp_linear_dense_like(out, job.out);
    sp_copy_view(out, &dense, run->pool);
  }
  return true;
}
