#include "kernel.h"

// CRC-32C, reflected polynomial 0x82f63b78, eight bytes a step by tables.
static uint32_t table[8][256];

__attribute__((constructor)) static void make_table(void) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    table[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; i++)
    for (int t = 1; t < 8; t++) table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 255];
}

static uint32_t crc_table(uint32_t crc, const uint8_t *p, size_t count) {
  for (; count >= 8; count -= 8, p += 8) {
    const uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
          table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
  }
  for (; count > 0; count--, p++) crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
  return crc;
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__clang__))
#define SP_HARDWARE_CRC 1
// Three streams hide the latency of the instruction. Their sums are joined by shifting the first over the
// bytes of the second with a table of what a byte becomes BLOCK zero bytes later.
enum { BLOCK = 4096 };
static uint32_t shift_table[4][256];

__attribute__((constructor)) static void make_shift_table(void) {
  // Appending zero bytes is linear over the bits of the sum.
  uint32_t bits[32];
  for (int bit = 0; bit < 32; bit++) {
    uint32_t crc = 1u << bit;
    for (int i = 0; i < BLOCK * 8; i++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    bits[bit] = crc;
  }
  for (int t = 0; t < 4; t++)
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t crc = 0;
      for (int bit = 0; bit < 8; bit++)
        if (i >> bit & 1) crc ^= bits[t * 8 + bit];
      shift_table[t][i] = crc;
    }
}

static inline uint32_t shift(uint32_t crc) {
  return shift_table[0][crc & 255] ^ shift_table[1][crc >> 8 & 255] ^ shift_table[2][crc >> 16 & 255] ^
         shift_table[3][crc >> 24];
}

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC64(crc, value) ((uint32_t)_mm_crc32_u64(crc, value))
#define CRC8(crc, value) _mm_crc32_u8(crc, value)
#else
#include <arm_acle.h>
#define CRC_TARGET __attribute__((target("crc")))
#define CRC64(crc, value) __crc32cd(crc, value)
#define CRC8(crc, value) __crc32cb(crc, value)
#endif

static inline uint64_t load64(const uint8_t *p) {
  uint64_t value;
  memcpy(&value, p, 8);
  return value;
}

CRC_TARGET static uint32_t crc_hardware(uint32_t crc, const uint8_t *p, size_t count) {
  for (; count >= 3 * BLOCK; count -= 3 * BLOCK, p += 3 * BLOCK) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < BLOCK; i += 8) {
      crc = CRC64(crc, load64(p + i));
      second = CRC64(second, load64(p + BLOCK + i));
      third = CRC64(third, load64(p + 2 * BLOCK + i));
    }
    crc = shift(shift(crc) ^ second) ^ third;
  }
  for (; count >= 8; count -= 8, p += 8) crc = CRC64(crc, load64(p));
  for (; count > 0; count--, p++) crc = CRC8(crc, *p);
  return crc;
}

static bool has_crc(void) {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#elif defined(__APPLE__)
  return true;
#else
  return sp_processor_has_crc();
#endif
}
#endif

uint32_t sp_crc32c(uint32_t seed, const void *bytes, size_t count) {
#if SP_HARDWARE_CRC
  if (sp_isa_in_use() != SP_ISA_GENERIC && has_crc()) return ~crc_hardware(~seed, bytes, count);
#endif
  return ~crc_table(~seed, bytes, count);
}
