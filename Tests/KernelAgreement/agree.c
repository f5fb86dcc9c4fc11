// Runs seeded random calls with the fast kernels of a processor and with plain C, in one process, and compares both
// with each other and with sums in double: for processors that are emulated, where Python would take too long.
//
//     agree ISA          # fails when the processor does not offer ISA (generic, avx2, avx512, neon), too
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "statepack_kernels.h"

static unsigned long cases, failures;
static uint64_t seed = 88172645463325252u;

static uint64_t next(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed;
}
static int64_t below(int64_t limit) { return (int64_t)(next() % (uint64_t)limit); }
// Near a standard normal: the sum of four uniform values, scaled to variance 1.
static float value(void) {
  double sum = -2.0;
  for (int i = 0; i < 4; i++) sum += (double)(next() >> 11) * 0x1p-53;
  return (float)(sum * 1.7320508075688772);
}

static void *room(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, 64, bytes + 64)) exit(2);
  memset(memory, 0xff, bytes + 64);  // NaN, where a kernel reads what nobody wrote
  return memory;
}
static float *values(int64_t count) {
  float *to = room((size_t)count * 4);
  for (int64_t i = 0; i < count; i++) to[i] = value();
  return to;
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

static sp_isa fast;

// The call with one instruction set. Scratch follows from it.
static void run(sp_isa isa, const char *name, sp_call call, sp_pool *pool) {
  if (!sp_isa_choose(isa)) exit(2);
  const sp_kernel *kernel = sp_kernel_find(name);
  const char *reason = kernel->check(&call);
  if (reason) {
    printf("%s: %s\n", name, reason);
    exit(2);
  }
  void *scratch = room(kernel->scratch(&call, sp_pool_threads(pool)));
  call.scratch = scratch;
  const sp_instruction one = {kernel, call};
  sp_run state = {.pool = pool};
  if (!sp_execute(&one, 1, &state)) exit(2);
  free(scratch);
}

static void compare(const char *what, const float *got, const float *expected, int64_t count, double bound) {
  cases++;
  for (int64_t i = 0; i < count; i++) {
    const double difference = fabs((double)got[i] - (double)expected[i]);
    if (difference <= bound || (isnan(got[i]) && isnan(expected[i])) || got[i] == expected[i]) continue;
    if (failures++ < 20) printf("%s: element %lld is %g instead of %g\n", what, (long long)i, got[i], expected[i]);
    return;
  }
}

// --- linear -------------------------------------------------------------------------------------

static void linear(sp_pool *pool, int64_t rows, int64_t n, int64_t k, bool packed, bool biased) {
  const int64_t a_row = k + below(2) * 3;
  float *a = values(rows * a_row), *matrix = values(n * k), *bias = values(n);
  float *panels = room(sp_panel_bytes(n, k));
  sp_panel_pack(matrix, n, k, 0, n, panels);
  float *outs[2] = {room((size_t)(rows * n) * 4), room((size_t)(rows * n) * 4)};
  float *exact = room((size_t)(rows * n) * 4);
  sp_tensor ta = dense(a, SP_FLOAT32, 2, (int64_t[]){rows, k});
  ta.strides[0] = a_row;
  sp_tensor tw = dense(packed ? panels : matrix, SP_FLOAT32, 2, (int64_t[]){n, k});
  tw.layout = packed ? SP_PANEL_16 : SP_ROW_MAJOR;
  sp_tensor tb = dense(bias, SP_FLOAT32, 1, (int64_t[]){n});
  const sp_tensor *operands[3] = {&ta, &tw, biased ? &tb : NULL};
  for (int plain = 0; plain < 2; plain++) {
    sp_tensor to = dense(outs[plain], SP_FLOAT32, 2, (int64_t[]){rows, n});
    sp_tensor *results[1] = {&to};
    const sp_call call = {.operands = operands, .results = results, .operand_count = 3, .result_count = 1};
    run(plain ? SP_ISA_GENERIC : fast, "linear", call, pool);
  }
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < n; i++) {
      double sum = 0;
      for (int64_t j = 0; j < k; j++) sum += (double)a[r * a_row + j] * (double)matrix[i * k + j];
      exact[r * n + i] = (float)(sum + (biased ? (double)bias[i] : 0));
    }
  char what[96];
  snprintf(what, sizeof what, "linear %lld x %lld x %lld%s%s", (long long)rows, (long long)n, (long long)k,
           packed ? " packed" : "", biased ? " with bias" : "");
  // The tolerance of linear in schemas/ops.json, and one rounding of what is compared with.
  compare(what, outs[0], exact, rows * n, 2.4e-7 * (double)k + 1e-6);
  compare(what, outs[0], outs[1], rows * n, 2.4e-7 * (double)k + 1e-6);
  float *all[] = {a, matrix, bias, panels, outs[0], outs[1], exact};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// --- Attention ----------------------------------------------------------------------------------

typedef enum mask_kind { NO_MASK, CAUSAL, BOOLS, FLOATS, MASKS } mask_kind;

// The keys that no query may read hold NaN.
static void sdpa(sp_pool *pool, int64_t queries, int64_t keys, int64_t kv_heads, int64_t groups, int64_t d,
                 mask_kind kind) {
  const int64_t heads = kv_heads * groups;
  float *q = values(heads * queries * d), *k = values(kv_heads * keys * d), *v = values(kv_heads * keys * d);
  uint8_t *bools = room((size_t)(queries * keys));
  float *floats = values(queries * keys);
  const int64_t hidden = kind == BOOLS || kind == FLOATS ? below(keys) : keys;
  for (int64_t i = 0; i < queries; i++)
    for (int64_t j = 0; j < keys; j++) {
      const bool reads = j != hidden && (j + queries <= keys + i) && below(8) != 0;
      bools[i * keys + j] = reads;
      if (!reads) floats[i * keys + j] = -INFINITY;
    }
  if (hidden < keys)
    for (int64_t h = 0; h < kv_heads; h++)
      for (int64_t i = 0; i < d; i++) k[(h * keys + hidden) * d + i] = v[(h * keys + hidden) * d + i] = NAN;
  float *outs[2] = {room((size_t)(heads * queries * d) * 4), room((size_t)(heads * queries * d) * 4)};
  sp_tensor tq = dense(q, SP_FLOAT32, 4, (int64_t[]){1, heads, queries, d}),
            tk = dense(k, SP_FLOAT32, 4, (int64_t[]){1, kv_heads, keys, d}),
            tv = dense(v, SP_FLOAT32, 4, (int64_t[]){1, kv_heads, keys, d});
  sp_tensor tm = dense(kind == BOOLS ? (void *)bools : (void *)floats, kind == BOOLS ? SP_BOOL : SP_FLOAT32, 2,
                       (int64_t[]){queries, keys});
  const sp_tensor *operands[4] = {&tq, &tk, &tv, kind == BOOLS || kind == FLOATS ? &tm : NULL};
  const int64_t ints[2] = {kind == CAUSAL, groups};
  const double scale[1] = {1.0 / sqrt((double)d)};
  for (int plain = 0; plain < 2; plain++) {
    sp_tensor to = dense(outs[plain], SP_FLOAT32, 4, (int64_t[]){1, heads, queries, d});
    sp_tensor *results[1] = {&to};
    const sp_call call = {.operands = operands,
                          .results = results,
                          .ints = ints,
                          .floats = scale,
                          .operand_count = 4,
                          .result_count = 1,
                          .int_count = 2,
                          .float_count = 1};
    run(plain ? SP_ISA_GENERIC : fast, "sdpa", call, pool);
  }
  char what[96];
  snprintf(what, sizeof what, "sdpa %lld x %lld keys, %lld x %lld heads of %lld, mask %d", (long long)queries,
           (long long)keys, (long long)kv_heads, (long long)groups, (long long)d, kind);
  for (int64_t i = 0; i < heads * queries * d; i++)
    if (isnan(outs[1][i])) {
      printf("%s: plain C gives NaN\n", what);
      failures++;
      break;
    }
  compare(what, outs[0], outs[1], heads * queries * d, 5e-6);
  void *all[] = {q, k, v, bools, floats, outs[0], outs[1]};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// --- Others -------------------------------------------------------------------------------------

static double exact_of(const char *name, double x) {
  if (!strcmp(name, "exp")) return exp(x);
  return !strcmp(name, "sigmoid") ? 1 / (1 + exp(-x)) : x / (1 + exp(-x));
}

static void pointwise(const char *name, int64_t count) {
  static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 88.0f, -88.0f, 89.5f, -103.0f, 1e-40f};
  const int64_t specials = sizeof special / sizeof *special;
  float *x = values(count), *outs[2] = {room((size_t)count * 4), room((size_t)count * 4)};
  for (int64_t i = 0; i < count; i++) x[i] = i < specials ? special[i] : x[i] * 20.0f;
  sp_tensor tx = dense(x, SP_FLOAT32, 1, (int64_t[]){count});
  const sp_tensor *operands[1] = {&tx};
  for (int plain = 0; plain < 2; plain++) {
    sp_tensor to = dense(outs[plain], SP_FLOAT32, 1, (int64_t[]){count});
    sp_tensor *results[1] = {&to};
    const sp_call call = {.operands = operands, .results = results, .operand_count = 1, .result_count = 1};
    run(plain ? SP_ISA_GENERIC : fast, name, call, NULL);
  }
  cases++;
  for (int64_t i = 0; i < count; i++) {
    const double exact = exact_of(name, (double)x[i]);
    for (int plain = 0; plain < 2; plain++) {
      const double got = (double)outs[plain][i];
      // Denormals are flushed, and -inf of silu is -inf / inf in float and in double.
      if (got == exact || (isnan(got) && isnan(exact)) || fabs(got - exact) <= fabs(exact) * 4e-7 + 1.2e-38 ||
          (isinf(got) && exact > 3.4e38))
        continue;
      if (failures++ < 20) printf("%s of %g is %g instead of %g\n", name, x[i], got, exact);
    }
  }
  free(x);
  free(outs[0]);
  free(outs[1]);
}

static void packing(int64_t n, int64_t k) {
  float *matrix = values(n * k), *panels = room(sp_panel_bytes(n, k));
  sp_panel_pack(matrix, n, k, 0, n, panels);
  cases++;
  for (int64_t i = 0; i < (n + 15) / 16 * 16; i++)
    for (int64_t j = 0; j < k; j++)
      if (panels[i / 16 * 16 * k + j * 16 + i % 16] != (i < n ? matrix[i * k + j] : 0.0f)) {
        if (failures++ < 20)
          printf("panel of %lld x %lld: wrong at %lld, %lld\n", (long long)n, (long long)k, (long long)i, (long long)j);
        i = n + 16;
        break;
      }
  free(matrix);
  free(panels);
}

static void checksum(size_t count) {
  uint8_t *bytes = room(count + 8);
  for (size_t i = 0; i < count + 8; i++) bytes[i] = (uint8_t)next();
  const size_t shift = (size_t)below(8);
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; i++) {
    crc ^= bytes[shift + i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
  }
  for (int plain = 0; plain < 2; plain++) {
    if (!sp_isa_choose(plain ? SP_ISA_GENERIC : fast)) exit(2);
    cases++;
    if (sp_crc32c(0, bytes + shift, count) != ~crc && failures++ < 20) printf("crc32c of %zu bytes is wrong\n", count);
  }
  free(bytes);
}

int main(int count, char **arguments) {
  fast = sp_isa_in_use();
  if (count != 2 || strcmp(arguments[1], sp_isa_name(fast)) != 0) {
    printf("this processor offers %s, not %s\n", sp_isa_name(fast), count == 2 ? arguments[1] : "what was asked for");
    return 2;
  }
  sp_matmul_choose(SP_MATMUL_OWN);
  sp_pool *pool = sp_pool_create(2);
  static const int64_t shapes[][2] = {{1, 1}, {16, 16}, {15, 7}, {17, 33}, {48, 100}, {100, 130}, {200, 20}, {33, 300}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (int64_t rows = 1; rows <= 13; rows++) {
      linear(pool, rows, shapes[s][0], shapes[s][1], true, below(2));
      if (rows % 3 == 1) linear(pool, rows, shapes[s][0], shapes[s][1], false, below(2));
    }
  for (int64_t i = 0; i < 6; i++)
    linear(pool, 14 + below(100), 1 + below(150), 1 + below(200), below(3) != 0, below(2));
  linear(pool, 30, 40, 1500, true, true);
  for (int kind = 0; kind < MASKS; kind++) {
    for (int i = 0; i < 12; i++)
      sdpa(pool, 1 + below(7), 1 + below(400), 1 + below(3), 1 + below(4), 1 + below(80), (mask_kind)kind);
    for (int i = 0; i < 6; i++)
      sdpa(pool, 8 + below(60), 1 + below(200), 1 + below(2), 1 + below(4), 1 + below(80), (mask_kind)kind);
    sdpa(pool, 1, 700, 3, 3, 64, (mask_kind)kind);
    sdpa(pool, 40, 150, 1, 3, 64, (mask_kind)kind);
  }
  static const char *const functions[] = {"exp", "sigmoid", "silu"};
  for (int f = 0; f < 3; f++)
    for (int64_t n = 1; n < 3000; n = n * 3 + 1) pointwise(functions[f], n);
  for (int64_t n = 1; n < 70; n += 1 + below(12)) packing(n, 1 + below(150));
  for (size_t n = 0; n < 40000; n = n * 2 + (size_t)below(9)) checksum(n);
  sp_pool_destroy(pool);
  printf("%s: %lu comparisons, %lu failures\n", arguments[1], cases, failures);
  return failures != 0;
}
