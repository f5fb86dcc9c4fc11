// linear with what stands around it: several weights over one operand, a gated activation, a residual.
//
// Few rows of packed weights run as linear's do, in one pass over all weights: each pass ends with a wait for the
// slowest thread. Whatever else comes is left to linear itself, so that every element has the bits of linear followed
// by the operators that are fused with it.
#include "linear.h"

enum { PARTS = 16, GATE_GRAIN = 16384 };

// --- What the kernels share -----------------------------------------------------------------------

// One weight's columns of the result.
static sp_tensor columns_of(const sp_tensor *out, int64_t first, int64_t count) {
  sp_tensor part = *out;
  part.shape[out->rank - 1] = count;
  // Before the first run there is no address yet.
  if (out->data) part.data = sp_at(out, first * out->strides[out->rank - 1]);
  return part;
}

// The call of linear that computes `out` alone.
typedef struct plain {
  const sp_tensor *operands[3];
  sp_tensor *results[1];
  sp_call call;
} plain;

static const sp_call *plain_call(plain *p, const sp_tensor *a, const sp_tensor *weight, const sp_tensor *bias,
                                 sp_tensor *out, void *scratch) {
  *p = (plain){.operands = {a, weight, bias}, .results = {out}};
  p->call = (sp_call){
      .operands = p->operands, .results = p->results, .scratch = scratch, .operand_count = 3, .result_count = 1};
  return &p->call;
}

// What linear's own check prepares.
static void prepare(const sp_tensor *a, const sp_tensor *weight) {
  plain alone;
  sp_linear_many_prepare(plain_call(&alone, a, weight, NULL, NULL, NULL));
}

// Prepares a pass over few rows. False when the call is not one.
static bool few_rows(sp_linear_job *job, const sp_tensor *a, const sp_tensor *weight, const sp_tensor *bias,
                     const sp_tensor *out) {
  *job = (sp_linear_job){.tiler = sp_tiler_in_use(),
                         .a = a->data,
                         .weight = weight->data,
                         .out = out->data,
                         .rows = sp_elements(a) / sp_max(1, weight->shape[1]),
                         .n = weight->shape[0],
                         .k = weight->shape[1]};
  if (weight->layout != SP_PANEL_16 || job->k == 0 || job->n == 0 || !sp_linear_are_few(job)) return false;
  if (!sp_linear_rows(a, &job->a_row) || !sp_linear_rows(out, &job->out_row)) return false;
  if (bias) {
    if (bias->strides[0] != 1 && job->n != 1) return false;
    job->bias = bias->data;
  }
  job->panels = sp_ceil_div(job->n, 16);
  return true;
}

static const char *check_weight(const sp_tensor *a, const sp_tensor *weight, const sp_tensor *bias) {
  if (weight->scalar_type != SP_FLOAT32) return "operands and result must be float32";
  if (weight->rank != 2) return "weight is not a matrix";
  if (a->shape[a->rank - 1] != weight->shape[1]) return "the inner axes differ";
  if (bias && (bias->scalar_type != SP_FLOAT32 || bias->rank != 1 || bias->shape[0] != weight->shape[0]))
    return "bias has the wrong shape or type";
  return NULL;
}

static const char *check_result(const sp_tensor *a, const sp_tensor *out, int64_t columns) {
  if (out->scalar_type != SP_FLOAT32) return "operands and result must be float32";
  if (a->rank < 1 || out->rank != a->rank) return "operand and result have different ranks";
  for (int32_t i = 0; i < a->rank - 1; i++)
    if (a->shape[i] != out->shape[i]) return "the result has the wrong shape";
  if (out->shape[out->rank - 1] != columns) return "the result has the wrong shape";
  return NULL;
}

// --- Several weights over one operand ---------------------------------------------------------------

typedef struct parts {
  uint32_t count;
  const sp_tensor *const *weights, *const *biases;
} parts;

static parts parts_of(const sp_call *call) {
  const uint32_t given = call->operand_count - 1;
  const bool biased = call->ints[0] != 0;
  const uint32_t count = biased ? given / 2 : given;
  return (parts){count, call->operands + 1, biased ? call->operands + 1 + count : NULL};
}

