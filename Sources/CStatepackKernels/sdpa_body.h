// The fast paths of attention in vectors of WIDTH floats, compiled once per instruction set: TARGET is its attribute,
// TOGETHER how many heads the sums of four keys are kept in registers for.
#include "sdpa.h"
#include "vector_math.h"

// Vectors are passed between functions, all of which are inlined: no ABI is involved.
#pragma GCC diagnostic ignored "-Wpsabi"

#define UNROLL _Pragma("GCC unroll 16")
#define BODY __attribute__((always_inline)) TARGET static inline

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef float loose_lanes __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t int_lanes __attribute__((vector_size(4 * WIDTH)));

BODY lanes load(const float *p) { return *(const loose_lanes *)p; }
BODY void store(float *p, lanes v) { *(loose_lanes *)p = v; }
BODY lanes splat(float x) { return x - (lanes){0}; }
// b where a is NaN.
BODY lanes larger(lanes a, lanes b) {
  const int_lanes mask = a > b;
  return (lanes)((mask & (int_lanes)a) | (~mask & (int_lanes)b));
}

// e^x of scores less their largest: x <= 0, -inf or NaN. As sp_exp, but below -87 (2^-126) the result is 0, so that
// one factor 2^n is enough; its exponent field is what rounding leaves in the low bits.
BODY lanes weights_of(lanes x) {
  const int_lanes vanishes = x < splat(-87.0f);
  const lanes shifted = x * 1.44269504f + 12583039.0f;
  const lanes n = shifted - 12583039.0f;
  lanes r = x - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  lanes p = r * 1.9918385e-4f + 1.3946074e-3f;
  p = p * r + 8.3332639e-3f;
  p = p * r + 4.1666269e-2f;
  p = p * r + 1.6666667e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const lanes scale = (lanes)((int_lanes)shifted << 23);
  return (lanes)((int_lanes)(p * scale) & ~vanishes);
}

