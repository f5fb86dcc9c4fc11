// sum, mean, amax, amin, any and all: reductions over the axes of a mask.
#include "../kernel.h"

typedef struct reduction {
  sp_walk kept;     // out and a over the axes that stay
  sp_walk reduced;  // a over the axes that go
  int64_t count;    // elements per result
  int kind;
  uint16_t type;
} reduction;

enum { SUM, MEAN, AMAX, AMIN, ANY, ALL };

typedef struct partial {
  double f;
  uint64_t u;
  int64_t i;
  int kind;
  uint16_t type;
  bool some;
} partial;

static bool is_reduced(const sp_call *call, int32_t axis) { return (call->ints[0] >> axis) & 1; }

static const char *check(const sp_call *call, bool needs_elements) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  const int64_t mask = call->ints[0], keep = call->ints[1];
  if (mask < 0 || mask >= (int64_t)1 << a->rank) return "axes_mask names an axis that the operand does not have";
  if (keep != 0 && keep != 1) return "keep is neither 0 nor 1";
  if (out->scalar_type != a->scalar_type) return "operand and result have different scalar types";
  int32_t at = 0;
  for (int32_t i = 0; i < a->rank; i++) {
    const bool reduced = is_reduced(call, i);
    if (reduced && needs_elements && a->shape[i] == 0) return "a reduced axis is empty";
    if (reduced && !keep) continue;
    if (at >= out->rank || out->shape[at] != (reduced ? 1 : a->shape[i])) return "the result has the wrong shape";
    at++;
  }
  return at == out->rank ? NULL : "the result has the wrong shape";
}

// Eight running sums: enough for the compiler to use vectors, and fixed, so that the order is the same everywhere.
static double sum_floats(const float *a, int64_t n, int64_t stride) {
  double lanes[8] = {0};
  int64_t i = 0;
  if (stride == 1) {
    for (; i + 8 <= n; i += 8)
      for (int lane = 0; lane < 8; lane++) lanes[lane] += (double)a[i + lane];
  } else {
    for (; i + 8 <= n; i += 8)
      for (int lane = 0; lane < 8; lane++) lanes[lane] += (double)a[(i + lane) * stride];
  }
  for (int lane = 0; i < n; i++, lane++) lanes[lane] += (double)a[i * stride];
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

#define EXTREME(T, FIELD, BETTER)                                   \
  for (int64_t i = 0; i < n; i++) {                                 \
    const T x = ((const T *)(const void *)data[0])[i * strides[0]]; \
    if (!p->some || (BETTER)) p->FIELD = x;                         \
    p->some = true;                                                 \
  }

static void reduce_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  partial *p = context;
  switch (p->kind) {
    case SUM:
    case MEAN:
      if (p->type == SP_FLOAT32) {
        p->f += sum_floats((const float *)(const void *)data[0], n, strides[0]);
      } else if (p->type == SP_INT64) {
        for (int64_t i = 0; i < n; i++) p->u += ((const uint64_t *)(const void *)data[0])[i * strides[0]];
      } else {
        for (int64_t i = 0; i < n; i++) p->u += ((const uint32_t *)(const void *)data[0])[i * strides[0]];
      }
      break;
    case AMAX:
      if (p->type == SP_FLOAT32) {
        EXTREME(float, f, x != x || (double)x > p->f)
      } else if (p->type == SP_INT64) {
        EXTREME(int64_t, i, x > p->i)
      } else {
        EXTREME(int32_t, i, x > p->i)
      }
      break;
    case AMIN:
      if (p->type == SP_FLOAT32) {
        EXTREME(float, f, x != x || (double)x < p->f)
      } else if (p->type == SP_INT64) {
        EXTREME(int64_t, i, x < p->i)
      } else {
        EXTREME(int32_t, i, x < p->i)
      }
      break;
    case ANY:
      for (int64_t i = 0; i < n; i++) p->u |= ((const uint8_t *)data[0])[i * strides[0]] != 0;
      break;
    default:
      for (int64_t i = 0; i < n; i++) p->u |= ((const uint8_t *)data[0])[i * strides[0]] == 0;
      break;
  }
}

