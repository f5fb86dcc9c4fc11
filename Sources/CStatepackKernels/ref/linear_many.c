// Many rows are bound by arithmetic: a chunk is a block of rows times a group of panels.
#include "linear.h"

// About how many rows a chunk has, its panels, and how much of k is summed before the next tile: two or three panels of
// that length stay in the second cache while all rows of the chunk pass by them.
enum { BLOCK_ROWS = 96, BLOCK_PANELS = 6, BLOCK_K = 1024 };

size_t sp_linear_many_room(const sp_tensor *weight) {
  return weight->layout == SP_ROW_MAJOR ? ((size_t)weight->shape[1] * 64 + 63) & ~(size_t)63 : 0;
}

// Rows per tile, as even as they go: 8 and 8 are faster than 12 and 4.
static int64_t rows_per_tile(const sp_linear_job *job, int64_t rows) {
  return rows == 0 ? 1 : sp_ceil_div(rows, sp_ceil_div(rows, job->tiler->rows));
}

static void many_rows(const sp_linear_job *job, int64_t first_row, int64_t last_row, int64_t first_panel,
                      int64_t last_panel) {
  const int64_t rows = rows_per_tile(job, last_row - first_row), step = job->tiler->panels[rows];
  // An incomplete panel goes through a buffer, all of k at once.
  const int64_t complete = sp_min(last_panel, job->n / 16);
  for (int64_t k = 0; k < job->k; k += BLOCK_K)
    for (int64_t panel = first_panel; panel < complete; panel += step)
      for (int64_t row = first_row; row < last_row; row += rows) {
        const sp_tile t = {.rows = (int)sp_min(rows, last_row - row),
                           .panels = (int)sp_min(step, complete - panel),
                           .k = sp_min(BLOCK_K, job->k - k),
                           .a = job->a + row * job->a_row + k,
                           .a_row = job->a_row,
                           .w = job->weight + panel * 16 * job->k + k * 16,
                           .w_step = 16,
                           .w_panel = 16 * job->k,
                           .out = job->out + row * job->out_row + panel * 16,
                           .out_row = job->out_row,
                           .out_panel = 16,
                           .accumulates = k > 0};
        job->tiler->run(&t);
      }
  if (complete > first_panel && job->k > 0)
    sp_linear_add_bias(job, first_row, last_row - first_row, first_panel * 16, (complete - first_panel) * 16);
  const int64_t rest = job->k > 0 ? sp_max(first_panel, complete) : first_panel;
  for (int64_t panel = rest; panel < last_panel; panel++)
    for (int64_t row = first_row; row < last_row; row += rows)
      sp_linear_tile(job, row, sp_min(rows, last_row - row), panel, 1, 1, job->weight + panel * 16 * job->k);
}

static void many_rows_chunk(void *context, size_t chunk) {
  const sp_linear_job *job = context;
  const int64_t row = (int64_t)chunk / job->panel_groups * job->block_rows;
  const int64_t panel = (int64_t)chunk % job->panel_groups * BLOCK_PANELS;
  many_rows(job, row, sp_min(job->rows, row + job->block_rows), panel, sp_min(job->panels, panel + BLOCK_PANELS));
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
  const float *from = (const float *)w->data + first * w->strides[0];
  if (w->strides[1] == 1 || job->k == 1) {
    sp_panel_of_rows(from, rows, w->strides[0], job->k, packed);
  } else {
    for (int64_t r = 0; r < 16; r++)
      for (int64_t k = 0; k < job->k; k++)
        packed[k * 16 + r] = r < rows ? from[r * w->strides[0] + k * w->strides[1]] : 0.0f;
  }
  const int64_t per_tile = rows_per_tile(job, job->rows);
  for (int64_t row = 0; row < job->rows; row += per_tile)
    sp_linear_tile(job, row, sp_min(per_tile, job->rows - row), panel, 1, 1, packed);
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
    // Blocks as even as whole tiles allow: a small one would wait for as many weights as a large one.
    const int64_t even = sp_ceil_div(job->rows, sp_max(1, (job->rows + BLOCK_ROWS / 2) / BLOCK_ROWS));
    job->block_rows = sp_ceil_div(even, job->tiler->rows) * job->tiler->rows;
    const int64_t blocks = sp_ceil_div(job->rows, job->block_rows);
    sp_parallel_for(pool, (size_t)(blocks * job->panel_groups), many_rows_chunk, job);
  }
}
