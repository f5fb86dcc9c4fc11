#include "kernel.h"

size_t sp_panel_bytes(int64_t n, int64_t k) {
  if (n < 0 || k < 0) return SIZE_MAX;
  uint64_t rows, bytes;
  if (__builtin_add_overflow((uint64_t)n, 15, &rows)) return SIZE_MAX;
  rows &= ~(uint64_t)15;
  if (__builtin_mul_overflow(rows, (uint64_t)k, &bytes) || __builtin_mul_overflow(bytes, 4, &bytes) ||
      bytes > INT64_MAX)
    return SIZE_MAX;
  return (size_t)bytes;
}

typedef float lanes __attribute__((vector_size(16)));
typedef float loose_lanes __attribute__((vector_size(16), aligned(4)));

// Four rows and columns turned, in vectors that every processor has.
static void turn(const float *from, int64_t row, float *panel) {
  const lanes a = *(const loose_lanes *)from, b = *(const loose_lanes *)(from + row),
              c = *(const loose_lanes *)(from + 2 * row), d = *(const loose_lanes *)(from + 3 * row);
  const lanes ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
              abl = __builtin_shufflevector(a, b, 2, 6, 3, 7), cdl = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *(loose_lanes *)panel = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  *(loose_lanes *)(panel + 16) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  *(loose_lanes *)(panel + 32) = __builtin_shufflevector(abl, cdl, 0, 1, 4, 5);
  *(loose_lanes *)(panel + 48) = __builtin_shufflevector(abl, cdl, 2, 3, 6, 7);
}

void sp_panel_of_rows(const float *rows, int64_t count, int64_t row, int64_t k, float *panel) {
  const int64_t whole = count / 4 * 4;
  int64_t k0 = 0;
  // Sixteen columns at a time: the lines of all rows are used up while they are in the first cache.
  for (; k0 + 16 <= k; k0 += 16) {
    for (int64_t r = 0; r < whole; r += 4)
      for (int64_t j = k0; j < k0 + 16; j += 4) turn(rows + r * row + j, row, panel + j * 16 + r);
    for (int64_t j = k0; j < k0 + 16; j++)
      for (int64_t r = whole; r < 16; r++) panel[j * 16 + r] = r < count ? rows[r * row + j] : 0.0f;
  }
  for (; k0 < k; k0++)
    for (int64_t r = 0; r < 16; r++) panel[k0 * 16 + r] = r < count ? rows[r * row + k0] : 0.0f;
}

void sp_panel_pack(const float *source, int64_t n, int64_t k, int64_t first_row, int64_t rows, float *panels) {
  for (int64_t base = 0; base < rows; base += 16)
    sp_panel_of_rows(source + base * k, sp_max(0, sp_min(16, sp_min(n - first_row, rows) - base)), k, k,
                     panels + base * k);
}