static void kept_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const reduction *r = context;
  const int64_t size = (int64_t)sp_type_size(r->type);
  for (int64_t i = 0; i < n; i++) {
    sp_walk inner = r->reduced;
    inner.data[0] = data[1] + i * strides[1] * size;
    partial p = {.kind = r->kind, .type = r->type};
    sp_walk_range(&inner, 0, r->count, reduce_strip, &p);
    char *out = data[0] + i * strides[0] * size;
    if (r->kind == ANY || r->kind == ALL) {
      *(uint8_t *)out = (uint8_t)(r->kind == ANY ? p.u != 0 : p.u == 0);
    } else if (r->type == SP_FLOAT32) {
      *(float *)(void *)out = (float)(r->kind == MEAN ? p.f / (double)r->count : p.f);
    } else if (r->kind == SUM) {
      if (r->type == SP_INT64) {
        *(uint64_t *)(void *)out = p.u;
      } else {
        *(uint32_t *)(void *)out = (uint32_t)p.u;
      }
    } else if (r->type == SP_INT64) {
      *(int64_t *)(void *)out = p.i;
    } else {
      *(int32_t *)(void *)out = (int32_t)p.i;
    }
  }
}

static bool reduce(const sp_call *call, sp_run *run, int kind) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  reduction r = {.kind = kind, .type = a->scalar_type};
  int64_t kept_shape[SP_MAX_RANK], kept_a[SP_MAX_RANK], kept_out[SP_MAX_RANK];
  int64_t reduced_shape[SP_MAX_RANK], reduced_a[SP_MAX_RANK];
  int32_t kept = 0, reduced = 0, at = 0;
  for (int32_t i = 0; i < a->rank; i++) {
    if (is_reduced(call, i)) {
      reduced_shape[reduced] = a->shape[i];
      reduced_a[reduced++] = a->strides[i];
      if (call->ints[1]) at++;
    } else {
      kept_shape[kept] = a->shape[i];
      kept_a[kept] = a->strides[i];
      kept_out[kept++] = out->strides[at++];
    }
  }
  const size_t size = sp_type_size(a->scalar_type);
  sp_walk_start(&r.kept, kept, kept_shape);
  if (r.kept.elements == 0) return true;
  sp_walk_add(&r.kept, out->data, size, kept_out);
  sp_walk_add(&r.kept, a->data, size, kept_a);
  sp_walk_merge(&r.kept);
  sp_walk_start(&r.reduced, reduced, reduced_shape);
  sp_walk_add(&r.reduced, a->data, size, reduced_a);
  r.count = r.reduced.elements;
  sp_walk_merge(&r.reduced);
  sp_walk_run(&r.kept, run->pool, sp_max(1, 32768 / sp_max(1, r.count)), kept_strip, &r);
  return true;
}

const char *sp_sum_check(const sp_call *call) { return check(call, false); }
const char *sp_mean_check(const sp_call *call) { return check(call, false); }
const char *sp_amax_check(const sp_call *call) { return check(call, true); }
const char *sp_amin_check(const sp_call *call) { return check(call, true); }
const char *sp_any_check(const sp_call *call) { return check(call, false); }
const char *sp_all_check(const sp_call *call) { return check(call, false); }
bool sp_sum_run(const sp_call *call, sp_run *run) { return reduce(call, run, SUM); }
bool sp_mean_run(const sp_call *call, sp_run *run) { return reduce(call, run, MEAN); }
bool sp_amax_run(const sp_call *call, sp_run *run) { return reduce(call, run, AMAX); }
bool sp_amin_run(const sp_call *call, sp_run *run) { return reduce(call, run, AMIN); }
bool sp_any_run(const sp_call *call, sp_run *run) { return reduce(call, run, ANY); }
bool sp_all_run(const sp_call *call, sp_run *run) { return reduce(call, run, ALL); }