const char *sp_linear_parts_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0];
  const int64_t biased = call->ints[0];
  if (biased != 0 && biased != 1) return "biases is neither 0 nor 1";
  if (biased && call->operand_count % 2 != 1) return "weights and biases differ in number";
  const parts p = parts_of(call);
  if (p.count > PARTS) return "there are more than 16 weights";
  if (a->rank < 1) return "the operand has no axes";
  int64_t columns = 0;
  for (uint32_t i = 0; i < p.count; i++) {
    const char *reason = check_weight(a, p.weights[i], p.biases ? p.biases[i] : NULL);
    if (reason) return reason;
    if (p.biases && p.biases[i]->layout != SP_ROW_MAJOR) return "bias has the wrong shape or type";
    columns += p.weights[i]->shape[0];
  }
  const char *reason = check_result(a, call->results[0], columns);
  for (uint32_t i = 0; i < p.count && !reason; i++) prepare(a, p.weights[i]);
  return reason;
}

// Bytes for one part in rows of its own. oneDNN writes no others, and linear's bits are to be had.
static size_t dense_part(const sp_call *call, const parts *p) {
  const sp_tensor *a = call->operands[0];
  const int64_t k = p->weights[0]->shape[1], rows = k ? sp_elements(a) / k : 0;
  if (p->count == 1 || rows < SP_ONEDNN_LEAST_ROWS || sp_matmul_in_use() != SP_MATMUL_ONEDNN) return 0;
  int64_t most = 0;
  for (uint32_t i = 0; i < p->count; i++) most = sp_max(most, p->weights[i]->shape[0]);
  return ((size_t)(rows * most) * 4 + 63) & ~(size_t)63;
}

size_t sp_linear_parts_scratch(const sp_call *call, unsigned threads) {
  const parts p = parts_of(call);
  const size_t dense = dense_part(call, &p);
  size_t most = 0;
  int64_t first = 0;
  for (uint32_t i = 0; i < p.count; i++) {
    plain alone;
    const int64_t n = p.weights[i]->shape[0];
    sp_tensor out = columns_of(call->results[0], first, n);
    const size_t size = sp_linear_scratch(
        plain_call(&alone, call->operands[0], p.weights[i], p.biases ? p.biases[i] : NULL, &out, NULL), threads);
    if (size > most) most = size;
    first += n;
  }
  return dense + most;
}

typedef struct parts_job {
  int count;
  sp_linear_job jobs[PARTS];
} parts_job;

static void parts_chunk(void *context, size_t chunk) {
  const parts_job *all = context;
  int i = 0;
  while (chunk >= (size_t)all->jobs[i].groups) chunk -= (size_t)all->jobs[i++].groups;
  sp_linear_few_chunk(&all->jobs[i], chunk);
}

bool sp_linear_parts_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0];
  const parts p = parts_of(call);
  if (sp_elements(call->results[0]) == 0) return true;
  parts_job all = {.count = (int)p.count};
  bool few = true;
  int64_t first = 0;
  for (uint32_t i = 0; i < p.count && few; i++) {
    sp_tensor out = columns_of(call->results[0], first, p.weights[i]->shape[0]);
    few = few_rows(&all.jobs[i], a, p.weights[i], p.biases ? p.biases[i] : NULL, &out);
    first += p.weights[i]->shape[0];
  }
  if (few) {
    sp_linear_run_few(all.jobs, all.count, run->pool, parts_chunk, &all);
    return true;
  }
  const size_t dense = dense_part(call, &p);
  first = 0;
  for (uint32_t i = 0; i < p.count; i++) {
    plain alone;
    const sp_tensor *bias = p.biases ? p.biases[i] : NULL;
    sp_tensor out = columns_of(call->results[0], first, p.weights[i]->shape[0]);
    sp_tensor own = dense ? sp_linear_dense_like(&out, call->scratch) : out;
    if (!sp_linear_run(plain_call(&alone, a, p.weights[i], bias, &own, (char *)call->scratch + dense), run))
      return false;
    if (dense) sp_copy_view(&out, &own, run->pool);
    first += p.weights[i]->shape[0];
  }
  return true;
}

