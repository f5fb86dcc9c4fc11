// layer_norm and rms_norm over the last axes. Sums are taken in double precision.
#include "../kernel.h"

typedef struct norm_job {
  sp_walk rows;   // out, a over the leading axes
  sp_walk inner;  // out, a, weight, bias over the normalised axes (absent ones are left out)
  bool has_weight, has_bias, centred;
  int64_t count;
  double epsilon;
} norm_job;

static const char *check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  const int64_t axes = call->ints[0];
  if (axes < 1 || axes > a->rank) return "axes is not between 1 and the rank of the operand";
  if (out->scalar_type != SP_FLOAT32 || !sp_same_shape(a, out))
    return "the result differs from the operand in type or shape";
  for (uint32_t i = 1; i < call->operand_count; i++) {
    const sp_tensor *t = call->operands[i];
    if (!t) continue;
    if (t->scalar_type != SP_FLOAT32) return "weight and bias must be float32";
    if (t->rank != axes) return "weight and bias must have the normalised shape";
    for (int32_t j = 0; j < t->rank; j++)
      if (t->shape[j] != a->shape[a->rank - axes + j]) return "weight and bias must have the normalised shape";
  }
  return NULL;
}

typedef struct moments {
  double mean, sum;
  bool squares;
} moments;

// The sum of elements, or of squared distances from the mean. Eight running sums, in a fixed order.
static void moment_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  moments *m = context;
  const float *a = (const float *)(const void *)data[1];
  const int64_t sa = strides[1];
  double lanes[8] = {0};
  int64_t i = 0;
  const double mean = m->mean;
  if (!m->squares) {
    for (; i + 8 <= n; i += 8)
      for (int lane = 0; lane < 8; lane++) lanes[lane] += (double)a[(i + lane) * sa];
    for (int lane = 0; i < n; i++, lane++) lanes[lane] += (double)a[i * sa];
  } else if (sa == 1) {
    for (; i + 8 <= n; i += 8)
      for (int lane = 0; lane < 8; lane++) {
        const double d = (double)a[i + lane] - mean;
        lanes[lane] += d * d;
      }
    for (int lane = 0; i < n; i++, lane++) lanes[lane] += ((double)a[i] - mean) * ((double)a[i] - mean);
  } else {
    for (int lane = 0; i < n; i++, lane = (lane + 1) & 7) {
      const double d = (double)a[i * sa] - mean;
      lanes[lane] += d * d;
    }
  }
  m->sum += ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

typedef struct scaling {
  const norm_job *job;
  float mean, scale;
} scaling;

static void scale_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const scaling *s = context;
  float *out = (float *)(void *)data[0];
  const float *a = (const float *)(const void *)data[1];
  const float mean = s->mean, scale = s->scale;
  const int64_t so = strides[0], sa = strides[1];
  if (so == 1 && sa == 1) {
    for (int64_t i = 0; i < n; i++) out[i] = (a[i] - mean) * scale;
  } else {
    for (int64_t i = 0; i < n; i++) out[i * so] = (a[i * sa] - mean) * scale;
  }
  int next = 2;
  if (s->job->has_weight) {
    const float *weight = (const float *)(const void *)data[next];
    const int64_t sw = strides[next++];
    for (int64_t i = 0; i < n; i++) out[i * so] *= weight[i * sw];
  }
  if (s->job->has_bias) {
    const float *bias = (const float *)(const void *)data[next];
    const int64_t sb = strides[next];
    for (int64_t i = 0; i < n; i++) out[i * so] += bias[i * sb];
  }
}

static void row_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const norm_job *job = context;
  sp_walk inner = job->inner;
  for (int64_t i = 0; i < n; i++) {
    inner.data[0] = data[0] + i * strides[0] * 4;
    inner.data[1] = data[1] + i * strides[1] * 4;
    moments m = {0};
    if (job->centred) {
      sp_walk_range(&inner, 0, job->count, moment_strip, &m);
      m.mean = m.sum / (double)job->count;
    }
    m.sum = 0;
    m.squares = true;
    sp_walk_range(&inner, 0, job->count, moment_strip, &m);
    scaling s = {job, (float)m.mean, (float)(1.0 / sqrt(m.sum / (double)job->count + job->epsilon))};
    sp_walk_range(&inner, 0, job->count, scale_strip, &s);
  }
}

static bool norm(const sp_call *call, sp_run *run, bool centred) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  const int32_t axes = (int32_t)call->ints[0], outer = a->rank - axes;
  norm_job job = {.centred = centred, .epsilon = call->floats[0]};
  if (sp_elements(a) == 0) return true;
  sp_walk_start(&job.rows, outer, a->shape);
  sp_walk_add(&job.rows, out->data, 4, out->strides);
  sp_walk_add(&job.rows, a->data, 4, a->strides);
  sp_walk_merge(&job.rows);
  sp_walk_start(&job.inner, axes, a->shape + outer);
  sp_walk_add(&job.inner, out->data, 4, out->strides + outer);
  sp_walk_add(&job.inner, a->data, 4, a->strides + outer);
  for (uint32_t i = 1; i < call->operand_count; i++) {
    const sp_tensor *t = call->operands[i];
    if (!t) continue;
    sp_walk_add(&job.inner, t->data, 4, t->strides);
    if (i == 1) job.has_weight = true;
    if (i == 2) job.has_bias = true;
  }
  job.count = job.inner.elements;
  sp_walk_merge(&job.inner);
  sp_walk_run(&job.rows, run->pool, sp_max(1, 16384 / job.count), row_strip, &job);
  return true;
}

const char *sp_layer_norm_check(const sp_call *call) { return check(call); }
const char *sp_rms_norm_check(const sp_call *call) { return check(call); }
bool sp_layer_norm_run(const sp_call *call, sp_run *run) { return norm(call, run, true); }
bool sp_rms_norm_run(const sp_call *call, sp_run *run) { return norm(call, run, false); }
