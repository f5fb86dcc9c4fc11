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

void sp_panel_pack(const float *source, int64_t n, int64_t k, int64_t first_row, int64_t rows, float *panels) {
  for (int64_t base = first_row; base < first_row + rows; base += 16) {
    const int64_t in_panel = sp_min(16, sp_min(n, first_row + rows) - base);
    // Blocks of 64 columns keep both sides of the transposition in the first cache.
    for (int64_t k0 = 0; k0 < k; k0 += 64) {
      const int64_t k1 = sp_min(k, k0 + 64);
      for (int64_t r = 0; r < 16; r++) {
        const float *row = r < in_panel ? source + (base - first_row + r) * k : NULL;
        for (int64_t j = k0; j < k1; j++) panels[(base - first_row) * k + j * 16 + r] = row ? row[j] : 0.0f;
      }
    }
  }
}
