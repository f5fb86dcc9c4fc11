// How fast this machine reads memory: the limit that a step is measured against.
#include "kernel.h"

// What a chunk reads from each stripe. Large enough that claiming it costs nothing, small enough that two threads
// end together.
enum { BLOCK = 256 * 1024, LINE = 64, AHEAD = 2048 };

typedef struct reading {
  const char *buffer;
  size_t stripe;  // bytes, a multiple of BLOCK
  unsigned streams;
  _Atomic uint64_t sum;
} reading;

typedef uint64_t words __attribute__((vector_size(16), aligned(16)));

// One line, prefetched into the second cache as the matrix products do. Adding its words up keeps the compiler from
// leaving loads out.
SP_INLINE words line(const char *at, words sum) {
  const words *w = (const words *)(const void *)at;
  __builtin_prefetch(at + AHEAD, 0, 2);
  return sum + ((w[0] + w[1]) + (w[2] + w[3]));
}

static void read_block(void *context, size_t block) {
  reading *r = context;
  const char *at = r->buffer + block * BLOCK;
  words sums[4] = {{0}};
  if (r->streams == 4) {
    for (size_t i = 0; i < BLOCK; i += LINE)
      for (size_t s = 0; s < 4; s++) sums[s] = line(at + s * r->stripe + i, sums[s]);
  } else {
    for (size_t i = 0; i < BLOCK; i += 4 * LINE)
      for (size_t s = 0; s < 4; s++) sums[s] = line(at + s * LINE + i, sums[s]);
  }
  const words all = sums[0] + sums[1] + sums[2] + sums[3];
  atomic_fetch_add_explicit(&r->sum, all[0] + all[1], memory_order_relaxed);
}

size_t sp_read_streams(sp_pool *pool, const void *buffer, size_t bytes, unsigned streams, uint64_t *sum) {
  reading r = {.buffer = buffer, .streams = streams == 4 ? 4 : 1};
  r.stripe = bytes / r.streams / BLOCK * BLOCK;
  sp_pool_enter(pool);
  sp_parallel_for(pool, r.stripe / BLOCK, read_block, &r);
  sp_pool_leave(pool);
  *sum = atomic_load(&r.sum);
  return r.stripe * r.streams;
}
