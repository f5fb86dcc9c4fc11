// Many rows are bound by arithmetic: a chunk is a block of rows times a group of panels.
#include "linear.h"

// Rows of a chunk, and its panels.
enum { BLOCK_ROWS = 96, BLOCK_PANELS = 6 };

size_t sp_linear_many_room(const sp_tensor *weight) {
  return weight->layout == SP_ROW_MAJOR ? ((size_t)weight->shape[1] * 64 + 63) & ~(size_t)63 : 0;
}

static void many_rows(const sp_linear_job *job, int64_t first_row, int64_t last_row, int64_t first_panel,
                      int64_t last_panel) {
  const int64_t step = job->tiler->panels[job->tiler->rows];
  for (int64_t panel = first_panel; panel < last_panel; panel += step)
    for (int64_t row = first_row; row < last_row; row += job->tiler->rows)
      sp_linear_tile(job, row, sp_min(job->tiler->rows, last_row - row), panel, 1, sp_min(step, last_panel - panel),
                     job->weight + panel * 16 * job->k);
}

static void many_rows_chunk(void *context, size_t chunk) {
  const sp_linear_job *job = context;
  const int64_t row = (int64_t)chunk / job->panel_groups * BLOCK_ROWS;
  const int64_t panel = (int64_t)chunk % job->panel_groups * BLOCK_PANELS;
  many_rows(job, row, sp_min(job->rows, row + BLOCK_ROWS), panel, sp_min(job->panels, panel + BLOCK_PANELS));
}

// --- oneDNN -------------------------------------------------------------------------------------

void sp_linear_many_prepare(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *weight = call->operands[1];
  if (weight->layout != SP_PANEL_16 || a->shape[a->rank - 1] == 0) return;
  if (sp_elements(a) / a->shape[a->rank - 1] >= SP_ONEDNN_LEAST_ROWS)
    sp_onednn_prepare(weight->shape[0], weight->shape[1]);
}

// True when every block of rows has its product.
static bool finds_products(sp_linear_job *job) {
  if (job->rows < SP_ONEDNN_LEAST_ROWS || job->a_row != job->k || job->out_row != job->n ||
      sp_matmul_in_use() != SP_MATMUL_ONEDNN)
    return false;
  for (int i = 0; i < 3; i++) {
    job->products[i] = sp_onednn_find(SP_ONEDNN_MOST_ROWS >> i, job->n, job->k);
    if (!job->products[i]) return false;
  }
  return true;
}

// One block of 64 rows, or what is left after those: 32 and 16 by oneDNN, the last ones by the tile.
static void onednn_chunk(void *context, size_t chunk) {
  const sp_linear_job *job = context;
  int64_t row = (int64_t)chunk * SP_ONEDNN_MOST_ROWS;
  const int64_t end = sp_min(job->rows, row + SP_ONEDNN_MOST_ROWS);
  for (int i = 0; i < 3; i++) {
    const int64_t rows = SP_ONEDNN_MOST_ROWS >> i;
    if (end - row < rows) continue;
    if (!sp_onednn_run(job->products[i], job->a + row * job->k, job->weight, job->out + row * job->n)) continue;
    sp_linear_add_bias(job, row, rows, 0, job->n);
    row += rows;
  }
  many_rows(job, row, end, 0, job->panels);
}

// One panel, packed into this thread's room first.
static void row_major_chunk(void *context, size_t chunk) {
  sp_linear_job *job = context;
  const int64_t panel = (int64_t)chunk, first = panel * 16, rows = sp_min(16, job->n - first);
  const sp_tensor *w = job->row_major;
  unsigned slot;
  float *packed = sp_slot_take(&job->slots, &slot);
  for (int64_t r = 0; r < 16; r++) {
    const float *from = (const float *)w->data + (first + r) * w->strides[0];
    for (int64_t k = 0; k < job->k; k++) packed[k * 16 + r] = r < rows ? from[k * w->strides[1]] : 0.0f;
  }
  for (int64_t row = 0; row < job->rows; row += job->tiler->rows)
    sp_linear_tile(job, row, sp_min(job->tiler->rows, job->rows - row), panel, 1, 1, packed);
  sp_slot_give(&job->slots, slot);
}

void sp_linear_many(sp_linear_job *job, const sp_tensor *weight, char *room, sp_pool *pool) {
  if (weight->layout == SP_ROW_MAJOR) {
    job->row_major = weight;
    job->slots.base = room;
    job->slots.stride = sp_linear_many_room(weight);
    sp_parallel_for(pool, (size_t)job->panels, row_major_chunk, job);
  } else if (finds_products(job)) {
    sp_parallel_for(pool, (size_t)sp_ceil_div(job->rows, SP_ONEDNN_MOST_ROWS), onednn_chunk, job);
  } else {
    job->panel_groups = sp_ceil_div(job->panels, BLOCK_PANELS);
    const int64_t blocks = sp_ceil_div(job->rows, BLOCK_ROWS);
    sp_parallel_for(pool, (size_t)(blocks * job->panel_groups), many_rows_chunk, job);
  }
}
