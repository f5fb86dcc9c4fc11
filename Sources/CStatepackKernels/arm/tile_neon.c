#if defined(__aarch64__)
#include <arm_neon.h>

#include "../tile.h"

#define UNROLL _Pragma("GCC unroll 24")

// Bytes ahead of the loads; the distance hardly matters, having it does.
enum { AHEAD = 1024 };

// One instance per number of rows and panels, so that all sums stay in registers: 24 of the 32 at most, and with one
// row six panels, which are six streams of weights from memory.
__attribute__((always_inline)) static inline void sums(const sp_tile *t, const int rows, const int panels) {
  float32x4_t acc[6][24];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < 4 * panels; p++) acc[r][p] =
      t->accumulates ? vld1q_f32(t->out + r * t->out_row + p / 4 * t->out_panel + p % 4 * 4) : vdupq_n_f32(0.0f);
  const float *w = t->w, *a = t->a;
  const int64_t step = t->w_step, panel = t->w_panel, a_row = t->a_row;
  for (int64_t k = 0; k < t->k; k++, w += step) {
    float32x4_t x[6];
    UNROLL for (int r = 0; r < rows; r++) x[r] = vld1q_dup_f32(a + r * a_row + k);
    UNROLL for (int p = 0; p < panels; p++) {
      if (rows <= 3) __builtin_prefetch((const char *)(w + p * panel) + AHEAD);
      UNROLL for (int i = 0; i < 4; i++) {
        const float32x4_t weights = vld1q_f32(w + p * panel + i * 4);
        UNROLL for (int r = 0; r < rows; r++) acc[r][4 * p + i] = vfmaq_f32(acc[r][4 * p + i], weights, x[r]);
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < 4 * panels; p++)
      vst1q_f32(t->out + r * t->out_row + p / 4 * t->out_panel + p % 4 * 4, acc[r][p]);
}

#define CASE(ROWS, PANELS) \
  case ROWS * 8 + PANELS:  \
    sums(t, ROWS, PANELS); \
    break;

static void run(const sp_tile *t) {
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

const sp_tiler sp_tiler_neon = {run, {0, 6, 3, 2, 1, 1, 1}, 6};
#endif
