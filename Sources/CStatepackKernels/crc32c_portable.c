#include "statepack_kernels.h"

// Until the fast one is linked: a definition elsewhere takes the place of this weak one.
__attribute__((weak)) uint32_t sp_crc32c(uint32_t seed, const void *bytes, size_t count) {
  const uint8_t *p = bytes;
  uint32_t crc = ~seed;
  for (size_t i = 0; i < count; i++) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
  }
  return ~crc;
}