// --- A gated activation -----------------------------------------------------------------------------

// In the order that ops.json documents.
static sp_strip activation(int64_t kind) {
  switch (kind) {
    case 0:
      return sp_silu_strip();
    case 1:
      return sp_gelu_strip();
    case 2:
      return sp_gelu_tanh_strip();
    case 3:
      return sp_sigmoid_strip();
    default:
      return sp_relu_strip();
  }
}

const char *sp_linear_gated_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *gate = call->operands[1], *up = call->operands[2];
  if (call->ints[0] < 0 || call->ints[0] > 4) return "activation is not between 0 and 4";
  if (a->rank < 1) return "the operand has no axes";
  const char *reason = check_weight(a, gate, call->operands[3]);
  if (!reason) reason = check_weight(a, up, call->operands[4]);
  if (reason) return reason;
  if (gate->shape[0] != up->shape[0]) return "the two weights have different shapes";
  reason = check_result(a, call->results[0], gate->shape[0]);
  if (!reason) prepare(a, gate);
  return reason;
}

static size_t gate_bytes(const sp_call *call) { return ((size_t)sp_elements(call->results[0]) * 4 + 63) & ~(size_t)63; }

size_t sp_linear_gated_scratch(const sp_call *call, unsigned threads) {
  plain alone;
  const sp_tensor *a = call->operands[0];
  sp_tensor gates = sp_linear_dense_like(call->results[0], NULL);
  const size_t one =
      sp_linear_scratch(plain_call(&alone, a, call->operands[1], call->operands[3], &gates, NULL), threads);
  const size_t two =
      sp_linear_scratch(plain_call(&alone, a, call->operands[2], call->operands[4], call->results[0], NULL), threads);
  return gate_bytes(call) + (one > two ? one : two);
}

typedef struct gated_job {
  sp_strip activation;
  sp_linear_job gate, up;
} gated_job;

// Through a buffer: a loop that writes what it reads is not vectorised.
static void apply_gate(sp_strip activation, int64_t n, float *out, int64_t out_stride, float *gate) {
  float activated[1024];
  const int64_t strides[] = {1, 1};
  for (int64_t first = 0; first < n; first += 1024) {
    const int64_t count = sp_min(1024, n - first);
    char *data[] = {(char *)activated, (char *)(gate + first)};
    activation(NULL, count, data, strides);
    float *part = out + first * out_stride;
    if (out_stride == 1) {
      for (int64_t i = 0; i < count; i++) part[i] *= activated[i];
    } else {
      for (int64_t i = 0; i < count; i++) part[i * out_stride] *= activated[i];
    }
  }
}

static void gated_chunk(void *context, size_t chunk) {
  const gated_job *job = context;
  // The same panels of both: the chunk has what its products need.
  sp_linear_job gate = job->gate;
  gate.stripes = job->up.stripes;
  gate.groups = job->up.groups;
  sp_linear_few_chunk(&gate, chunk);
  sp_linear_few_chunk(&job->up, chunk);
  for (int64_t panel = (int64_t)chunk; panel < job->up.panels; panel += job->up.groups) {
    const int64_t first = panel * 16, n = sp_min(16, job->up.n - first);
    for (int64_t row = 0; row < job->up.rows; row++)
      apply_gate(job->activation, n, job->up.out + row * job->up.out_row + first, 1,
                 job->gate.out + row * job->gate.out_row + first);
  }
}

static void gate_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const gated_job *job = context;
  // The gates are dense: they are scratch of this call.
  apply_gate(job->activation, n, (float *)(void *)data[0], strides[0], (float *)(void *)data[1]);
}

