// oneDNN 2.x (Debian and Ubuntu: libdnnl2), through the 20 functions of its C interface that are declared here: no
// header, no link. Its layout BA16a16b of a [K, N] matrix is our panel layout byte for byte when K and N are
// multiples of 16, so weights are read where they are mapped; other shapes are not given to it.
#include "../onednn.h"

static _Atomic int choice = -1;  // sp_matmul, or -1 while nothing asked

void sp_matmul_choose(sp_matmul matmul) { atomic_store(&choice, (int)matmul); }

#if defined(__x86_64__) && defined(__linux__)
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

// Numbers of oneDNN's C interface, version 2.
enum {
  VERSION = 2,
  LEAST_MINOR = 6,
  RUNTIME_SEQUENTIAL = 1,
  RUNTIME_OPENMP = 2,
  KIND_CPU = 1,
  STREAM_IN_ORDER = 1,
  TYPE_FLOAT32 = 3,
  TAG_AB = 3,
  TAG_BA16A16B = 499,
  SCRATCHPAD_OF_USER = 1,
  QUERY_IMPLEMENTATION = 8,
  QUERY_SCRATCHPAD = 136,
  ARGUMENT_SOURCE = 1,
  ARGUMENT_DESTINATION = 17,
  ARGUMENT_WEIGHTS = 33,
  ARGUMENT_SCRATCHPAD = 80,
};

typedef struct version {
  int major, minor, patch;
  const char *hash;
  unsigned cpu_runtime, gpu_runtime;
} version;
typedef struct argument {
  int number;
  void *memory;
} argument;
// Filled and read by the library alone; 696 and 2,800 bytes in version 2.6.
typedef struct memory_description {
  _Alignas(16) char bytes[2048];
} memory_description;
typedef struct matmul_description {
  _Alignas(16) char bytes[8192];
} matmul_description;

// Every function returns 0 on success unless it returns a pointer or a size.
#define FUNCTIONS(X)                                                                                                  \
  X(const version *, version, (void))                                                                                 \
  X(int, engine_create, (void **engine, int kind, size_t index))                                                      \
  X(int, engine_destroy, (void *engine))                                                                              \
  X(int, stream_create, (void **stream, void *engine, unsigned flags))                                                \
  X(int, stream_wait, (void *stream))                                                                                 \
  X(int, stream_destroy, (void *stream))                                                                              \
  X(int, memory_desc_init_by_tag, (memory_description * md, int rank, const int64_t *shape, int type, int tag))       \
  X(size_t, memory_desc_get_size, (const void *md))                                                                   \
  X(int, memory_create, (void **memory, const void *md, void *engine, void *data))                                    \
  X(int, memory_set_data_handle, (void *memory, void *data))                                                          \
  X(int, memory_destroy, (void *memory))                                                                              \
  X(int, matmul_desc_init, (matmul_description * d, const void *a, const void *w, const void *bias, const void *out)) \
  X(int, primitive_attr_create, (void **attributes))                                                                  \
  X(int, primitive_attr_set_scratchpad_mode, (void *attributes, int mode))                                            \
  X(int, primitive_attr_destroy, (void *attributes))                                                                  \
  X(int, primitive_desc_create,                                                                                       \
    (void **pd, const void *description, const void *attributes, void *engine, const void *hint))                     \
  X(int, primitive_desc_query, (const void *pd, int what, int index, void *result))                                   \
  X(const void *, primitive_desc_query_md, (const void *pd, int what, int index))                                     \
  X(int, primitive_desc_destroy, (void *pd))                                                                          \
  X(int, primitive_create, (void **primitive, const void *pd))                                                        \
  X(int, primitive_execute, (const void *primitive, void *stream, int count, const argument *arguments))              \
  X(int, primitive_destroy, (void *primitive))

#define DECLARE(RESULT, NAME, ARGUMENTS) RESULT(*NAME) ARGUMENTS;
static struct {
  FUNCTIONS(DECLARE)
  int (*omp_get_max_threads)(void);
  void (*omp_set_num_threads)(int);
  void *engine;
} dnnl;

// What one thread needs while it runs a product.
typedef struct executor {
  void *stream, *a, *weight, *out, *scratchpad, *room;
} executor;

