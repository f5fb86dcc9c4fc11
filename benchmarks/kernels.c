// Times the kernels that a step of a language model spends its time in, beside a plain read of the same bytes.
//
//     make bench-kernels
//
// Numbers mean something only on an idle machine; the read is timed between the kernels for that reason. With CPU=1
// in the environment processor time is measured, which stays true beside others for one thread.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "statepack_kernels.h"

static double now(void) {
  struct timespec t;
  clock_gettime(getenv("CPU") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static float *room(size_t floats) {
  void *memory = NULL;
  if (posix_memalign(&memory, 64, floats * 4 + 64)) exit(1);
  float *values = memory;
  for (size_t i = 0; i < floats; i++) values[i] = (float)((i * 2654435761u >> 16) & 255) / 256.0f - 0.5f;
  return values;
}

static sp_tensor dense(void *data, uint16_t type, int32_t rank, const int64_t *shape) {
  sp_tensor t = {.data = data, .rank = rank, .scalar_type = type};
  int64_t step = 1;
  for (int32_t i = rank - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.strides[i] = step;
    step *= shape[i];
  }
  return t;
}

// Four streams per chunk, as fast as this machine reads.
static float read_streams(const float *p, size_t floats) {
  const size_t quarter = floats / 4;
  float sums[4][16] = {{0}}, all = 0;
  for (size_t i = 0; i + 16 <= quarter; i += 16)
    for (int s = 0; s < 4; s++) {
      __builtin_prefetch(p + s * quarter + i + 512, 0, 2);
      for (int x = 0; x < 16; x++) sums[s][x] += p[s * quarter + i + x];
    }
  for (int s = 0; s < 4; s++)
    for (int x = 0; x < 16; x++) all += sums[s][x];
  return all;
}

typedef struct reading {
  const float *data;
  size_t chunk;
  float sinks[4096];
} reading;

static void read_chunk(void *context, size_t chunk) {
  reading *r = context;
  r->sinks[chunk] = read_streams(r->data + chunk * r->chunk, r->chunk);
}

// The rows in use of all planes of two buffers, in `parts` chunks per plane.
typedef struct reading_rows {
  const float *buffers[2];
  size_t plane, floats, parts;
  float sinks[4096];
} reading_rows;

static void read_rows(void *context, size_t chunk) {
  reading_rows *r = context;
  const size_t part = chunk % r->parts, plane = chunk / r->parts / 2, length = r->floats / r->parts / 64 * 64;
  r->sinks[chunk] = read_streams(r->buffers[chunk / r->parts % 2] + plane * r->plane + part * length, length);
}

enum { ROUNDS = 15 };

static double median(double *times) {
  qsort(times, ROUNDS, sizeof *times, ascending);
  return times[ROUNDS / 2];
}

static sp_tensor matrix_in(float *data, int64_t n, int64_t k, uint16_t layout) {
  sp_tensor t = dense(data, SP_FLOAT32, 2, (int64_t[]){n, k});
  t.layout = layout;
  return t;
}

// Enough copies of the matrix that each call finds it out of cache, as a step does. With many rows the own kernel and
// oneDNN take turns.
static void bench_linear(sp_pool *pool, int64_t m, int64_t n, int64_t k, uint16_t layout) {
  const size_t floats = sp_panel_bytes(n, k) / 4;
  const size_t copies = floats * 4 > (size_t)64 << 20 ? 2 : ((size_t)192 << 20) / (floats * 4) + 1;
  float *weights = room(floats * copies), *a = room((size_t)(m * k)), *out = room((size_t)(m * n));
  sp_tensor ta = dense(a, SP_FLOAT32, 2, (int64_t[]){m, k}), to = dense(out, SP_FLOAT32, 2, (int64_t[]){m, n});
  double times[2][ROUNDS], reads[ROUNDS];
  reading *r = calloc(1, sizeof *r);
  const size_t calls = copies > 40 ? (m > 64 ? 8 : 40) : (m > 64 ? 2 : copies);
  sp_matmul_choose(SP_MATMUL_ONEDNN);
  const int ways = m >= 16 && layout == SP_PANEL_16 && sp_matmul_in_use() == SP_MATMUL_ONEDNN ? 2 : 1;
  void *scratch = NULL;
  for (int round = 0; round < ROUNDS; round++) {
    double t;
    for (int way = 0; way < ways; way++) {
      sp_matmul_choose(way ? SP_MATMUL_ONEDNN : SP_MATMUL_OWN);
      t = now();
      for (size_t c = 0; c < calls; c++) {
        sp_tensor tw = matrix_in(weights + c * floats, n, k, layout);
        const sp_tensor *operands[3] = {&ta, &tw, NULL};
        sp_tensor *results[1] = {&to};
        sp_instruction one = {sp_kernel_find("linear"),
                              {.operands = operands, .results = results, .operand_count = 3, .result_count = 1}};
        sp_run run = {.pool = pool};
        if (one.kernel->check(&one.call)) exit(1);
        if (!scratch && posix_memalign(&scratch, 64, one.kernel->scratch(&one.call, sp_pool_threads(pool)) + 64))
          exit(1);
        one.call.scratch = scratch;
        sp_execute(&one, 1, &run);
      }
      times[way][round] = (now() - t) / (double)calls;
    }
    t = now();
    for (size_t c = 0; c < calls; c++) {
      r->data = weights + c * floats;
      r->chunk = floats / 16 / 64 * 64;
      sp_parallel_for(pool, 16, read_chunk, r);
    }
    reads[round] = (now() - t) / (double)calls;
  }
  double ratios[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) ratios[round] = ways == 2 ? times[1][round] / times[0][round] : 0;
  const double time = median(times[0]), read = median(reads), bytes = (double)floats * 4;
  const double operations = 2e-9 * (double)m * (double)n * (double)k;
  printf("linear %4lld x %5lld x %4lld%s, %u threads: %9.1f us  %6.1f GB/s (read %6.1f)  %7.1f GFLOP/s", (long long)m,
         (long long)n, (long long)k, layout == SP_PANEL_16 ? "" : " row-major", sp_pool_threads(pool), time * 1e6,
         bytes / time * 1e-9, bytes / read * 1e-9, operations / time);
  if (ways == 2)
    printf("  oneDNN %7.1f GFLOP/s, own rate / oneDNN's %.2f", operations / median(times[1]), median(ratios));
  puts("");
  sp_matmul_choose(SP_MATMUL_OWN);
  free(scratch);
  free(weights);
  free(a);
  free(out);
  free(r);
}

// Keys and values of every layer, of which only the rows in use are ever touched.
static float *rows_in_use(size_t planes, int64_t capacity, int64_t rows, int64_t width) {
  float *all = NULL;
  if (posix_memalign((void **)&all, 4096, planes * (size_t)(capacity * width) * 4)) exit(1);
  for (size_t p = 0; p < planes; p++)
    for (int64_t i = 0; i < rows * width; i++)
      all[p * (size_t)(capacity * width) + (size_t)i] = (float)((uint32_t)i * 2654435761u >> 24) / 256.0f - 0.5f;
  return all;
}

// Attention over 30 layers as in a step of SmolLM2-135M, and a read of as many bytes of the same keys and values.
// Between the two, and before each, other memory is read as a step reads its weights.
static void bench_sdpa(sp_pool *pool, int64_t queries, int64_t keys, int64_t capacity) {
  enum { LAYERS = 30, HEADS = 9, GROUPS = 3, PLANES = HEADS / GROUPS, D = 64 };
  const size_t layer = (size_t)(PLANES * capacity * D), others = (size_t)24 << 20;
  float *k = rows_in_use(PLANES * LAYERS, capacity, keys, D), *v = rows_in_use(PLANES * LAYERS, capacity, keys, D);
  float *q = room((size_t)(HEADS * queries * D)), *out = room((size_t)(HEADS * queries * D)), *other = room(others);
  uint8_t *mask = calloc((size_t)queries, (size_t)capacity);
  for (int64_t i = 0; i < queries; i++) memset(mask + i * capacity, 1, (size_t)(keys - queries + i + 1));
  sp_tensor tq = dense(q, SP_FLOAT32, 4, (int64_t[]){1, HEADS, queries, D}),
            to = dense(out, SP_FLOAT32, 4, (int64_t[]){1, HEADS, queries, D});
  sp_tensor tm = dense(mask, SP_BOOL, 2, (int64_t[]){queries, capacity});
  const int64_t ints[2] = {0, GROUPS};
  const double floats[1] = {0.125};
  sp_instruction all[LAYERS];
  sp_tensor tk[LAYERS], tv[LAYERS];
  const sp_tensor *operands[LAYERS][4];
  sp_tensor *results[1] = {&to};
  void *scratch = NULL;
  for (size_t l = 0; l < LAYERS; l++) {
    tk[l] = dense(k + layer * l, SP_FLOAT32, 4, (int64_t[]){1, PLANES, capacity, D});
    tv[l] = dense(v + layer * l, SP_FLOAT32, 4, (int64_t[]){1, PLANES, capacity, D});
    operands[l][0] = &tq;
    operands[l][1] = &tk[l];
    operands[l][2] = &tv[l];
    operands[l][3] = &tm;
    all[l] = (sp_instruction){sp_kernel_find("sdpa"),
                              {.operands = operands[l],
                               .results = results,
                               .ints = ints,
                               .floats = floats,
                               .operand_count = 4,
                               .result_count = 1,
                               .int_count = 2,
                               .float_count = 1}};
    const char *reason = all[l].kernel->check(&all[l].call);
    if (reason) exit(puts(reason));
    if (!scratch && posix_memalign(&scratch, 64, all[l].kernel->scratch(&all[l].call, sp_pool_threads(pool)) + 64))
      exit(1);
    all[l].call.scratch = scratch;
  }
  double times[ROUNDS], reads[ROUNDS], ratios[ROUNDS];
  uint64_t rows = 0;
  reading *r = calloc(1, sizeof *r);
  reading_rows *rows_read = calloc(1, sizeof *rows_read);
  rows_read->plane = layer / PLANES;
  rows_read->floats = (size_t)(keys * D);
  rows_read->parts = keys < 512 ? 1 : 4;
  for (int round = 0; round < ROUNDS; round++) {
    r->data = other;
    r->chunk = others / 64;
    sp_parallel_for(pool, 64, read_chunk, r);
    sp_run run = {.pool = pool};
    double t = now();
    sp_execute(all, LAYERS, &run);
    times[round] = (now() - t) / LAYERS;
    rows = run.statistics.attention_rows;
    r->data = other;
    r->chunk = others / 64;
    sp_parallel_for(pool, 64, read_chunk, r);
    t = now();
    for (size_t l = 0; l < LAYERS; l++) {
      rows_read->buffers[0] = k + layer * l;
      rows_read->buffers[1] = v + layer * l;
      sp_parallel_for(pool, PLANES * 2 * rows_read->parts, read_rows, rows_read);
    }
    reads[round] = (now() - t) / LAYERS;
    ratios[round] = times[round] / reads[round];
  }
  const double time = median(times);
  printf("sdpa %4lld queries, %5lld keys of %5lld, %u threads: %9.1f us a layer (read %7.1f, ratio %5.2f)",
         (long long)queries, (long long)keys, (long long)capacity, sp_pool_threads(pool), time * 1e6,
         median(reads) * 1e6, median(ratios));
  printf("  %6.1f GB/s  %6.1f GFLOP/s  rows %llu\n", (double)rows / LAYERS * D * 8 / time * 1e-9,
         4e-9 * HEADS * (double)queries * (double)keys * D / time, (unsigned long long)rows);
  free(k);
  free(v);
  free(q);
  free(out);
  free(other);
  free(mask);
  free(scratch);
  free(r);
  free(rows_read);
}

// build/kernels/bench [linear [LEAST_ROWS] | sdpa]: everything, or one kernel, linear from so many rows on.
int main(int count, char **arguments) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char *only = count > 1 ? arguments[1] : "";
  const int64_t least_rows = count > 2 ? atoi(arguments[2]) : 1;
  const unsigned threads = sp_available_threads() < 2 ? 1 : 2;
  for (unsigned t = threads; t >= 1; t--) {
    sp_pool *pool = sp_pool_create(t);
    printf("%s\n", sp_isa_name(sp_isa_in_use()));
    if (!strcmp(only, "") || !strcmp(only, "linear")) {
      static const int64_t shapes[][3] = {
          {1, 192, 576},    {1, 576, 576},    {1, 576, 1536},   {1, 1536, 576},   {1, 49152, 576},   {4, 1536, 576},
          {9, 1536, 576},   {12, 1536, 576},  {16, 1536, 576},  {24, 1536, 576},  {32, 1536, 576},   {64, 1536, 576},
          {112, 1536, 576}, {112, 576, 1536}, {512, 1536, 576}, {512, 576, 1536}, {512, 5632, 2048}, {512, 2048, 5632}};
      const int shape_count = sizeof shapes / sizeof *shapes;
      for (int i = 0; i < shape_count; i++)
        if (shapes[i][0] >= least_rows) bench_linear(pool, shapes[i][0], shapes[i][1], shapes[i][2], SP_PANEL_16);
      for (int i = 0; i < shape_count; i++)
        if (shapes[i][1] == 1536 && shapes[i][0] >= least_rows)
          bench_linear(pool, shapes[i][0], shapes[i][1], shapes[i][2], SP_ROW_MAJOR);
    }
    if (!strcmp(only, "") || !strcmp(only, "sdpa")) {
      for (int64_t capacity = 2048; capacity <= 32768; capacity *= 16) {
        bench_sdpa(pool, 1, 128, capacity);
        bench_sdpa(pool, 1, 512, capacity);
        bench_sdpa(pool, 1, 1024, capacity);
        bench_sdpa(pool, 1, 2000, capacity);
      }
      bench_sdpa(pool, 4, 512, 2048);
      bench_sdpa(pool, 512, 512, 2048);
      bench_sdpa(pool, 512, 512, 32768);
    }
    sp_pool_destroy(pool);
  }
  return 0;
}