bool sp_linear_gated_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0];
  sp_tensor *out = call->results[0];
  if (sp_elements(out) == 0) return true;
  sp_tensor gates = sp_linear_dense_like(out, call->scratch);
  gated_job job = {.activation = activation(call->ints[0])};
  if (few_rows(&job.gate, a, call->operands[1], call->operands[3], &gates) &&
      few_rows(&job.up, a, call->operands[2], call->operands[4], out)) {
    sp_linear_run_few(&job.up, 1, run->pool, gated_chunk, &job);
    return true;
  }
  plain alone;
  void *scratch = (char *)call->scratch + gate_bytes(call);
  if (!sp_linear_run(plain_call(&alone, a, call->operands[1], call->operands[3], &gates, scratch), run)) return false;
  if (!sp_linear_run(plain_call(&alone, a, call->operands[2], call->operands[4], out, scratch), run)) return false;
  sp_walk walk;
  sp_walk_start(&walk, out->rank, out->shape);
  sp_walk_add(&walk, out->data, 4, out->strides);
  sp_walk_add(&walk, gates.data, 4, gates.strides);
  sp_walk_merge(&walk);
  sp_walk_run(&walk, run->pool, GATE_GRAIN, gate_strip, &job);
  return true;
}

// --- A residual ---------------------------------------------------------------------------------------

const char *sp_linear_add_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *weight = call->operands[1], *residual = call->operands[2];
  if (a->rank < 1) return "the operand has no axes";
  const char *reason = check_weight(a, weight, call->operands[3]);
  if (!reason) reason = check_result(a, call->results[0], weight->shape[0]);
  if (reason) return reason;
  if (residual->scalar_type != SP_FLOAT32 || !sp_same_shape(residual, call->results[0]))
    return "the residual differs from the result in type or shape";
  prepare(a, weight);
  return NULL;
}

size_t sp_linear_add_scratch(const sp_call *call, unsigned threads) {
  plain alone;
  return sp_linear_scratch(
      plain_call(&alone, call->operands[0], call->operands[1], call->operands[3], call->results[0], NULL), threads);
}

typedef struct add_job {
  sp_linear_job linear;
  const float *residual;
  int64_t residual_row;
} add_job;

static void add_chunk(void *context, size_t chunk) {
  const add_job *job = context;
  const sp_linear_job *linear = &job->linear;
  sp_linear_few_chunk(linear, chunk);
  for (int64_t panel = (int64_t)chunk; panel < linear->panels; panel += linear->groups) {
    const int64_t first = panel * 16, n = sp_min(16, linear->n - first);
    for (int64_t row = 0; row < linear->rows; row++) {
      float *out = linear->out + row * linear->out_row + first;
      const float *residual = job->residual + row * job->residual_row + first;
      for (int64_t i = 0; i < n; i++) out[i] += residual[i];
    }
  }
}

static void add_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  (void)context;
  float *out = (float *)(void *)data[0];
  const float *residual = (const float *)(const void *)data[1];
  const int64_t so = strides[0], sr = strides[1];
  if (so == 1 && sr == 1) {
    for (int64_t i = 0; i < n; i++) out[i] += residual[i];
  } else {
    for (int64_t i = 0; i < n; i++) out[i * so] += residual[i * sr];
  }
}

bool sp_linear_add_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *weight = call->operands[1], *residual = call->operands[2];
  const sp_tensor *bias = call->operands[3];
  sp_tensor *out = call->results[0];
  if (sp_elements(out) == 0) return true;
  add_job job = {.residual = residual->data};
  if (few_rows(&job.linear, a, weight, bias, out) && sp_linear_rows(residual, &job.residual_row)) {
    sp_linear_run_few(&job.linear, 1, run->pool, add_chunk, &job);
    return true;
  }
  plain alone;
  if (!sp_linear_run(plain_call(&alone, a, weight, bias, out, call->scratch), run)) return false;
  sp_walk walk;
  sp_walk_start(&walk, out->rank, out->shape);
  sp_walk_add(&walk, out->data, 4, out->strides);
  sp_walk_add(&walk, residual->data, 4, residual->strides);
  sp_walk_merge(&walk);
  sp_walk_run(&walk, run->pool, 32768, add_strip, NULL);
  return true;
}