struct sp_onednn_product {
  int64_t rows, n, k;
  void *primitive;  // NULL: oneDNN has only its reference for this shape, or failed
  memory_description of_a, of_weight, of_out;
  const void *of_scratchpad;
  _Atomic uint64_t busy;
  executor *executors[64];  // entry n belongs to whoever holds bit n of busy
};

// Open addressing by shape; entries are never removed. Shapes beyond three quarters of the table are not prepared.
enum { PRODUCTS = 512 };
static _Atomic(sp_onednn_product *) products[PRODUCTS];
static size_t product_count;
static pthread_mutex_t preparing = PTHREAD_MUTEX_INITIALIZER;

// OpenMP keeps the number of threads per thread that asks, so the caller's own setting survives. One thread each: our
// pool has already shared the rows out.
static int single_thread(void) {
  if (!dnnl.omp_get_max_threads) return 1;
  const int before = dnnl.omp_get_max_threads();
  if (before != 1) dnnl.omp_set_num_threads(1);
  return before;
}

static void threads_as_before(int before) {
  if (before != 1) dnnl.omp_set_num_threads(before);
}

// --- Running ------------------------------------------------------------------------------------

static void executor_destroy(executor *e) {
  if (!e) return;
  if (e->stream) dnnl.stream_destroy(e->stream);
  void *memories[] = {e->a, e->weight, e->out, e->scratchpad};
  for (int i = 0; i < 4; i++)
    if (memories[i]) dnnl.memory_destroy(memories[i]);
  free(e->room);
  free(e);
}

static executor *executor_create(sp_onednn_product *product) {
  executor *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  const size_t bytes = dnnl.memory_desc_get_size(product->of_scratchpad);
  if (posix_memalign(&e->room, 4096, bytes ? bytes : 64) != 0) e->room = NULL;
  if (e->room && !dnnl.stream_create(&e->stream, dnnl.engine, STREAM_IN_ORDER) &&
      !dnnl.memory_create(&e->a, &product->of_a, dnnl.engine, NULL) &&
      !dnnl.memory_create(&e->weight, &product->of_weight, dnnl.engine, NULL) &&
      !dnnl.memory_create(&e->out, &product->of_out, dnnl.engine, NULL) &&
      !dnnl.memory_create(&e->scratchpad, product->of_scratchpad, dnnl.engine, e->room))
    return e;
  executor_destroy(e);
  return NULL;
}

static bool execute(sp_onednn_product *product, executor *e, const float *a, const float *weight, float *out) {
  // oneDNN reads a and weight only; its interface has no const.
  if (dnnl.memory_set_data_handle(e->a, (void *)(uintptr_t)a) ||
      dnnl.memory_set_data_handle(e->weight, (void *)(uintptr_t)weight) || dnnl.memory_set_data_handle(e->out, out))
    return false;
  const argument arguments[] = {{ARGUMENT_SOURCE, e->a},
                                {ARGUMENT_WEIGHTS, e->weight},
                                {ARGUMENT_DESTINATION, e->out},
                                {ARGUMENT_SCRATCHPAD, e->scratchpad}};
  return !dnnl.primitive_execute(product->primitive, e->stream, 4, arguments) && !dnnl.stream_wait(e->stream);
}

bool sp_onednn_run(sp_onednn_product *product, const float *a, const float *weight, float *out) {
  const int threads = single_thread();
  uint64_t busy = atomic_load_explicit(&product->busy, memory_order_relaxed);
  int slot = -1;
  while (~busy) {
    const int free_slot = __builtin_ctzll(~busy);
    if (atomic_compare_exchange_weak_explicit(&product->busy, &busy, busy | (uint64_t)1 << free_slot,
                                              memory_order_acquire, memory_order_relaxed)) {
      slot = free_slot;
      break;
    }
  }
  // Only several runs together have more than 64 threads; the others make what they need for once.
  executor *e = slot < 0 ? NULL : product->executors[slot];
  if (!e) e = executor_create(product);
  const bool done = e && execute(product, e, a, weight, out);
  if (slot < 0) {
    executor_destroy(e);
  } else {
    product->executors[slot] = e;
    atomic_fetch_and_explicit(&product->busy, ~((uint64_t)1 << slot), memory_order_release);
  }
  threads_as_before(threads);
  return done;
}

// --- Preparing ----------------------------------------------------------------------------------

