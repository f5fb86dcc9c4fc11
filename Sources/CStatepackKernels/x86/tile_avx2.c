#if defined(__x86_64__)
#include <immintrin.h>

#include "../tile.h"

#define TARGET __attribute__((target("avx2,fma")))
#define UNROLL _Pragma("GCC unroll 16")

enum { AHEAD = 2048 };

// One instance per number of rows and panels, so that all sums stay in registers.
__attribute__((always_inline)) TARGET static inline void sums(const sp_tile *t, const int rows, const int panels) {
  __m256 acc[6][12];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < 2 * panels; p++) acc[r][p] =
      t->accumulates ? _mm256_loadu_ps(t->out + r * t->out_row + p / 2 * t->out_panel + p % 2 * 8)
                     : _mm256_setzero_ps();
  const float *w = t->w, *a = t->a;
  const int64_t step = t->w_step, panel = t->w_panel, a_row = t->a_row;
  for (int64_t k = 0; k < t->k; k++, w += step) {
    // With many rows the weights are loaded once and kept; with few they are operands of the multiply-add.
    __m256 x[6];
    UNROLL for (int r = 0; r < rows; r++) x[r] = _mm256_broadcast_ss(a + r * a_row + k);
    UNROLL for (int p = 0; p < panels; p++) {
      const __m256 low = _mm256_loadu_ps(w + p * panel), high = _mm256_loadu_ps(w + p * panel + 8);
      if (rows <= 3) _mm_prefetch((const char *)(w + p * panel) + AHEAD, _MM_HINT_T1);
      UNROLL for (int r = 0; r < rows; r++) {
        acc[r][2 * p] = _mm256_fmadd_ps(low, x[r], acc[r][2 * p]);
        acc[r][2 * p + 1] = _mm256_fmadd_ps(high, x[r], acc[r][2 * p + 1]);
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < 2 * panels; p++)
      _mm256_storeu_ps(t->out + r * t->out_row + p / 2 * t->out_panel + p % 2 * 8, acc[r][p]);
}

#define CASE(ROWS, PANELS) \
  case ROWS * 8 + PANELS:  \
    sums(t, ROWS, PANELS); \
    break;

TARGET static void run(const sp_tile *t) {
  // clang-format off
  switch (t->rows * 8 + t->panels) {
    CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6)
    CASE(2, 1) CASE(2, 2) CASE(2, 3)
    CASE(3, 1) CASE(3, 2)
    CASE(4, 1)
    CASE(5, 1)
    CASE(6, 1)
  }
  // clang-format on
}

const sp_tiler sp_tiler_avx2 = {run, {0, 6, 3, 2, 1, 1, 1}, 6};
#endif
