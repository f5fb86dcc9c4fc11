#include "../tile.h"

enum { ROWS = 4 };

typedef float lanes __attribute__((vector_size(16)));
typedef float loose_lanes __attribute__((vector_size(16), aligned(4)));

// Eight columns at a time: the sums of four rows are eight vectors of four, which fit in the 16 registers that every
// processor has, with room for the weights. Whatever the number of rows, no loop but that along k is left.
SP_INLINE void half(const sp_tile *t, const int rows, const float *w, float *out) {
  lanes sums[ROWS][2];
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < 2; i++)
      sums[row][i] =
          t->accumulates ? (lanes) * (const loose_lanes *)(out + row * t->out_row + i * 4) : (lanes){0, 0, 0, 0};
  for (int64_t k = 0; k < t->k; k++, w += t->w_step) {
    const lanes low = *(const loose_lanes *)w, high = *(const loose_lanes *)(w + 4);
    for (int row = 0; row < rows; row++) {
      const float x = t->a[row * t->a_row + k];
      const lanes xs = {x, x, x, x};
      sums[row][0] += xs * low;
      sums[row][1] += xs * high;
    }
  }
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < 2; i++) *(loose_lanes *)(out + row * t->out_row + i * 4) = sums[row][i];
}

static void run(const sp_tile *t) {
  for (int panel = 0; panel < t->panels; panel++)
    for (int column = 0; column < 16; column += 8) {
      const float *w = t->w + panel * t->w_panel + column;
      float *out = t->out + panel * t->out_panel + column;
      switch (t->rows) {
        case 1:
          half(t, 1, w, out);
          break;
        case 2:
          half(t, 2, w, out);
          break;
        case 3:
          half(t, 3, w, out);
          break;
        case 4:
          half(t, 4, w, out);
          break;
      }
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
