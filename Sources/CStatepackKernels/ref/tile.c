#include "../tile.h"

enum { ROWS = 4 };

// Plain C; the inner loops over a panel are what the compiler vectorises.
static void run(const sp_tile *t) {
  for (int panel = 0; panel < t->panels; panel++) {
    const float *w = t->w + panel * t->w_panel;
    float sums[ROWS][16] = {{0}};
    if (t->accumulates)
      for (int row = 0; row < t->rows; row++)
        memcpy(sums[row], t->out + row * t->out_row + panel * t->out_panel, sizeof sums[row]);
    if (t->rows == ROWS) {
      for (int64_t k = 0; k < t->k; k++, w += t->w_step)
        for (int row = 0; row < ROWS; row++)
          for (int i = 0; i < 16; i++) sums[row][i] += t->a[row * t->a_row + k] * w[i];
    } else {
      for (int64_t k = 0; k < t->k; k++, w += t->w_step)
        for (int row = 0; row < t->rows; row++)
          for (int i = 0; i < 16; i++) sums[row][i] += t->a[row * t->a_row + k] * w[i];
    }
    for (int row = 0; row < t->rows; row++)
      memcpy(t->out + row * t->out_row + panel * t->out_panel, sums[row], sizeof sums[row]);
  }
}

const sp_tiler sp_tiler_generic = {run, {0, 4, 4, 4, 4}, ROWS};

const sp_tiler *sp_tiler_in_use(void) {
  switch (sp_isa_in_use()) {
#if defined(__x86_64__)
    case SP_ISA_AVX512:
      return &sp_tiler_avx512;
    case SP_ISA_AVX2:
      return &sp_tiler_avx2;
#elif defined(__aarch64__)
    case SP_ISA_NEON:
      return &sp_tiler_neon;
#endif
    default:
      return &sp_tiler_generic;
  }
}
