// Times the matrix-vector products of one token of SmolLM2-135M, norms between them, beside four-stream reading of
// the same bytes: how much of the machine's bandwidth the products reach. Attention and states are left out.
//
//     make bench-step            UNFUSED=1 for one product per weight, as torch has them
//
// Numbers mean something only on an idle machine. Steps and readings alternate; the ratio is the median of pairs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "statepack_kernels.h"

enum { LAYERS = 30, PAIRS = 41, HIDDEN = 576 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double quantile(double *values, int count, double at) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[(int)(at * (count - 1) + 0.5)];
}

static void *room(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, 4096, bytes + 64)) exit(1);
  memset(memory, 0, bytes + 64);
  return memory;
}

typedef struct operation {
  sp_tensor a, w, out;
  const sp_tensor *operands[3];
  sp_tensor *results[1];
} operation;

static int64_t norm_ints[1] = {1};
static double norm_floats[1] = {1e-5};

static sp_instruction linear(operation *op, float *a, int64_t k, float *weight, int64_t n, float *out) {
  op->a = (sp_tensor){.data = a, .rank = 2, .scalar_type = SP_FLOAT32, .shape = {1, k}, .strides = {k, 1}};
  op->out = (sp_tensor){.data = out, .rank = 2, .scalar_type = SP_FLOAT32, .shape = {1, n}, .strides = {n, 1}};
  op->w = (sp_tensor){
      .data = weight, .rank = 2, .scalar_type = SP_FLOAT32, .layout = SP_PANEL_16, .shape = {n, k}, .strides = {k, 1}};
  op->operands[0] = &op->a;
  op->operands[1] = &op->w;
  op->results[0] = &op->out;
  return (sp_instruction){sp_kernel_find("linear"),
                          {.operands = op->operands, .results = op->results, .operand_count = 3, .result_count = 1}};
}

static sp_instruction norm(operation *op, float *a, float *weight, float *out) {
  sp_instruction result = linear(op, a, HIDDEN, weight, HIDDEN, out);
  op->w = (sp_tensor){.data = weight, .rank = 1, .scalar_type = SP_FLOAT32, .shape = {HIDDEN}, .strides = {1}};
  result.kernel = sp_kernel_find("rms_norm");
  result.call.operand_count = 2;
  result.call.ints = norm_ints;
  result.call.floats = norm_floats;
  result.call.int_count = result.call.float_count = 1;
  return result;
}

int main(int argc, char **argv) {
  const unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : sp_available_threads();
  const bool fused = !getenv("UNFUSED");
  static const int64_t joined[][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
  static const int64_t apart[][2] = {{576, 576},  {192, 576},  {192, 576}, {576, 576},
                                     {1536, 576}, {1536, 576}, {576, 1536}};
  const int64_t (*shapes)[2] = fused ? joined : apart;
  const int products = fused ? 4 : 7;
  size_t floats = sp_panel_bytes(49152, HIDDEN) / 4;
  for (int i = 0; i < products; i++) floats += LAYERS * sp_panel_bytes(shapes[i][0], shapes[i][1]) / 4;
  float *weights = room(floats * 4), *x = room(4096 * 4), *y = room(49152 * 4), *scale = room(HIDDEN * 4);
  operation *operations = calloc(LAYERS * 9 + 2, sizeof *operations);
  sp_instruction list[LAYERS * 9 + 2];
  int count = 0;
  float *at = weights;
  for (int layer = 0; layer < LAYERS; layer++)
    for (int i = 0; i < products; i++) {
      if (i == 0 || i == products - (fused ? 2 : 3)) {
        list[count] = norm(&operations[count], x, scale, y);
        count++;
      }
      list[count] = linear(&operations[count], x, shapes[i][1], at, shapes[i][0], y);
      count++;
      at += sp_panel_bytes(shapes[i][0], shapes[i][1]) / 4;
    }
  list[count] = linear(&operations[count], x, HIDDEN, at, 49152, y);
  count++;
  for (int i = 0; i < count; i++) {
    const char *reason = list[i].kernel->check(&list[i].call);
    if (reason) return puts(reason), 1;
  }
  sp_pool *pool = sp_pool_create(threads);
  double steps[PAIRS], reads[PAIRS], ratios[PAIRS];
  for (int pair = -2; pair < PAIRS; pair++) {
    sp_run run = {.pool = pool};
    double t = now();
    sp_execute(list, (size_t)count, &run);
    const double step = now() - t;
    uint64_t sum;
    t = now();
    sp_read_streams(pool, weights, floats * 4, 4, &sum);
    const double read = now() - t;
    if (pair < 0) continue;
    steps[pair] = step;
    reads[pair] = read;
    ratios[pair] = step / read;
  }
  printf(
      "%s, %u threads, %d products: step %.2f ms, reading %.2f ms (%.1f GB/s), ratio %.3f (quartiles %.3f to %.3f)\n",
      sp_isa_name(sp_isa_in_use()), threads, count, quantile(steps, PAIRS, 0.5) * 1e3,
      quantile(reads, PAIRS, 0.5) * 1e3, (double)floats * 4e-9 / quantile(reads, PAIRS, 0.5),
      quantile(ratios, PAIRS, 0.5), quantile(ratios, PAIRS, 0.25), quantile(ratios, PAIRS, 0.75));
  sp_pool_destroy(pool);
  return 0;
}
