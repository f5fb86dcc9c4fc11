// The fast paths of attention in vectors of 16 floats, compiled once per instruction set: TARGET is its attribute.
#include "sdpa.h"
#include "vector_math.h"

// Vectors of 16 floats are passed between functions, all of which are inlined: no ABI is involved.
#pragma GCC diagnostic ignored "-Wpsabi"

#define UNROLL _Pragma("GCC unroll 16")
#define BODY __attribute__((always_inline)) TARGET static inline

typedef float lanes __attribute__((vector_size(64)));
typedef float loose_lanes __attribute__((vector_size(64), aligned(4)));

BODY lanes load(const float *p) { return *(const loose_lanes *)p; }
BODY void store(float *p, lanes v) { *(loose_lanes *)p = v; }
BODY lanes splat(float x) { return (lanes){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
// The first n of 16; the rest is zero and not read.
BODY lanes load_some(const float *p, int64_t n) {
  float whole[16] = {0};
  memcpy(whole, p, (size_t)n * 4);
  return load(whole);
}

#define PAIRS(A, B, ...) (__builtin_shufflevector(A, B, __VA_ARGS__))

// out[n] = sum of the lanes of v[n]: halves are added while two vectors are joined, four times.
BODY lanes sums_of(lanes *v) {
  UNROLL for (int i = 0; i < 8; i++) v[i] =
      PAIRS(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
      PAIRS(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  UNROLL for (int i = 0; i < 4; i++) v[i] =
      PAIRS(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
      PAIRS(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  UNROLL for (int i = 0; i < 2; i++) v[i] =
      PAIRS(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
      PAIRS(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  return PAIRS(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
         PAIRS(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}

// --- Few queries ------------------------------------------------------------------------------

enum { SUB = 128, MAX_HEADS = 4, AHEAD = 32 };

// Scores of 16 keys for one query.
BODY lanes score16(const float *q, const float *keys, const int32_t *at, int64_t stride, int64_t d) {
  lanes acc[16];
  UNROLL for (int j = 0; j < 16; j++) acc[j] = splat(0);
  int64_t c = 0;
  for (; c + 16 <= d; c += 16) {
    const lanes x = load(q + c);
    UNROLL for (int j = 0; j < 16; j++) acc[j] += load(keys + at[j] * stride + c) * x;
  }
  if (c < d) {
    const lanes x = load_some(q + c, d - c);
    for (int j = 0; j < 16; j++) acc[j] += load_some(keys + at[j] * stride + c, d - c) * x;
  }
  return sums_of(acc);
}

// acc[h][c..c+16*width] += weights[h][j] * value of key at[j], for `heads` heads.
BODY void add_values(const int heads, const int width, int64_t n, const float *values, const int32_t *at,
                     int64_t stride, const float (*weights)[SUB], float *acc, int64_t acc_row) {
  lanes sum[MAX_HEADS][4];
  UNROLL for (int h = 0; h < heads; h++) UNROLL for (int x = 0; x < width; x++) sum[h][x] =
      load(acc + h * acc_row + 16 * x);
  for (int64_t j = 0; j < n; j++) {
    const float *v = values + at[j] * stride;
    lanes row[4];
    UNROLL for (int x = 0; x < width; x++) row[x] = load(v + 16 * x);
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int x = 0; x < width; x++) sum[h][x] +=
        row[x] * splat(weights[h][j]);
  }
  UNROLL for (int h = 0; h < heads; h++) UNROLL for (int x = 0; x < width; x++)
      store(acc + h * acc_row + 16 * x, sum[h][x]);
}

BODY void add_all_values(const int heads, int64_t e, int64_t n, const float *values, const int32_t *at, int64_t stride,
                         const float (*weights)[SUB], float *acc, int64_t acc_row) {
  int64_t c = 0;
  for (; c + 64 <= e; c += 64) add_values(heads, 4, n, values + c, at, stride, weights, acc + c, acc_row);
  for (; c + 16 <= e; c += 16) add_values(heads, 1, n, values + c, at, stride, weights, acc + c, acc_row);
  for (; c < e; c++)
    for (int h = 0; h < heads; h++)
      for (int64_t j = 0; j < n; j++) acc[h * acc_row + c] += weights[h][j] * values[at[j] * stride + c];
}

// Largest of n scores, n a multiple of 16 or filled up with -inf. NaN is passed over; its weight is NaN anyway.
BODY float largest_of(const float *s, int64_t n) {
  float best[16];
  for (int x = 0; x < 16; x++) best[x] = s[x];
  for (int64_t j = 16; j < n; j += 16)
    for (int x = 0; x < 16; x++) best[x] = s[j + x] > best[x] ? s[j + x] : best[x];
  float largest = -INFINITY;
  for (int x = 0; x < 16; x++) largest = best[x] > largest ? best[x] : largest;
  return largest;
}

// s[j] becomes e^(s[j] - largest); returns their sum.
BODY float weigh(float *s, int64_t n, float largest) {
  float sum[16] = {0};
  for (int64_t j = 0; j < n; j += 16)
    for (int x = 0; x < 16; x++) {
      s[j + x] = sp_exp(s[j + x] - largest);
      sum[x] += s[j + x];
    }
  float total = 0;
  for (int x = 0; x < 16; x++) total += sum[x];
  return total;
}

// One chunk of the keys of one query, for up to MAX_HEADS heads that share them.
TARGET static void few_heads(const sp_attention_job *job, const sp_attention_unit *u, int heads, int64_t first_head,
                             const int32_t *at, int64_t n, float *partial) {
  const sp_attention *t = &job->t;
  const int64_t d = t->d, e = t->e;
  const int64_t *qs = t->query->strides, *ks = t->key->strides, *vs = t->value->strides;
  const float *keys = (const float *)t->key->data + u->b * ks[0] + u->kv * ks[1];
  const float *values = (const float *)t->value->data + u->b * vs[0] + u->kv * vs[1];
  float q[MAX_HEADS][512];
  for (int h = 0; h < heads; h++) {
    const float *from = (const float *)t->query->data + u->b * qs[0] + (first_head + h) * qs[1] + u->first * qs[2];
    for (int64_t c = 0; c < d; c++) q[h][c] = from[c * qs[3]] * t->scale;
    float *p = partial + h * job->partial_size;
    p[0] = -INFINITY;
    for (int64_t c = 1; c < 2 + e; c++) p[c] = 0.0f;
  }
  float s[MAX_HEADS][SUB];
  int32_t filled[16];
  for (int64_t j0 = 0; j0 < n; j0 += SUB) {
    const int64_t count = sp_min(SUB, n - j0), whole = count & ~(int64_t)15;
    const int64_t padded = sp_ceil_div(count, 16) * 16;
    for (int64_t j = 0; j < whole; j += 16) {
      // Values of these keys come in while the scores of the next ones are computed: two streams at once.
      for (int64_t x = 0; x < 16; x++) {
        const float *next = keys + at[sp_min(n - 1, j0 + j + x + AHEAD)] * ks[2];
        for (int64_t c = 0; c < d; c += 16) __builtin_prefetch(next + c);
        const float *value = values + at[j0 + j + x] * vs[2];
        for (int64_t c = 0; c < e; c += 16) __builtin_prefetch(value + c, 0, 2);
      }
      for (int h = 0; h < heads; h++) store(s[h] + j, score16(q[h], keys, at + j0 + j, ks[2], d));
    }
    if (whole < count) {
      for (int64_t x = 0; x < 16; x++) filled[x] = at[j0 + sp_min(count - 1, whole + x)];
      for (int h = 0; h < heads; h++) store(s[h] + whole, score16(q[h], keys, filled, ks[2], d));
    }
    if (t->mask && t->mask->scalar_type == SP_FLOAT32) {
      for (int h = 0; h < heads; h++)
        for (int64_t j = 0; j < count; j++)
          s[h][j] += ((const float *)t->mask->data)[sp_mask_at(t, u->b, first_head + h, u->first, at[j0 + j])];
    }
    for (int h = 0; h < heads; h++) {
      float *p = partial + h * job->partial_size;
      for (int64_t j = count; j < padded; j++) s[h][j] = -INFINITY;
      const float found = largest_of(s[h], padded), largest = found > p[0] ? found : p[0];
      if (largest == -INFINITY) {
        // Nothing but -inf and NaN: -inf weighs nothing, NaN stays.
        for (int64_t j = 0; j < padded; j++) s[h][j] = s[h][j] != s[h][j] ? s[h][j] : 0.0f;
        for (int64_t j = 0; j < padded; j++) p[1] += s[h][j];
      } else {
        const float shrink = sp_exp(p[0] - largest);
        p[1] = p[1] * shrink + weigh(s[h], padded, largest);
        if (shrink != 1.0f)
          for (int64_t c = 0; c < e; c++) p[2 + c] *= shrink;
        p[0] = largest;
      }
    }
    const float (*weights)[SUB] = (const float (*)[SUB])s;
    switch (heads) {
      case 1:
        add_all_values(1, e, count, values, at + j0, vs[2], weights, partial + 2, job->partial_size);
        break;
      case 2:
        add_all_values(2, e, count, values, at + j0, vs[2], weights, partial + 2, job->partial_size);
        break;
      case 3:
        add_all_values(3, e, count, values, at + j0, vs[2], weights, partial + 2, job->partial_size);
        break;
      default:
        add_all_values(4, e, count, values, at + j0, vs[2], weights, partial + 2, job->partial_size);
        break;
    }
  }
}

TARGET static void few(void *context, size_t index) {
  const sp_attention_job *job = context;
  const sp_attention_unit u = sp_attention_unit_of(&job->t, (int64_t)index / job->chunks);
  const int64_t chunk = (int64_t)index % job->chunks;
  const int64_t list = sp_attention_list(&job->t, &u), size = job->list_sizes[list];
  const int64_t step = sp_attention_chunk_keys(size), first = chunk * step;
  if (first >= size) return;
  const int32_t *at = job->lists + list * job->t.keys + first;
  const int64_t n = sp_min(step, size - first);
  float *partial = job->partials + (int64_t)index * job->t.heads_per_unit * job->partial_size;
  for (int64_t h = 0; h < job->t.heads_per_unit; h += MAX_HEADS)
    few_heads(job, &u, (int)sp_min(MAX_HEADS, job->t.heads_per_unit - h), u.h + h, at, n,
              partial + h * job->partial_size);
}

// --- Many queries -----------------------------------------------------------------------------

// out (rows x 16 * panels) = or += a (rows x k) times panels.
BODY void product(const sp_tiler *tiler, int64_t rows, int64_t k, const float *a, int64_t a_row, const float *w,
                  int64_t w_step, int64_t w_panel, int64_t panels, float *out, int64_t out_row, bool accumulates) {
  const int64_t step = tiler->panels[tiler->rows];
  for (int64_t p = 0; p < panels; p += step)
    for (int64_t r = 0; r < rows; r += tiler->rows) {
      const sp_tile tile = {.rows = (int)sp_min(tiler->rows, rows - r),
                            .panels = (int)sp_min(step, panels - p),
                            .k = k,
                            .a = a + r * a_row,
                            .a_row = a_row,
                            .w = w + p * w_panel,
                            .w_step = w_step,
                            .w_panel = w_panel,
                            .out = out + r * out_row + p * 16,
                            .out_row = out_row,
                            .out_panel = 16,
                            .accumulates = accumulates};
      tiler->run(&tile);
    }
}

TARGET static void many(void *context, size_t index) {
  sp_attention_job *job = context;
  const sp_attention *t = &job->t;
  const sp_attention_unit u = sp_attention_unit_of(t, (int64_t)index);
  const sp_attention_room room = sp_attention_room_of(t);
  const int64_t d = t->d, e = t->e, heads = t->heads_per_unit, rows = u.count * heads;
  const int64_t wide = sp_ceil_div(e, 16) * 16, T = SP_ATTENTION_TILE;
  unsigned slot;
  float *base = sp_slot_take(&job->slots, &slot);
  float *q = base + room.q, *kt = base + room.k, *v = base + room.v, *s = base + room.s, *o = base + room.o;
  float *m = base + room.m, *l = base + room.l;
  uint64_t *bits = (uint64_t *)(void *)(base + room.bits);
  const int64_t *qs = t->query->strides, *ks = t->key->strides, *vs = t->value->strides, *os = t->out->strides;
  const float *keys = (const float *)t->key->data + u.b * ks[0] + u.kv * ks[1];
  const float *values = (const float *)t->value->data + u.b * vs[0] + u.kv * vs[1];
  const bool added = t->mask && t->mask->scalar_type == SP_FLOAT32;
  uint64_t rows_read = 0;

  // Row r is head r % heads of query r / heads.
  for (int64_t r = 0; r < rows; r++) {
    const float *from =
        (const float *)t->query->data + u.b * qs[0] + (u.h + r % heads) * qs[1] + (u.first + r / heads) * qs[2];
    for (int64_t c = 0; c < d; c++) q[r * d + c] = from[c * qs[3]] * t->scale;
    m[r] = -INFINITY;
    l[r] = 0.0f;
  }
  memset(o, 0, (size_t)(rows * wide) * 4);

  const int64_t last = t->causal ? sp_min(t->keys, u.first + u.count) : t->keys;
  for (int64_t j0 = 0; j0 < last; j0 += T) {
    uint64_t any = 0;
    for (int64_t i = 0; i < u.count; i++) {
      bits[i] = sp_attends_bits(t, u.b, u.h, u.first + i, j0);
      any |= bits[i];
    }
    if (!any) continue;
    rows_read += (uint64_t)__builtin_popcountll(any);

    // Keys are transposed into panels, values copied; those that nobody reads become zeros.
    int64_t used = 64 - __builtin_clzll(any);
    const int64_t panels = sp_ceil_div(used, 16);
    uint32_t special = 0;
    for (int64_t j = 0; j < panels * 16; j++) {
      float *to = kt + j / 16 * 16 * d + j % 16;
      if (any >> j & 1) {
        const float *k = keys + (j0 + j) * ks[2];
        for (int64_t c = 0; c < d; c++) to[c * 16] = k[c];
      } else {
        for (int64_t c = 0; c < d; c++) to[c * 16] = 0.0f;
      }
    }
    for (int64_t j = 0; j < used; j++) {
      float *to = v + j * wide;
      if (any >> j & 1) {
        const float *from = values + (j0 + j) * vs[2];
        memcpy(to, from, (size_t)e * 4);
        for (int64_t c = 0; c < e; c++) {
          uint32_t pattern;
          memcpy(&pattern, from + c, 4);
          special |= (pattern & 0x7f800000u) == 0x7f800000u;
        }
      } else {
        memset(to, 0, (size_t)e * 4);
      }
      for (int64_t c = e; c < wide; c++) to[c] = 0.0f;
    }

    product(job->tiler, rows, d, q, d, kt, 16, 16 * d, panels, s, T, false);
    const uint64_t full = panels == 4 ? ~(uint64_t)0 : ((uint64_t)1 << panels * 16) - 1;
    for (int64_t r = 0; r < rows; r++) {
      const int64_t i = r / heads;
      float *row = s + r * T;
      if (added)
        for (int64_t j = 0; j < panels * 16; j++)
          if (bits[i] >> j & 1)
            row[j] += ((const float *)t->mask->data)[sp_mask_at(t, u.b, u.h + r % heads, u.first + i, j0 + j)];
      if ((bits[i] & full) != full)
        for (int64_t j = 0; j < panels * 16; j++) row[j] = bits[i] >> j & 1 ? row[j] : -INFINITY;
      const float found = largest_of(row, panels * 16), largest = found > m[r] ? found : m[r];
      if (largest == -INFINITY) {
        for (int64_t j = 0; j < panels * 16; j++) {
          row[j] = row[j] != row[j] ? row[j] : 0.0f;
          l[r] += row[j];
        }
        continue;
      }
      const float shrink = sp_exp(m[r] - largest);
      l[r] = l[r] * shrink + weigh(row, panels * 16, largest);
      m[r] = largest;
      if (shrink != 1.0f)
        for (int64_t c = 0; c < wide; c++) o[r * wide + c] *= shrink;
    }
    if (!special) {
      product(job->tiler, rows, used, s, T, v, wide, 16, wide / 16, o, wide, true);
    } else {
      // An infinite or NaN value must not reach the rows that exclude its key through 0 * inf.
      for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < used; j++)
          if (bits[r / heads] >> j & 1)
            for (int64_t c = 0; c < e; c++) o[r * wide + c] += s[r * T + j] * v[j * wide + c];
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    float *out = (float *)t->out->data + u.b * os[0] + (u.h + r % heads) * os[1] + (u.first + r / heads) * os[2];
    const float scale = l[r] == 0.0f ? 0.0f : 1.0f / l[r];
    if (os[3] == 1) {
      for (int64_t c = 0; c < e; c++) out[c] = o[r * wide + c] * scale;
    } else {
      for (int64_t c = 0; c < e; c++) out[c * os[3]] = o[r * wide + c] * scale;
    }
  }
  sp_slot_give(&job->slots, slot);
  atomic_fetch_add_explicit(&job->rows_read, rows_read, memory_order_relaxed);
}