static size_t product_slot(int64_t rows, int64_t n, int64_t k) {
  uint64_t x = (uint64_t)rows * 0x9e3779b97f4a7c15u ^ (uint64_t)n * 0xc2b2ae3d27d4eb4fu ^ (uint64_t)k;
  x *= 0x9e3779b97f4a7c15u;
  return x >> 55;
}

static sp_onednn_product *find(int64_t rows, int64_t n, int64_t k, size_t *free_slot) {
  size_t at = product_slot(rows, n, k);
  for (;; at = (at + 1) % PRODUCTS) {
    sp_onednn_product *product = atomic_load_explicit(&products[at], memory_order_acquire);
    if (!product) {
      if (free_slot) *free_slot = at;
      return NULL;
    }
    if (product->rows == rows && product->n == n && product->k == k) return product;
  }
}

sp_onednn_product *sp_onednn_find(int64_t rows, int64_t n, int64_t k) {
  sp_onednn_product *product = find(rows, n, k, NULL);
  return product && product->primitive ? product : NULL;
}

// The primitive, or NULL where oneDNN would compute with its plain reference.
static void *primitive_for(sp_onednn_product *product) {
  matmul_description description;
  void *attributes = NULL, *pd = NULL, *primitive = NULL;
  const char *implementation = NULL;
  const int64_t a[2] = {product->rows, product->k}, weight[2] = {product->k, product->n},
                out[2] = {product->rows, product->n};
  if (!dnnl.memory_desc_init_by_tag(&product->of_a, 2, a, TYPE_FLOAT32, TAG_AB) &&
      !dnnl.memory_desc_init_by_tag(&product->of_weight, 2, weight, TYPE_FLOAT32, TAG_BA16A16B) &&
      !dnnl.memory_desc_init_by_tag(&product->of_out, 2, out, TYPE_FLOAT32, TAG_AB) &&
      dnnl.memory_desc_get_size(&product->of_weight) == (size_t)product->n * (size_t)product->k * 4 &&
      !dnnl.matmul_desc_init(&description, &product->of_a, &product->of_weight, NULL, &product->of_out) &&
      !dnnl.primitive_attr_create(&attributes) &&
      !dnnl.primitive_attr_set_scratchpad_mode(attributes, SCRATCHPAD_OF_USER) &&
      !dnnl.primitive_desc_create(&pd, &description, attributes, dnnl.engine, NULL) &&
      !dnnl.primitive_desc_query(pd, QUERY_IMPLEMENTATION, 0, &implementation) && implementation &&
      strncmp(implementation, "ref", 3) != 0 && dnnl.primitive_create(&primitive, pd))
    primitive = NULL;
  if (primitive) product->of_scratchpad = dnnl.primitive_desc_query_md(pd, QUERY_SCRATCHPAD, 0);
  // of_scratchpad lies in pd, which therefore stays.
  if (pd && !primitive) dnnl.primitive_desc_destroy(pd);
  if (attributes) dnnl.primitive_attr_destroy(attributes);
  return primitive;
}

static void prepare(int64_t rows, int64_t n, int64_t k) {
  size_t slot;
  if (find(rows, n, k, &slot) || product_count >= PRODUCTS / 4 * 3) return;
  sp_onednn_product *product = calloc(1, sizeof *product);
  if (!product) return;
  product->rows = rows;
  product->n = n;
  product->k = k;
  const int threads = single_thread();
  product->primitive = primitive_for(product);
  threads_as_before(threads);
  product_count++;
  atomic_store_explicit(&products[slot], product, memory_order_release);
}

static void prepare_all(int64_t n, int64_t k) {
  for (int64_t rows = SP_ONEDNN_MOST_ROWS; rows >= SP_ONEDNN_LEAST_ROWS; rows /= 2) prepare(rows, n, k);
}

// A product of small integers is exact in any order: proof that this library means by its numbers what we mean.
static bool computes(void) {
  enum { ROWS = 16, N = 32, K = 48 };
  static float a[ROWS * K], weight[N * K], panels[N * K], out[ROWS * N];
  for (int i = 0; i < ROWS * K; i++) a[i] = (float)(i * 7 % 11 - 5);
  for (int i = 0; i < N * K; i++) weight[i] = (float)(i * 5 % 13 - 6);
  sp_panel_pack(weight, N, K, 0, N, panels);
  prepare_all(N, K);
  sp_onednn_product *product = sp_onednn_find(ROWS, N, K);
  if (!product || !sp_onednn_run(product, a, panels, out)) return false;
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < N; i++) {
      float sum = 0.0f;
      for (int k = 0; k < K; k++) sum += a[r * K + k] * weight[i * K + k];
      if (out[r * N + i] != sum) return false;
    }
  return true;
}

