#if defined(__x86_64__)
#include <immintrin.h>

#include "../tile.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define UNROLL _Pragma("GCC unroll 16")

// Bytes ahead of the loads; the distance hardly matters, having it does. Into the second cache: prefetching into the
// first takes the places there that loads in flight need, and cost 3 to 8 % of a step.
enum { AHEAD = 2048 };

// One instance per number of rows and panels, so that all sums stay in registers.
__attribute__((always_inline)) TARGET static inline void sums(const sp_tile *t, const int rows, const int panels,
                                                              const bool ahead) {
  __m512 acc[12][6];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < panels; p++) acc[r][p] =
      t->accumulates ? _mm512_loadu_ps(t->out + r * t->out_row + p * t->out_panel) : _mm512_setzero_ps();
  const float *w = t->w, *a = t->a;
  const int64_t step = t->w_step, panel = t->w_panel, a_row = t->a_row;
  for (int64_t k = 0; k < t->k; k++, w += step) {
    __m512 weights[6];
    UNROLL for (int p = 0; p < panels; p++) {
      weights[p] = _mm512_loadu_ps(w + p * panel);
      if (ahead) _mm_prefetch((const char *)(w + p * panel) + AHEAD, _MM_HINT_T1);
    }
    UNROLL for (int r = 0; r < rows; r++) {
      const __m512 x = _mm512_set1_ps(a[r * a_row + k]);
      UNROLL for (int p = 0; p < panels; p++) acc[r][p] = _mm512_fmadd_ps(weights[p], x, acc[r][p]);
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < panels; p++)
      _mm512_storeu_ps(t->out + r * t->out_row + p * t->out_panel, acc[r][p]);
}

#define CASE(ROWS, PANELS, AHEAD_) \
  case ROWS * 8 + PANELS:          \
    sums(t, ROWS, PANELS, AHEAD_); \
    break;

TARGET static void run(const sp_tile *t) {
  // clang-format off
  switch (t->rows * 8 + t->panels) {
    CASE(1, 1, true) CASE(1, 2, true) CASE(1, 3, true) CASE(1, 4, true) CASE(1, 5, true) CASE(1, 6, true)
    CASE(2, 1, true) CASE(2, 2, true) CASE(2, 3, true) CASE(2, 4, true) CASE(2, 5, true) CASE(2, 6, true)
    CASE(3, 1, true) CASE(3, 2, true) CASE(3, 3, true) CASE(3, 4, true)
    CASE(4, 1, true) CASE(4, 2, true) CASE(4, 3, true) CASE(4, 4, true)
    CASE(5, 1, true) CASE(5, 2, true) CASE(5, 3, true)
    CASE(6, 1, true) CASE(6, 2, true) CASE(6, 3, true)
    CASE(7, 1, true) CASE(7, 2, true) CASE(7, 3, true)
    CASE(8, 1, true) CASE(8, 2, true) CASE(8, 3, true)
    CASE(9, 1, true) CASE(9, 2, true)
    CASE(10, 1, true) CASE(10, 2, true)
    CASE(11, 1, true) CASE(11, 2, true)
    CASE(12, 1, true) CASE(12, 2, true)
  }
  // clang-format on
}

const sp_tiler sp_tiler_avx512 = {run, {0, 6, 6, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2}, 12};
#endif
