#include "../sdpa.h"

sp_attention sp_attention_of(const sp_call *call) {
  sp_attention t = {.query = call->operands[0],
                    .key = call->operands[1],
                    .value = call->operands[2],
                    .mask = call->operands[3],
                    .out = call->results[0],
                    .causal = call->ints[0] != 0,
                    .groups = call->ints[1],
                    .scale = (float)call->floats[0]};
  t.batch = t.query->shape[0];
  t.heads = t.query->shape[1];
  t.queries = t.query->shape[2];
  t.d = t.query->shape[3];
  t.keys = t.key->shape[2];
  t.e = t.value->shape[3];
  if (t.mask) sp_broadcast_strides(t.mask, 4, t.mask_strides);
  t.heads_per_unit = t.mask_strides[1] == 0 ? t.groups : 1;
  t.block = t.queries < SP_ATTENTION_MANY ? 1 : sp_max(SP_ATTENTION_MANY, SP_ATTENTION_ROWS / t.heads_per_unit);
  t.blocks = sp_ceil_div(t.queries, t.block);
  t.units = t.e == 0 ? 0 : t.batch * (t.heads / t.heads_per_unit) * t.blocks;
  return t;
}

const char *sp_sdpa_check(const sp_call *call) {
  const sp_tensor *query = call->operands[0], *key = call->operands[1], *value = call->operands[2];
  const sp_tensor *mask = call->operands[3], *out = call->results[0];
  const int64_t causal = call->ints[0], groups = call->ints[1];
  if (causal != 0 && causal != 1) return "causal is neither 0 nor 1";
  if (query->rank != 4 || key->rank != 4 || value->rank != 4 || out->rank != 4)
    return "query, key, value and result must have four axes";
  if (key->scalar_type != SP_FLOAT32 || value->scalar_type != SP_FLOAT32 || out->scalar_type != SP_FLOAT32)
    return "query, key, value and result must be float32";
  const int64_t heads = query->shape[1];
  if (groups < 1 || heads % groups != 0) return "groups does not divide the number of heads";
  if (key->shape[0] != query->shape[0] || value->shape[0] != query->shape[0]) return "batch sizes differ";
  if (key->shape[1] != heads / groups || value->shape[1] != heads / groups)
    return "key and value have the wrong number of heads";
  if (value->shape[2] != key->shape[2]) return "key and value have different lengths";
  if (key->shape[3] != query->shape[3]) return "query and key have different widths";
  if (out->shape[0] != query->shape[0] || out->shape[1] != heads || out->shape[2] != query->shape[2] ||
      out->shape[3] != value->shape[3])
    return "the result has the wrong shape";
  if (mask) {
    if (mask->scalar_type != SP_BOOL && mask->scalar_type != SP_FLOAT32) return "mask is neither bool nor float32";
    const int64_t shape[4] = {query->shape[0], heads, query->shape[2], key->shape[2]};
    if (!sp_broadcasts(mask, 4, shape)) return "mask does not broadcast to [batch, heads, queries, keys]";
  }
  // Lists of keys and blocks of scores are sized by these products; a stride of 0 makes any of them cheap to claim.
  int64_t pairs = query->shape[0] * heads;
  if (pairs && (__builtin_mul_overflow(pairs, query->shape[2], &pairs) ||
                __builtin_mul_overflow(pairs, key->shape[2], &pairs) || pairs > SP_MAX_ELEMENTS))
    return "there are too many pairs of query and key";
  return NULL;
}

// One query of one head per chunk: an online softmax, key by key. Excluded keys are not read.
static void row_chunk(void *context, size_t chunk) {
  const sp_attention *t = context;
  const int64_t i = (int64_t)chunk % t->queries, bh = (int64_t)chunk / t->queries;
  const int64_t b = bh / t->heads, h = bh % t->heads, kv = h / t->groups;
  const int64_t *qs = t->query->strides, *ks = t->key->strides, *vs = t->value->strides, *os = t->out->strides;
  const float *q = (const float *)t->query->data + b * qs[0] + h * qs[1] + i * qs[2];
  float *out = (float *)t->out->data + b * os[0] + h * os[1] + i * os[2];
  for (int64_t c = 0; c < t->e; c++) out[c * os[3]] = 0.0f;
  float largest = -INFINITY;
  double sum = 0;
  for (int64_t j = 0; j < t->keys; j++) {
    float added;
    if (!sp_attends(t, b, h, i, j, &added)) continue;
    const float *k = (const float *)t->key->data + b * ks[0] + kv * ks[1] + j * ks[2];
    const float *v = (const float *)t->value->data + b * vs[0] + kv * vs[1] + j * vs[2];
    double dot = 0;
    for (int64_t c = 0; c < t->d; c++) dot += (double)q[c * qs[3]] * (double)k[c * ks[3]];
    const float score = (float)dot * t->scale + added;
    if (score == -INFINITY) continue;  // weighs nothing, and would give inf - inf as the first
    if (score > largest) {
      const float shrink = largest == -INFINITY ? 0.0f : expf(largest - score);
      largest = score;
      sum *= (double)shrink;
      for (int64_t c = 0; c < t->e; c++) out[c * os[3]] *= shrink;
    }
    const float weight = expf(score - largest);
    sum += (double)weight;
    for (int64_t c = 0; c < t->e; c++) out[c * os[3]] += weight * v[c * vs[3]];
  }
  const float scale = sum == 0 ? 0.0f : (float)(1.0 / sum);
  for (int64_t c = 0; c < t->e; c++) out[c * os[3]] *= scale;
}

// Keys that a unit reads: those that any of its queries does.
static void count_chunk(void *context, size_t chunk) {
  sp_attention_job *job = context;
  const sp_attention *t = &job->t;
  const sp_attention_unit u = sp_attention_unit_of(t, (int64_t)chunk);
  uint64_t rows = 0;
  for (int64_t j = 0; j < t->keys; j++) {
    bool any = false;
    float added;
    for (int64_t i = u.first; i < u.first + u.count && !any; i++) any = sp_attends(t, u.b, u.h, i, j, &added);
    rows += any;
  }
  atomic_fetch_add_explicit(&job->rows_read, rows, memory_order_relaxed);
}

void sp_attention_reference(sp_attention_job *job, sp_pool *pool) {
  sp_attention *t = &job->t;
  sp_parallel_for(pool, (size_t)t->units, count_chunk, job);
  sp_parallel_for(pool, (size_t)(t->batch * t->heads * t->queries), row_chunk, t);
}