// Sums of the lanes of 16 vectors, one for each of 16 keys, in four tiles of four keys. What is lower in every pair
// of parts is added to what is upper while two vectors become one; KEY is the order that leaves the sums in order.
#define PAIR(A, B, ...) (__builtin_shufflevector(A, B, __VA_ARGS__))
#if WIDTH == 16
#define KEY(TILE, I) ((TILE) + ((I) == 0 ? 0 : (I) == 1 ? 8 : (I) == 2 ? 4 : 12))
BODY lanes halves(lanes a, lanes b) {
  return PAIR(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
         PAIR(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
BODY lanes tile_of(lanes a, lanes b, lanes c, lanes d) {
  const lanes x = halves(a, b), y = halves(c, d);
  return PAIR(x, y, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
         PAIR(x, y, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
}
BODY lanes eighths(lanes a, lanes b) {
  return PAIR(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         PAIR(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
BODY void sums_of(const lanes *tiles, float *out) {
  const lanes x = eighths(tiles[0], tiles[2]), y = eighths(tiles[1], tiles[3]);
  store(out, PAIR(x, y, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
                 PAIR(x, y, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
}
BODY float largest_lane(lanes v) {
  v = larger(v, PAIR(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = larger(v, PAIR(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  v = larger(v, PAIR(v, v, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
  return v[0] > v[1] ? v[0] : v[1];
}
BODY float sum_of(lanes v) {
  v += PAIR(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += PAIR(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
  v += PAIR(v, v, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
  return v[0] + v[1];
}
#elif WIDTH == 8
#define KEY(TILE, I) ((TILE) / 2 * 8 + (TILE) % 2 + ((I) == 0 ? 0 : (I) == 1 ? 4 : (I) == 2 ? 2 : 6))
BODY lanes halves(lanes a, lanes b) {
  return PAIR(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + PAIR(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
BODY lanes tile_of(lanes a, lanes b, lanes c, lanes d) {
  const lanes x = halves(a, b), y = halves(c, d);
  return PAIR(x, y, 0, 1, 8, 9, 4, 5, 12, 13) + PAIR(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
}
BODY lanes singles(lanes a, lanes b) {
  return PAIR(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + PAIR(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
}
BODY void sums_of(const lanes *tiles, float *out) {
  store(out, singles(tiles[0], tiles[1]));
  store(out + 8, singles(tiles[2], tiles[3]));
}
BODY float largest_lane(lanes v) {
  v = larger(v, PAIR(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = larger(v, PAIR(v, v, 2, 3, 0, 1, 2, 3, 0, 1));
  return v[0] > v[1] ? v[0] : v[1];
}
BODY float sum_of(lanes v) {
  v += PAIR(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += PAIR(v, v, 2, 3, 0, 1, 2, 3, 0, 1);
  return v[0] + v[1];
}
#else
#define KEY(TILE, I) ((TILE) * 4 + ((I) == 0 ? 0 : (I) == 1 ? 2 : (I) == 2 ? 1 : 3))
BODY lanes tile_of(lanes a, lanes b, lanes c, lanes d) {
  const lanes x = PAIR(a, b, 0, 1, 4, 5) + PAIR(a, b, 2, 3, 6, 7), y = PAIR(c, d, 0, 1, 4, 5) + PAIR(c, d, 2, 3, 6, 7);
  return PAIR(x, y, 0, 4, 2, 6) + PAIR(x, y, 1, 5, 3, 7);
}
BODY void sums_of(const lanes *tiles, float *out) {
  for (int n = 0; n < 4; n++) store(out + 4 * n, tiles[n]);
}
BODY float largest_lane(lanes v) {
  v = larger(v, PAIR(v, v, 2, 3, 0, 1));
  return v[0] > v[1] ? v[0] : v[1];
}
BODY float sum_of(lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); }
#endif

// Largest of n scores, n a multiple of 16. NaN is passed over; its weight is NaN anyway.
BODY float largest_of(const float *s, int64_t n) {
  lanes best = splat(-INFINITY);
  for (int64_t j = 0; j < n; j += WIDTH) best = larger(load(s + j), best);
  return largest_lane(best);
}

// Scores of n keys, n a multiple of 16, become weights e^(s - largest), which are added to the lanes of sum. Without a
// finite score, -inf weighs nothing and NaN stays.
BODY lanes weigh(float *s, int64_t n, float largest, lanes sum) {
  if (largest == -INFINITY) {
    for (int64_t j = 0; j < n; j++) s[j] = s[j] != s[j] ? s[j] : 0.0f;
    for (int64_t j = 0; j < n; j += WIDTH) sum += load(s + j);
    return sum;
  }
  for (int64_t j = 0; j < n; j += WIDTH) {
    const lanes weights = weights_of(load(s + j) - largest);
    store(s + j, weights);
    sum += weights;
  }
  return sum;
}

// --- Few queries ------------------------------------------------------------------------------

// Keys come in blocks: scores of a block, weights, values. While scores are computed the values of the block are
// fetched, and with the values the keys of the next block, so that memory is never idle. Into the second cache: into
// the first one fewer reads are under way at once.
enum { BLOCK = 32, MAX_HEADS = 16 };

// Where the next keys of a list are.
typedef struct cursor {
  const sp_attention *t;
  const sp_attention_unit *u;
  const sp_attention_keys *list;
  int64_t next;  // one run
  int64_t word;  // else: a word of the mask, and what is left of it
  uint64_t bits;
  int32_t latest;
} cursor;

BODY cursor cursor_at(const sp_attention *t, const sp_attention_unit *u, const sp_attention_keys *list, int64_t chunk,
                      int64_t step) {
  cursor c = {.t = t, .u = u, .list = list};
  if (list->one_run) {
    c.next = list->first + chunk * step;
  } else {
    const int64_t start = list->starts[chunk];
    c.word = start & ~(int64_t)63;
    c.bits = sp_attends_bits(t, u->b, u->h, u->first, c.word) & ~(uint64_t)0 << (start & 63);
  }
  return c;
}

// The next BLOCK keys, beyond the chunk too; after the last one of the list, that one again.
BODY void next_block(cursor *c, int32_t *at) {
  const int64_t last = c->list->last;
  if (c->list->one_run) {
    const int32_t next = (int32_t)c->next, left = (int32_t)sp_min(last - c->next, BLOCK);
    for (int32_t j = 0; j < BLOCK; j++) at[j] = next + (j < left ? j : left);
    c->next = sp_min(c->next + BLOCK, last);
    return;
  }
  for (int32_t j = 0; j < BLOCK; j++) {
    while (c->bits == 0 && c->word <= last - 64) {
      c->word += 64;
      c->bits = sp_attends_bits(c->t, c->u->b, c->u->h, c->u->first, c->word);
    }
    if (c->bits) c->latest = (int32_t)(c->word + __builtin_ctzll(c->bits));
    c->bits &= c->bits - 1;
    at[j] = c->latest;
  }
}

// Rows of keys and values that a unit reads.
typedef struct rows {
  const float *keys, *values;
  int64_t key_row, value_row, d, e;
} rows;

// Scores of 16 keys for heads that share them: s[h * BLOCK + j].
BODY void score16(const int heads, const rows *r, const int32_t *at, const float *q, int64_t q_row, float *s) {
  lanes tiles[TOGETHER][4];
  for (int tile = 0; tile < 4; tile++) {
    const float *key[4], *value[4];
    lanes acc[4][TOGETHER];
    UNROLL for (int i = 0; i < 4; i++) {
      key[i] = r->keys + at[KEY(tile, i)] * r->key_row;
      value[i] = r->values + at[KEY(tile, i)] * r->value_row;
      UNROLL for (int h = 0; h < heads; h++) acc[i][h] = splat(0);
    }
    int64_t c = 0;
    for (; c + 16 <= r->d; c += 16) {
      UNROLL for (int i = 0; i < 4; i++) __builtin_prefetch(value[i] + c, 0, 2);
      UNROLL for (int x = 0; x < 16; x += WIDTH) {
        lanes query[TOGETHER];
        UNROLL for (int h = 0; h < heads; h++) query[h] = load(q + h * q_row + c + x);
        UNROLL for (int i = 0; i < 4; i++) {
          const lanes row = load(key[i] + c + x);
          UNROLL for (int h = 0; h < heads; h++) acc[i][h] += row * query[h];
        }
      }
    }
    for (int64_t ahead = c; ahead < r->e; ahead += 16)
      for (int i = 0; i < 4; i++) __builtin_prefetch(value[i] + ahead, 0, 2);
    UNROLL for (int h = 0; h < heads; h++) tiles[h][tile] = tile_of(acc[0][h], acc[1][h], acc[2][h], acc[3][h]);
  }
  UNROLL for (int h = 0; h < heads; h++) sums_of(tiles[h], s + h * BLOCK);
  for (int64_t c = r->d & ~(int64_t)15; c < r->d; c++)
    for (int h = 0; h < heads; h++)
      for (int j = 0; j < 16; j++) s[h * BLOCK + j] += q[h * q_row + c] * r->keys[at[j] * r->key_row + c];
}

// acc[h][c..c+WIDTH*width] += s[h * BLOCK + j] * value of key at[j], for n keys; fetches the keys of `ahead`.
BODY void add_values(const int heads, const int width, const rows *r, int64_t n, const int32_t *at, int64_t c,
                     const int32_t *ahead, const float *s, float *acc, int64_t acc_row) {
  lanes sum[TOGETHER][4];
  UNROLL for (int h = 0; h < heads; h++) UNROLL for (int x = 0; x < width; x++) sum[h][x] =
      load(acc + h * acc_row + c + WIDTH * x);
  for (int64_t j = 0; j < n; j++) {
    const float *value = r->values + at[j] * r->value_row + c;
    if (ahead) {
      const float *key = r->keys + ahead[j] * r->key_row;
      for (int64_t x = 0; x < r->d; x += 16) __builtin_prefetch(key + x, 0, 2);
    }
    lanes row[4];
    UNROLL for (int x = 0; x < width; x++) row[x] = load(value + WIDTH * x);
    UNROLL for (int h = 0; h < heads; h++) {
      const lanes weight = splat(s[h * BLOCK + j]);
      UNROLL for (int x = 0; x < width; x++) sum[h][x] += row[x] * weight;
    }
  }
  UNROLL for (int h = 0; h < heads; h++) UNROLL for (int x = 0; x < width; x++)
      store(acc + h * acc_row + c + WIDTH * x, sum[h][x]);
}

BODY void add_all_values(const int heads, const rows *r, int64_t n, const int32_t *at, const int32_t *ahead,
                         const float *s, float *acc, int64_t acc_row) {
  int64_t c = 0;
  for (; c + 4 * WIDTH <= r->e; c += 4 * WIDTH)
    add_values(heads, 4, r, n, at, c, c == 0 ? ahead : NULL, s, acc, acc_row);
  for (; c + WIDTH <= r->e; c += WIDTH) add_values(heads, 1, r, n, at, c, c == 0 ? ahead : NULL, s, acc, acc_row);
  for (; c < r->e; c++)
    for (int h = 0; h < heads; h++)
      for (int64_t j = 0; j < n; j++) acc[h * acc_row + c] += s[h * BLOCK + j] * r->values[at[j] * r->value_row + c];
}

// What a mask of floats adds to the scores of n keys.
BODY void add_mask(const sp_attention *t, const sp_attention_unit *u, int64_t h, int64_t n, const int32_t *at,
                   float *s) {
  const float *mask = (const float *)t->mask->data + sp_mask_at(t, u->b, h, u->first, 0);
  const int64_t step = t->mask_strides[3];
  if (step == 1 && at[n - 1] - at[0] == n - 1) {
    for (int64_t j = 0; j < n; j++) s[j] += mask[at[0] + j];
  } else {
    for (int64_t j = 0; j < n; j++) s[j] += mask[at[j] * step];
  }
}

#if TOGETHER == 3
#define DISPATCH(N, CALL) \
  switch (N) {            \
    case 1:               \
      CALL(1);            \
      break;              \
    case 2:               \
      CALL(2);            \
      break;              \
    default:              \
      CALL(3);            \
  }
#else
#define DISPATCH(N, CALL) \
  switch (N) {            \
    case 1:               \
      CALL(1);            \
      break;              \
    case 2:               \
      CALL(2);            \
      break;              \
    case 3:               \
      CALL(3);            \
      break;              \
    default:              \
      CALL(4);            \
  }
#endif

// One chunk of the keys of one query, for up to MAX_HEADS heads that share them.
TARGET static void few_heads(const sp_attention_job *job, const sp_attention_unit *u, int64_t heads, int64_t first_head,
                             cursor from, int64_t n, float *partial) {
  const sp_attention *t = &job->t;
  const int64_t *qs = t->query->strides, *ks = t->key->strides, *vs = t->value->strides;
  const rows r = {.keys = (const float *)t->key->data + u->b * ks[0] + u->kv * ks[1],
                  .values = (const float *)t->value->data + u->b * vs[0] + u->kv * vs[1],
                  .key_row = ks[2],
                  .value_row = vs[2],
                  .d = t->d,
                  .e = t->e};
  const int64_t q_row = sp_ceil_div(t->d, 16) * 16, acc_row = job->partial_size;
  _Alignas(64) float q[MAX_HEADS * 512], s[MAX_HEADS * BLOCK];
  float *const acc = partial + SP_ATTENTION_VALUES;
  lanes sum[MAX_HEADS];
  float largest[MAX_HEADS];
  for (int64_t h = 0; h < heads; h++) {
    const float *head = (const float *)t->query->data + u->b * qs[0] + (first_head + h) * qs[1] + u->first * qs[2];
    if (qs[3] == 1) {
      for (int64_t c = 0; c < t->d; c++) q[h * q_row + c] = head[c] * t->scale;
    } else {
      for (int64_t c = 0; c < t->d; c++) q[h * q_row + c] = head[c * qs[3]] * t->scale;
    }
    for (int64_t c = t->d; c < q_row; c++) q[h * q_row + c] = 0.0f;
    for (int64_t c = 0; c < acc_row - SP_ATTENTION_VALUES; c++) acc[h * acc_row + c] = 0.0f;
    sum[h] = splat(0);
    largest[h] = -INFINITY;
  }
  // The heads in parts of nearly equal size.
  const int64_t parts = sp_ceil_div(heads, TOGETHER);

  int32_t blocks[2][BLOCK];
  if (n > 0) next_block(&from, blocks[0]);
  for (int64_t j0 = 0, turn = 0; j0 < n; j0 += BLOCK, turn ^= 1) {
    const int32_t *at = blocks[turn], *ahead = blocks[turn ^ 1];
    const int64_t count = sp_min(BLOCK, n - j0);
    next_block(&from, blocks[turn ^ 1]);
    for (int64_t part = 0, h = 0; part < parts; part++) {
      const int64_t some = sp_ceil_div(heads - h, parts - part);
      for (int64_t j = 0; j < count; j += 16) {
#define SCORE(HEADS) score16(HEADS, &r, at + j, q + h * q_row, q_row, s + h * BLOCK + j)
        DISPATCH(some, SCORE)
#undef SCORE
      }
      h += some;
    }
    float found[MAX_HEADS];
    for (int64_t h = 0; h < heads; h++) {
      float *scores = s + h * BLOCK;
      if (t->mask && t->mask->scalar_type == SP_FLOAT32) add_mask(t, u, first_head + h, count, at, scores);
      for (int64_t j = count; j < BLOCK; j++) scores[j] = -INFINITY;
      found[h] = largest_of(scores, BLOCK);
    }
    for (int64_t h = 0; h < heads; h++) {
      if (found[h] > largest[h]) {
        const float shrink = sp_exp(largest[h] - found[h]);
        sum[h] *= shrink;
        for (int64_t c = 0; c < acc_row - SP_ATTENTION_VALUES; c++) acc[h * acc_row + c] *= shrink;
        largest[h] = found[h];
      }
      sum[h] = weigh(s + h * BLOCK, BLOCK, largest[h], sum[h]);
    }
    for (int64_t part = 0, h = 0; part < parts; part++) {
      const int64_t some = sp_ceil_div(heads - h, parts - part);
#define ADD(HEADS) \
  add_all_values(HEADS, &r, count, at, part == 0 ? ahead : NULL, s + h * BLOCK, acc + h * acc_row, acc_row)
      DISPATCH(some, ADD)
#undef ADD
      h += some;
    }
  }
  for (int64_t h = 0; h < heads; h++) {
    partial[h * acc_row + SP_ATTENTION_LARGEST] = largest[h];
    partial[h * acc_row + SP_ATTENTION_SUM] = sum_of(sum[h]);
  }
}

BODY void copy_row(float *to, int64_t step, const float *from, int64_t n) {
  if (step == 1) {
    memcpy(to, from, (size_t)n * 4);
  } else {
    for (int64_t i = 0; i < n; i++) to[i * step] = from[i];
  }
}

// Partial results of a unit in order of chunks, whoever computed them.
TARGET static void join(const sp_attention_job *job, const sp_attention_unit *u, int64_t chunks, float *partials) {
  const sp_attention *t = &job->t;
  const int64_t *os = t->out->strides, step = t->heads_per_unit * job->partial_size;
  for (int64_t h = 0; h < t->heads_per_unit; h++) {
    float *first = partials + h * job->partial_size;
    float largest = -INFINITY, sum = 0.0f, weights[SP_ATTENTION_CHUNKS];
    for (int64_t c = 0; c < chunks; c++) {
      const float found = first[c * step + SP_ATTENTION_LARGEST];
      largest = found > largest ? found : largest;
    }
    for (int64_t c = 0; c < chunks; c++) {
      // A chunk without a finite score weighs nothing, unless its sum is NaN.
      const float *p = first + c * step;
      weights[c] = p[SP_ATTENTION_LARGEST] == largest ? 1.0f : sp_exp(p[SP_ATTENTION_LARGEST] - largest);
      sum += p[SP_ATTENTION_SUM] * weights[c];
    }
    const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int64_t c = 0; c < chunks; c++) weights[c] *= scale;
    float *values = first + SP_ATTENTION_VALUES;
    for (int64_t i = 0; i < t->e; i += WIDTH) {
      lanes all = load(values + i) * weights[0];
      for (int64_t c = 1; c < chunks; c++) all += load(values + c * step + i) * weights[c];
      store(values + i, all);
    }
    copy_row((float *)t->out->data + u->b * os[0] + (u->h + h) * os[1] + u->first * os[2], os[3], values, t->e);
  }
}

TARGET static void few(void *context, size_t index) {
  const sp_attention_job *job = context;
  const sp_attention *t = &job->t;
  // Queries side by side: the next one finds the keys in cache.
  const int64_t query = (int64_t)index % t->queries, rest = (int64_t)index / t->queries;
  const int64_t chunk = rest % job->chunks, unit = rest / job->chunks * t->queries + query;
  const sp_attention_unit u = sp_attention_unit_of(t, unit);
  const sp_attention_keys *list = &job->lists[sp_attention_list(t, u.b, u.h, u.first)];
  const int64_t chunks = sp_attention_chunks(list->size);
  if (chunk >= chunks) return;
  const int64_t step = sp_attention_chunk_keys(list->size), n = sp_min(step, list->size - chunk * step);
  float *partials = job->partials + unit * SP_ATTENTION_CHUNKS * t->heads_per_unit * job->partial_size;
  float *partial = partials + chunk * t->heads_per_unit * job->partial_size;
  const cursor from = cursor_at(t, &u, list, chunk, step);
  for (int64_t h = 0; h < t->heads_per_unit; h += MAX_HEADS)
    few_heads(job, &u, sp_min(MAX_HEADS, t->heads_per_unit - h), u.h + h, from, n, partial + h * job->partial_size);
  if (atomic_fetch_sub_explicit(&job->left[unit], 1, memory_order_acq_rel) == 1) join(job, &u, chunks, partials);
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

typedef float quad __attribute__((vector_size(16)));
typedef float loose_quad __attribute__((vector_size(16), aligned(4)));

// Four rows of keys as four neighbouring columns of a panel.
BODY void turn_four(float *to, const float *keys, int64_t key_row, int64_t d) {
  int64_t c = 0;
  for (; c + 4 <= d; c += 4) {
    quad row[4], pairs[4];
    UNROLL for (int i = 0; i < 4; i++) row[i] = *(const loose_quad *)(keys + i * key_row + c);
    pairs[0] = PAIR(row[0], row[1], 0, 4, 1, 5);
    pairs[1] = PAIR(row[2], row[3], 0, 4, 1, 5);
    pairs[2] = PAIR(row[0], row[1], 2, 6, 3, 7);
    pairs[3] = PAIR(row[2], row[3], 2, 6, 3, 7);
    *(loose_quad *)(to + c * 16) = PAIR(pairs[0], pairs[1], 0, 1, 4, 5);
    *(loose_quad *)(to + c * 16 + 16) = PAIR(pairs[0], pairs[1], 2, 3, 6, 7);
    *(loose_quad *)(to + c * 16 + 32) = PAIR(pairs[2], pairs[3], 0, 1, 4, 5);
    *(loose_quad *)(to + c * 16 + 48) = PAIR(pairs[2], pairs[3], 2, 3, 6, 7);
  }
  for (; c < d; c++)
    for (int i = 0; i < 4; i++) to[c * 16 + i] = keys[i * key_row + c];
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
  const sp_attention_keys *lists[SP_ATTENTION_ROWS];

  // Row r is head r % heads of query r / heads.
  for (int64_t r = 0; r < rows; r++) {
    const float *from =
        (const float *)t->query->data + u.b * qs[0] + (u.h + r % heads) * qs[1] + (u.first + r / heads) * qs[2];
    for (int64_t c = 0; c < d; c++) q[r * d + c] = from[c * qs[3]] * t->scale;
    m[r] = -INFINITY;
    l[r] = 0.0f;
  }
  memset(o, 0, (size_t)(rows * wide) * 4);

  int64_t first_key = t->keys, last_key = -1;
  for (int64_t i = 0; i < u.count; i++) {
    lists[i] = &job->lists[sp_attention_list(t, u.b, u.h, u.first + i)];
    if (lists[i]->size == 0) continue;
    first_key = sp_min(first_key, lists[i]->first);
    last_key = sp_max(last_key, lists[i]->last);
  }
  for (int64_t j0 = first_key & -T; j0 <= last_key; j0 += T) {
    uint64_t any = 0;
    for (int64_t i = 0; i < u.count; i++) {
      bits[i] = sp_attention_bits(t, lists[i], u.b, u.h, u.first + i, j0);
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
      if (j % 4 == 0 && (any >> j & 15) == 15) {
        turn_four(to, keys + (j0 + j) * ks[2], ks[2], d);
        j += 3;
      } else if (any >> j & 1) {
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
      const float found = largest_of(row, panels * 16);
      if (found > m[r]) {
        const float shrink = sp_exp(m[r] - found);
        l[r] *= shrink;
        for (int64_t c = 0; c < wide; c++) o[r * wide + c] *= shrink;
        m[r] = found;
      }
      l[r] += sum_of(weigh(row, panels * 16, m[r], splat(0)));
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
    for (int64_t c = 0; c < wide; c++) o[r * wide + c] *= scale;
    copy_row(out, os[3], o + r * wide, e);
  }
  sp_slot_give(&job->slots, slot);
  atomic_fetch_add_explicit(&job->rows_read, rows_read, memory_order_relaxed);
}
