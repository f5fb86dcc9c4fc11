// How attention is shared out: which keys each query reads, chunks of them, and how partial results are joined.
#include "sdpa.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static const sp_attention_kernels *kernels_in_use(void) {
  switch (sp_isa_in_use()) {
#if defined(__x86_64__)
    case SP_ISA_AVX512:
      return &sp_attention_avx512;
    case SP_ISA_AVX2:
      return &sp_attention_avx2;
#elif defined(__aarch64__)
    case SP_ISA_NEON:
      return &sp_attention_neon;
#endif
    default:
      return NULL;
  }
}

// Bit n: byte n is not zero.
static uint64_t bits_of_bytes(const uint8_t *bytes) {
#if defined(__SSE2__)
  uint64_t bits = 0;
  for (int n = 0; n < 4; n++) {
    const __m128i some = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * n));
    bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(some, _mm_setzero_si128())) << 16 * n;
  }
  return ~bits;
#else
  uint64_t bits = 0;
  for (int n = 0; n < 8; n++) {
    uint64_t word;
    memcpy(&word, bytes + 8 * n, 8);
    // The top bit of each byte that is not zero, moved to the bottom; the product collects the eight at the top.
    word = (((word & 0x7f7f7f7f7f7f7f7fu) + 0x7f7f7f7f7f7f7f7fu) | word) >> 7 & 0x0101010101010101u;
    bits |= word * 0x0102040810204080u >> 56 << 8 * n;
  }
  return bits;
#endif
}

// Bit n: float n is not -inf.
static uint64_t bits_of_floats(const float *floats) {
  uint64_t bits = 0;
#if defined(__SSE2__)
  for (int n = 0; n < 16; n++)
    bits |= (uint64_t)(uint32_t)_mm_movemask_ps(_mm_cmpneq_ps(_mm_loadu_ps(floats + 4 * n), _mm_set1_ps(-INFINITY)))
            << 4 * n;
#else
  for (int n = 0; n < 64; n++) bits |= (uint64_t)(floats[n] != -INFINITY) << n;
#endif
  return bits;
}

// Masks of a large state are mostly nothing: 256 elements that exclude their keys, at the price of reading them.
static bool excludes_256(const sp_attention *t, int64_t at) {
  if (t->mask->scalar_type == SP_BOOL) {
    const uint8_t *bytes = (const uint8_t *)t->mask->data + at;
    uint64_t any = 0;
    for (int n = 0; n < 256; n += 8) {
      uint64_t word;
      memcpy(&word, bytes + n, 8);
      any |= word;
    }
    return any == 0;
  }
  const float *floats = (const float *)t->mask->data + at;
  uint32_t any = 0;
  for (int n = 0; n < 256; n++) any |= floats[n] != -INFINITY;
  return any == 0;
}

uint64_t sp_attends_bits(const sp_attention *t, int64_t b, int64_t h, int64_t i, int64_t first) {
  const int64_t n = sp_min(64, t->keys - first);
  uint64_t limit = n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
  if (t->causal) {
    const int64_t reach = i + 1 - first;
    if (reach <= 0) return 0;
    if (reach < 64) limit &= ((uint64_t)1 << reach) - 1;
  }
  if (!t->mask) return limit;
  const int64_t step = t->mask_strides[3], at = sp_mask_at(t, b, h, i, first);
  uint64_t bits = 0;
  if (t->mask->scalar_type == SP_BOOL) {
    const uint8_t *mask = (const uint8_t *)t->mask->data + at;
    if (step == 1 && n == 64) {
      bits = bits_of_bytes(mask);
    } else {
      for (int64_t j = 0; j < n; j++) bits |= (uint64_t)(mask[j * step] != 0) << j;
    }
  } else {
    const float *mask = (const float *)t->mask->data + at;
    if (step == 1 && n == 64) {
      bits = bits_of_floats(mask);
    } else {
      for (int64_t j = 0; j < n; j++) bits |= (uint64_t)(mask[j * step] != -INFINITY) << j;
    }
  }
  return bits & limit;
}

static size_t rounded(int64_t bytes) { return ((size_t)bytes + 63) & ~(size_t)63; }

sp_attention_room sp_attention_room_of(const sp_attention *t) {
  const int64_t rows = t->block * t->heads_per_unit, wide = sp_ceil_div(t->e, 16) * 16;
  sp_attention_room room;
  int64_t at = 0;
#define ROOM(FIELD, FLOATS) \
  room.FIELD = at;          \
  at += sp_ceil_div((FLOATS), 16) * 16
  ROOM(q, rows * t->d);
  ROOM(k, SP_ATTENTION_TILE * t->d);
  ROOM(v, SP_ATTENTION_TILE * wide);
  ROOM(s, rows * SP_ATTENTION_TILE);
  ROOM(o, rows * wide);
  ROOM(m, rows);
  ROOM(l, rows);
  ROOM(bits, t->block * 2);
#undef ROOM
  room.floats = at;
  return room;
}

// Where the fast paths apply: dense rows of keys and values, of a width that their buffers hold.
static bool is_fast(const sp_attention *t) {
  if (!kernels_in_use() || t->d > 512) return false;
  return (t->d <= 1 || t->key->strides[3] == 1) && (t->e <= 1 || t->value->strides[3] == 1) && t->keys <= INT32_MAX;
}

static int64_t distinct_lists(const sp_attention *t) {
  return sp_attention_list(t, t->batch - 1, t->heads - t->heads_per_unit, t->queries - 1) + 1;
}

// Scratch in bytes: lists, then partial results and counts, or room per thread.
typedef struct parts {
  size_t lists, partials, left, room;
  int64_t distinct, partial_size;
} parts;

