// How attention is shared out: which keys each query reads, chunks of them, and how partial results are joined.
#include "sdpa.h"

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

// 64 bytes that are all zero or all one are what masks mostly consist of.
static uint64_t bits_of_bytes(const uint8_t *bytes) {
  uint64_t words[8], any = 0, same = 0, bits = 0;
  memcpy(words, bytes, 64);
  for (int w = 0; w < 8; w++) {
    any |= words[w];
    same |= words[w] ^ 0x0101010101010101u;
  }
  if (!any) return 0;
  if (!same) return ~(uint64_t)0;
  for (int n = 0; n < 64; n++) bits |= (uint64_t)(bytes[n] != 0) << n;
  return bits;
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
    for (int64_t j = 0; j < n; j++) bits |= (uint64_t)(mask[j * step] != -INFINITY) << j;
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
  const sp_attention_unit last = sp_attention_unit_of(t, t->units - 1);
  return sp_attention_list(t, &last) + 1;
}

// Parts of the scratch of few queries, in bytes.
typedef struct parts {
  size_t lists, sizes, partials;
  int64_t chunks, partial_size;
} parts;

static parts parts_of(const sp_attention *t) {
  parts p;
  const int64_t distinct = distinct_lists(t);
  p.chunks = 8;
  p.partial_size = sp_ceil_div(2 + t->e, 16) * 16;
  p.lists = rounded(distinct * t->keys * 4);
  p.sizes = rounded(distinct * 8);
  p.partials = rounded(t->units * p.chunks * t->heads_per_unit * p.partial_size * 4);
  return p;
}

size_t sp_sdpa_scratch(const sp_call *call, unsigned threads) {
  const sp_attention t = sp_attention_of(call);
  if (t.units == 0 || !is_fast(&t)) return 0;
  if (t.block > 1) return rounded(sp_attention_room_of(&t).floats * 4) * threads;
  const parts p = parts_of(&t);
  return p.lists + p.sizes + p.partials;
}

static void make_list(sp_attention_job *job, const sp_attention_unit *u, int64_t list) {
  const sp_attention *t = &job->t;
  int32_t *to = job->lists + list * t->keys;
  int64_t n = 0;
  for (int64_t j0 = 0; j0 < t->keys; j0 += 64) {
    uint64_t bits = sp_attends_bits(t, u->b, u->h, u->first, j0);
    if (bits == ~(uint64_t)0) {
      for (int j = 0; j < 64; j++) to[n + j] = (int32_t)(j0 + j);
      n += 64;
    } else {
      for (; bits; bits &= bits - 1) to[n++] = (int32_t)(j0 + __builtin_ctzll(bits));
    }
  }
  job->list_sizes[list] = n;
}

// Partial results of a unit in order of chunks.
static void join(const sp_attention_job *job, int64_t unit) {
  const sp_attention *t = &job->t;
  const sp_attention_unit u = sp_attention_unit_of(t, unit);
  const int64_t size = job->list_sizes[sp_attention_list(t, &u)],
                chunks = sp_ceil_div(size, sp_attention_chunk_keys(size));
  const int64_t *os = t->out->strides, step = t->heads_per_unit * job->partial_size;
  for (int64_t h = 0; h < t->heads_per_unit; h++) {
    float *first = job->partials + unit * job->chunks * step + h * job->partial_size;
    float *out = (float *)t->out->data + u.b * os[0] + (u.h + h) * os[1] + u.first * os[2];
    float largest = -INFINITY, sum = 0.0f;
    for (int64_t c = 0; c < chunks; c++) largest = first[c * step] > largest ? first[c * step] : largest;
    for (int64_t c = 0; c < chunks; c++) {
      // A chunk without a finite score weighs nothing, unless its sum is NaN.
      const float *p = first + c * step;
      const float weight = p[0] == largest ? 1.0f : expf(p[0] - largest);
      sum += p[1] * weight;
      for (int64_t i = 0; i < t->e; i++) first[2 + i] = c == 0 ? p[2 + i] * weight : first[2 + i] + p[2 + i] * weight;
    }
    const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
    if (os[3] == 1) {
      for (int64_t i = 0; i < t->e; i++) out[i] = chunks ? first[2 + i] * scale : 0.0f;
    } else {
      for (int64_t i = 0; i < t->e; i++) out[i * os[3]] = chunks ? first[2 + i] * scale : 0.0f;
    }
  }
}

bool sp_sdpa_run(const sp_call *call, sp_run *run) {
  sp_attention_job job = {.t = sp_attention_of(call), .tiler = sp_tiler_in_use()};
  const sp_attention *t = &job.t;
  if (t->units == 0) return true;
  const sp_attention_kernels *kernels = kernels_in_use();
  if (!is_fast(t)) {
    sp_attention_reference(&job, run->pool);
  } else if (t->block > 1) {
    job.slots.base = call->scratch;
    job.slots.stride = rounded(sp_attention_room_of(t).floats * 4);
    sp_parallel_for(run->pool, (size_t)t->units, kernels->many, &job);
  } else {
    const parts p = parts_of(t);
    job.lists = call->scratch;
    job.list_sizes = (int64_t *)(void *)((char *)call->scratch + p.lists);
    job.partials = (float *)(void *)((char *)call->scratch + p.lists + p.sizes);
    job.partial_size = p.partial_size;
    int64_t made = 0;
    job.chunks = 1;
    for (int64_t unit = 0; unit < t->units; unit++) {
      const sp_attention_unit u = sp_attention_unit_of(t, unit);
      const int64_t list = sp_attention_list(t, &u);
      // Units come in an order in which a list that was not made yet has the next number, or an earlier one again.
      if (list == made) {
        make_list(&job, &u, list);
        made++;
      }
      const int64_t size = job.list_sizes[list];
      job.rows_read += (uint64_t)size;
      job.chunks = sp_max(job.chunks, sp_ceil_div(size, sp_attention_chunk_keys(size)));
    }
    sp_parallel_for(run->pool, (size_t)(t->units * job.chunks), kernels->few, &job);
    for (int64_t unit = 0; unit < t->units; unit++) join(&job, unit);
  }
  run->statistics.attention_rows += job.rows_read;
  return true;
}