static bool opened(void) {
  const char *path = getenv("STATEPACK_ONEDNN");
  void *library = dlopen(path && *path ? path : "libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  // The result of dlsym is a function here; C has no cast for that.
#define TAKE(RESULT, NAME, ARGUMENTS)               \
  {                                                 \
    void *function = dlsym(library, "dnnl_" #NAME); \
    if (!function) return false;                    \
    memcpy(&dnnl.NAME, &function, sizeof function); \
  }
  FUNCTIONS(TAKE)
  const version *v = dnnl.version();
  if (v->major != VERSION || v->minor < LEAST_MINOR) return false;
  if (v->cpu_runtime == RUNTIME_OPENMP) {
    // Through the library's handle: the OpenMP that it is linked with.
    void *get = dlsym(library, "omp_get_max_threads"), *set = dlsym(library, "omp_set_num_threads");
    if (!get || !set) return false;
    memcpy(&dnnl.omp_get_max_threads, &get, sizeof get);
    memcpy(&dnnl.omp_set_num_threads, &set, sizeof set);
  } else if (v->cpu_runtime != RUNTIME_SEQUENTIAL) {
    return false;
  }
  return !dnnl.engine_create(&dnnl.engine, KIND_CPU, 0) && computes();
}

static bool is_open(void) {
  static _Atomic int state;  // 0: not tried
  int known = atomic_load_explicit(&state, memory_order_acquire);
  if (known == 0) {
    pthread_mutex_lock(&preparing);
    known = atomic_load_explicit(&state, memory_order_relaxed);
    if (known == 0) {
      known = opened() ? 1 : -1;
      atomic_store_explicit(&state, known, memory_order_release);
    }
    pthread_mutex_unlock(&preparing);
  }
  return known > 0;
}

// By processor, never by a measurement: the same machine always computes the same bits. The own kernel reaches what
// AMD's AVX-512 can do; with two 512-bit units per core (Intel's servers) oneDNN's generated code is ahead.
static sp_matmul wanted(void) {
  int known = atomic_load_explicit(&choice, memory_order_relaxed);
  if (known >= 0) return (sp_matmul)known;
  __builtin_cpu_init();
  known = sp_isa_in_use() == SP_ISA_AVX512 && __builtin_cpu_is("intel") ? SP_MATMUL_ONEDNN : SP_MATMUL_OWN;
  const char *name = getenv("STATEPACK_MATMUL");
  if (name && !strcmp(name, "own")) known = SP_MATMUL_OWN;
  if (name && !strcmp(name, "onednn")) known = SP_MATMUL_ONEDNN;
  int unset = -1;
  atomic_compare_exchange_strong(&choice, &unset, known);
  return (sp_matmul)(unset < 0 ? known : unset);
}

sp_matmul sp_matmul_in_use(void) {
  return wanted() == SP_MATMUL_ONEDNN && is_open() ? SP_MATMUL_ONEDNN : SP_MATMUL_OWN;
}

void sp_onednn_prepare(int64_t n, int64_t k) {
  if (n % 16 != 0 || k % 16 != 0 || n == 0 || k == 0 || sp_matmul_in_use() != SP_MATMUL_ONEDNN) return;
  if (find(SP_ONEDNN_LEAST_ROWS, n, k, NULL)) return;
  pthread_mutex_lock(&preparing);
  prepare_all(n, k);
  pthread_mutex_unlock(&preparing);
}

#else

sp_matmul sp_matmul_in_use(void) { return SP_MATMUL_OWN; }
void sp_onednn_prepare(int64_t n, int64_t k) { (void)n, (void)k; }
sp_onednn_product *sp_onednn_find(int64_t rows, int64_t n, int64_t k) {
  (void)rows, (void)n, (void)k;
  return NULL;
}
bool sp_onednn_run(sp_onednn_product *product, const float *a, const float *weight, float *out) {
  (void)product, (void)a, (void)weight, (void)out;
  return false;
}

#endif