static parts parts_of(const sp_attention *t) {
  parts p = {.distinct = distinct_lists(t)};
  p.lists = rounded(p.distinct * (int64_t)sizeof(sp_attention_keys));
  if (t->block > 1) {
    p.room = rounded(sp_attention_room_of(t).floats * 4);
  } else {
    p.partial_size = SP_ATTENTION_VALUES + sp_ceil_div(t->e, 16) * 16;
    p.partials = rounded(t->units * SP_ATTENTION_CHUNKS * t->heads_per_unit * p.partial_size * 4);
    p.left = rounded(t->units * (int64_t)sizeof(uint32_t));
  }
  return p;
}

size_t sp_sdpa_scratch(const sp_call *call, unsigned threads) {
  const sp_attention t = sp_attention_of(call);
  if (t.units == 0 || !is_fast(&t)) return 0;
  const parts p = parts_of(&t);
  return p.lists + p.partials + p.left + p.room * threads;
}

// Reads a row of the mask once. Nothing is written that grows with the number of keys.
static void survey(sp_attention_job *job, int64_t number) {
  const sp_attention *t = &job->t;
  sp_attention_keys *list = job->lists + number;
  int64_t rest = number, i = 0, h = 0, b = 0;
  if ((t->mask && t->mask_strides[2]) || t->causal) {
    i = rest % t->queries;
    rest /= t->queries;
  }
  if (t->mask && t->mask_strides[1]) {
    h = rest % (t->heads / t->heads_per_unit) * t->heads_per_unit;
    rest /= t->heads / t->heads_per_unit;
  }
  if (t->mask && t->mask_strides[0]) b = rest;

  const int64_t end = t->causal ? sp_min(t->keys, i + 1) : t->keys;
  *list = (sp_attention_keys){.size = 0, .last = -1, .one_run = true};
  if (!t->mask) {
    list->size = end;
    list->last = end - 1;
    return;
  }
  const bool dense = t->mask_strides[3] == 1;
  for (int64_t j = 0; j < end; j += 64) {
    if (dense && j + 256 <= end && excludes_256(t, sp_mask_at(t, b, h, i, j))) {
      j += 256 - 64;
      continue;
    }
    const uint64_t bits = sp_attends_bits(t, b, h, i, j);
    if (bits == 0) continue;
    if (list->size == 0) list->first = j + __builtin_ctzll(bits);
    list->last = j + 63 - __builtin_clzll(bits);
    list->size += bits == ~(uint64_t)0 ? 64 : __builtin_popcountll(bits);
  }
  list->one_run = list->last + 1 - list->first == list->size || list->size == 0;
  if (list->one_run || t->block > 1) return;
  const int64_t step = sp_attention_chunk_keys(list->size);
  int64_t before = 0, chunk = 0;
  for (int64_t j = list->first & ~(int64_t)63; j <= list->last; j += 64) {
    uint64_t bits = sp_attends_bits(t, b, h, i, j);
    const int64_t count = __builtin_popcountll(bits);
    for (int64_t passed = before; chunk * step < before + count; chunk++) {
      for (; passed < chunk * step; passed++) bits &= bits - 1;
      list->starts[chunk] = j + __builtin_ctzll(bits);
      if ((chunk + 1) * step >= list->size) return;
    }
    before += count;
  }
}

enum { SURVEYS = 16 };

static void survey_some(void *context, size_t chunk) {
  sp_attention_job *job = context;
  const int64_t first = (int64_t)chunk * SURVEYS, distinct = distinct_lists(&job->t);
  for (int64_t n = first; n < sp_min(first + SURVEYS, distinct); n++) survey(job, n);
}

// Below this many bytes of keys and values another thread costs more than it saves.
enum { SMALL = 1 << 15 };

bool sp_sdpa_run(const sp_call *call, sp_run *run) {
  sp_attention_job job = {.t = sp_attention_of(call)};
  const sp_attention *t = &job.t;
  if (t->units == 0) return true;
  if (!is_fast(t)) {
    sp_attention_reference(&job, run->pool);
    run->statistics.attention_rows += job.rows_read;
    return true;
  }
  const sp_attention_kernels *kernels = kernels_in_use();
  const parts p = parts_of(t);
  char *const scratch = call->scratch;
  job.lists = call->scratch;
  if (p.distinct > 1) {
    sp_parallel_for(run->pool, (size_t)sp_ceil_div(p.distinct, SURVEYS), survey_some, &job);
  } else {
    survey(&job, 0);
  }
  if (t->block > 1) {
    job.tiler = sp_tiler_in_use();
    job.slots.base = scratch + p.lists;
    job.slots.stride = p.room;
    sp_parallel_for(run->pool, (size_t)t->units, kernels->many, &job);
  } else {
    job.partials = (float *)(void *)(scratch + p.lists);
    job.left = (_Atomic uint32_t *)(void *)(scratch + p.lists + p.partials);
    job.partial_size = p.partial_size;
    job.chunks = 1;
    uint64_t rows = 0;
    for (int64_t unit = 0; unit < t->units; unit++) {
      const sp_attention_unit u = sp_attention_unit_of(t, unit);
      const int64_t size = job.lists[sp_attention_list(t, u.b, u.h, u.first)].size, chunks = sp_attention_chunks(size);
      rows += (uint64_t)size;
      job.chunks = sp_max(job.chunks, chunks);
      atomic_init(&job.left[unit], (uint32_t)chunks);
    }
    job.rows_read = rows;
    const bool small = rows * (uint64_t)(t->d + t->e) * 4 < SMALL;
    sp_parallel_for(small ? NULL : run->pool, (size_t)(t->units * job.chunks), kernels->few, &job);
  }
  run->statistics.attention_rows += job.rows_read;
  return true;
}
