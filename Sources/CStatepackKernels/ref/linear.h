// What the parts of linear share: few rows (linear.c), many rows (linear_many.c), and what is fused with it
// (linear_fused.c).
#ifndef STATEPACK_LINEAR_H
#define STATEPACK_LINEAR_H

#include "../onednn.h"
#include "../tile.h"

// Bytes of weights below which a call stays on the caller's thread.
enum { SP_LINEAR_SMALL = 65536 };

typedef struct sp_linear_job {
  const sp_tiler *tiler;
  const float *a, *weight, *bias;
  float *out;
  int64_t rows, n, k, a_row, out_row;
  int64_t panels, stripes, groups;   // few rows
  int64_t panel_groups, block_rows;  // many rows
  const sp_tensor *row_major;
  sp_onednn_product *products[3];  // of 64, 32 and 16 rows; NULL without oneDNN
  sp_slots slots;
} sp_linear_job;

// What runs of a valid call with many rows look up instead of making it.
void sp_linear_many_prepare(const sp_call *call);

// A dense tensor of the shape of `t`.
sp_tensor sp_linear_dense_like(const sp_tensor *t, void *data);

// The rows of a tensor: its leading axes seen as one, when they are evenly spaced and the last one is dense.
bool sp_linear_rows(const sp_tensor *t, int64_t *row_stride);

// Few rows of packed weights: each of `groups` chunks has panels chunk, chunk + groups, ... (at most `stripes`), bias
// included. More rows go to sp_linear_many.
bool sp_linear_are_few(const sp_linear_job *job);
// Shares out the chunks of jobs that are one pass: as many stripes as fit, but enough chunks for all threads. Sets
// their stripes and groups; chunks of the first job come first.
void sp_linear_run_few(sp_linear_job *jobs, int count, sp_pool *pool, void (*chunk)(void *, size_t), void *context);
void sp_linear_few_chunk(const sp_linear_job *job, size_t chunk);

// Bytes of scratch per thread that sp_linear_many needs.
size_t sp_linear_many_room(const sp_tensor *weight);
// Any number of rows. Of the job, everything but what is for few rows is set; `room` is scratch.
void sp_linear_many(sp_linear_job *job, const sp_tensor *weight, char *room, sp_pool *pool);

// Rows row..<row+rows times panels panel, panel + panel_step, ... (`count` of them, the first at `w`), and the bias; at
// most what the tiler takes at once. Only the last panel of a matrix can be incomplete.
void sp_linear_tile(const sp_linear_job *job, int64_t row, int64_t rows, int64_t panel, int64_t panel_step,
                    int64_t count, const float *w);
void sp_linear_add_bias(const sp_linear_job *job, int64_t row, int64_t rows, int64_t column, int64_t columns);

#endif
