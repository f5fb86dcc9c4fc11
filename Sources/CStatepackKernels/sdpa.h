// What the reference of attention shares with the fast paths.
#ifndef STATEPACK_SDPA_H
#define STATEPACK_SDPA_H

#include "tile.h"

typedef struct sp_attention {
  const sp_tensor *query, *key, *value, *mask, *out;
  int64_t batch, heads, groups, queries, keys, d, e;
  int64_t mask_strides[4];  // of [B, H, Q, S]; 0 where the mask broadcasts
  bool causal;
  float scale;

  // A unit is what is worked on together: one batch entry, the heads that read the same keys (those of a group, or
  // one head where the mask differs between heads), and a block of queries.
  int64_t heads_per_unit, block, blocks, units;
} sp_attention;

// With fewer queries each is a unit of its own and the time goes into reading keys and values once; from here on
// a block of them is a matrix product.
enum { SP_ATTENTION_MANY = 8, SP_ATTENTION_ROWS = 96, SP_ATTENTION_TILE = 64 };

sp_attention sp_attention_of(const sp_call *call);

typedef struct sp_attention_unit {
  int64_t b, h, kv;      // h: first head
  int64_t first, count;  // queries
} sp_attention_unit;

SP_INLINE sp_attention_unit sp_attention_unit_of(const sp_attention *t, int64_t unit) {
  sp_attention_unit u;
  const int64_t per_batch = t->heads / t->heads_per_unit, bh = unit / t->blocks;
  u.first = unit % t->blocks * t->block;
  u.count = sp_min(t->block, t->queries - u.first);
  u.b = bh / per_batch;
  u.h = bh % per_batch * t->heads_per_unit;
  u.kv = u.h / t->groups;
  return u;
}

SP_INLINE int64_t sp_mask_at(const sp_attention *t, int64_t b, int64_t h, int64_t i, int64_t j) {
  return b * t->mask_strides[0] + h * t->mask_strides[1] + i * t->mask_strides[2] + j * t->mask_strides[3];
}

// Whether query i of head h reads key j; *added is what the mask adds to the score.
SP_INLINE bool sp_attends(const sp_attention *t, int64_t b, int64_t h, int64_t i, int64_t j, float *added) {
  *added = 0.0f;
  if (t->causal && j > i) return false;
  if (!t->mask) return true;
  const int64_t at = sp_mask_at(t, b, h, i, j);
  if (t->mask->scalar_type == SP_BOOL) return ((const uint8_t *)t->mask->data)[at] != 0;
  *added = ((const float *)t->mask->data)[at];
  return *added != -INFINITY;
}

// Bit n: query i of head h reads key first + n, for up to 64 keys.
uint64_t sp_attends_bits(const sp_attention *t, int64_t b, int64_t h, int64_t i, int64_t first);

// --- Fast paths -------------------------------------------------------------------------------

enum { SP_ATTENTION_CHUNKS = 8 };

// The keys that one row of the mask lets through. In most masks they are one run, and the mask is not read again.
typedef struct sp_attention_keys {
  int64_t size, first, last;
  bool one_run;
  // Few queries, more than one run: where each chunk starts.
  int64_t starts[SP_ATTENTION_CHUNKS];
} sp_attention_keys;

typedef struct sp_attention_job {
  sp_attention t;
  const sp_tiler *tiler;
  sp_attention_keys *lists;  // of every row of the mask that differs from others
  // Few queries.
  float *partials;         // [unit][chunk][heads_per_unit][partial_size], see sp_attention_partial
  _Atomic uint32_t *left;  // [unit]: chunks not finished; whoever finishes the last one joins them
  int64_t chunks, partial_size;
  // Many queries: room per thread.
  sp_slots slots;
  _Atomic uint64_t rows_read;
} sp_attention_job;

// A partial result: largest score, sum of weights, weighted sum of values from here on.
enum { SP_ATTENTION_LARGEST = 0, SP_ATTENTION_SUM = 1, SP_ATTENTION_VALUES = 16 };

// Which of the lists query i of head h reads.
SP_INLINE int64_t sp_attention_list(const sp_attention *t, int64_t b, int64_t h, int64_t i) {
  const bool mask = t->mask != NULL;
  int64_t at = mask && t->mask_strides[0] ? b : 0;
  if (mask && t->mask_strides[1]) at = at * (t->heads / t->heads_per_unit) + h / t->heads_per_unit;
  if ((mask && t->mask_strides[2]) || t->causal) at = at * t->queries + i;
  return at;
}

// sp_attends_bits without a look at the mask where the keys are one run.
SP_INLINE uint64_t sp_attention_bits(const sp_attention *t, const sp_attention_keys *list, int64_t b, int64_t h,
                                     int64_t i, int64_t first) {
  if (!list->one_run) return sp_attends_bits(t, b, h, i, first);
  const int64_t from = sp_max(list->first - first, 0), to = sp_min(list->last + 1 - first, 64);
  return from >= to ? 0 : ~(uint64_t)0 >> (64 - (to - from)) << from;
}

// Chunks of a list: up to eight, of a multiple of 16 keys and 64 at least; borders follow from its size alone.
SP_INLINE int64_t sp_attention_chunk_keys(int64_t keys) {
  const int64_t chunks = sp_max(1, sp_min(SP_ATTENTION_CHUNKS, keys / 64));
  return sp_max(16, sp_ceil_div(sp_ceil_div(keys, chunks), 16) * 16);
}
// At least one: it writes the zeros of a query without keys.
SP_INLINE int64_t sp_attention_chunks(int64_t keys) {
  return sp_max(1, sp_ceil_div(keys, sp_attention_chunk_keys(keys)));
}

// Room of one thread for a block: scaled queries, transposed keys, values, scores, sums, maxima, bits.
typedef struct sp_attention_room {
  int64_t q, k, v, s, o, m, l, bits, floats;
} sp_attention_room;
sp_attention_room sp_attention_room_of(const sp_attention *t);

// Plain C, one query of one head at a time, any strides.
void sp_attention_reference(sp_attention_job *job, sp_pool *pool);

typedef struct sp_attention_kernels {
  void (*few)(void *job, size_t chunk);   // (head * chunks + chunk) * queries + query
  void (*many)(void *job, size_t chunk);  // unit
} sp_attention_kernels;
#if defined(__x86_64__)
extern const sp_attention_kernels sp_attention_avx2, sp_attention_avx512;
#elif defined(__aarch64__)
extern const sp_attention_kernels sp_attention_neon;
#endif

#endif
