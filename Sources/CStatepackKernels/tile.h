// The one loop under linear and attention: rows of `a` times panels of 16 columns, summed along k.
#ifndef STATEPACK_TILE_H
#define STATEPACK_TILE_H

#include "kernel.h"

typedef struct sp_tile {
  int rows, panels;
  int64_t k;
  const float *a;
  int64_t a_row;  // floats from one row of a to the next; along k they are neighbours
  const float *w;
  int64_t w_step;   // floats from one k to the next, 16 in a packed matrix
  int64_t w_panel;  // floats from one panel to the next
  float *out;
  int64_t out_row, out_panel;
  bool accumulates;  // adds to what out holds instead of starting from zero
} sp_tile;

// Every sum is one chain of multiply-adds along k in order (fused where the processor has them), so an element of
// the result does not depend on how many rows or panels are computed beside it.
typedef struct sp_tiler {
  void (*run)(const sp_tile *tile);
  // Most panels at once for so many rows; 0 beyond the most rows.
  uint8_t panels[16];
  int rows;  // most rows at once
} sp_tiler;

const sp_tiler *sp_tiler_in_use(void);
extern const sp_tiler sp_tiler_generic;
#if defined(__x86_64__)
extern const sp_tiler sp_tiler_avx2, sp_tiler_avx512;
#elif defined(__aarch64__)
extern const sp_tiler sp_tiler_neon;
#endif

#endif
