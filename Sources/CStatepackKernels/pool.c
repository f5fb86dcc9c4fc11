// A pool whose threads claim chunks. Every thread starts at the front of a range of its own and, when that
// is empty, takes from the back of the others' ranges, so that neighbouring chunks stay on one core and one
// slow core holds nobody up.
//
// One word per range holds generation, next and end. A worker that was late for one loop finds another
// generation there and claims nothing, so a loop needs no barrier at its start.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernel.h"

#if defined(__linux__) && !defined(SP_PORTABLE_SLEEP)
#define SP_FUTEX 1
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#elif defined(__linux__)
#include <sched.h>
#endif

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

// Spins of about 40 ns each. Between two loops of a run a worker waits about 0.3 ms before it sleeps, longer
// than the serial parts of a step; the caller waits for the last chunk of a worker about as long.
enum { WORKER_SPINS = 8192, CALLER_SPINS = 8192 };

typedef struct range {
  _Alignas(64) _Atomic uint64_t word;  // generation << 32 | next << 16 | end
} range;

typedef void (*chunk_body)(void *context, size_t chunk);

struct sp_pool {
  unsigned threads;
  pthread_t *workers;
  pthread_mutex_t mutex;  // only where there is no futex
  pthread_cond_t changed;
  _Alignas(64) _Atomic uint32_t generation;
  _Atomic uint32_t sleepers;
  _Atomic uint32_t active;  // runs inside sp_execute: workers spin only while there is one
  _Atomic uint32_t stop;
  _Alignas(64) _Atomic uint32_t taken;  // a loop is being served
  _Alignas(64) _Atomic uint32_t left;   // claims not finished yet
  _Atomic uint32_t caller_sleeps;
  _Alignas(64) _Atomic(chunk_body) body;
  _Atomic(void *) context;
  _Atomic size_t chunks;
  _Atomic size_t per_claim;
  _Atomic uint64_t float_mode;
  range ranges[SP_MAX_THREADS];
};

typedef struct worker_start {
  sp_pool *pool;
  unsigned index;
} worker_start;

static void sleep_while(sp_pool *pool, _Atomic uint32_t *word, uint32_t value) {
#if SP_FUTEX
  (void)pool;
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
  pthread_mutex_lock(&pool->mutex);
  while (atomic_load(word) == value) pthread_cond_wait(&pool->changed, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
#endif
}

static void wake_all(sp_pool *pool, _Atomic uint32_t *word) {
#if SP_FUTEX
  (void)pool;
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
  (void)word;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->mutex);
#endif
}

// The claim taken from a range, or -1: from the front, or from the back when stealing.
static int64_t claim(range *from, uint32_t generation, bool back) {
  uint64_t word = atomic_load_explicit(&from->word, memory_order_acquire);
  for (;;) {
    const uint32_t next = (word >> 16) & 0xffff, end = word & 0xffff;
    if ((uint32_t)(word >> 32) != generation || next >= end) return -1;
    const uint64_t taken = back ? word - 1 : word + 0x10000;
    if (atomic_compare_exchange_weak_explicit(&from->word, &word, taken, memory_order_acq_rel, memory_order_acquire))
      return back ? end - 1 : next;
  }
}

static void serve(sp_pool *pool, unsigned thread, uint32_t generation, uint64_t *float_mode) {
  for (unsigned step = 0; step < pool->threads;) {
    const unsigned owner = (thread + step) % pool->threads;
    const int64_t got = claim(&pool->ranges[owner], generation, step != 0);
    if (got < 0) {
      step++;
      continue;
    }
    // A successful claim keeps the loop alive until `left` says it is done, so these belong to it.
    if (float_mode) {
      const uint64_t wanted = atomic_load_explicit(&pool->float_mode, memory_order_relaxed);
      if (wanted != *float_mode) sp_set_float_mode(*float_mode = wanted);
    }
    const chunk_body body = atomic_load_explicit(&pool->body, memory_order_relaxed);
    void *const context = atomic_load_explicit(&pool->context, memory_order_relaxed);
    const size_t per_claim = atomic_load_explicit(&pool->per_claim, memory_order_relaxed);
    const size_t chunks = atomic_load_explicit(&pool->chunks, memory_order_relaxed);
    const size_t first = (size_t)got * per_claim;
    const size_t last = first + per_claim < chunks ? first + per_claim : chunks;
    for (size_t chunk = first; chunk < last; chunk++) body(context, chunk);
    if (atomic_fetch_sub(&pool->left, 1) == 1 && atomic_load(&pool->caller_sleeps)) wake_all(pool, &pool->left);
  }
}

static void *work(void *argument) {
  const worker_start start = *(worker_start *)argument;
  free(argument);
  sp_pool *const pool = start.pool;
  uint64_t float_mode = sp_float_control(sp_float_mode());
  uint32_t seen = 0;
  for (;;) {
    uint32_t generation;
    unsigned spins = WORKER_SPINS;
    while ((generation = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen) {
      if (spins > 0 && atomic_load_explicit(&pool->active, memory_order_relaxed) > 0) {
        spins--;
        RELAX();
        continue;
      }
      atomic_fetch_add(&pool->sleepers, 1);
      sleep_while(pool, &pool->generation, seen);
      atomic_fetch_sub(&pool->sleepers, 1);
      spins = WORKER_SPINS;
    }
    seen = generation;
    if (atomic_load(&pool->stop)) return NULL;
    serve(pool, start.index, generation, &float_mode);
  }
}

static void announce(sp_pool *pool) {
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleepers)) wake_all(pool, &pool->generation);
}

sp_pool *sp_pool_create(unsigned threads) {
  if (threads < 1) threads = 1;
  if (threads > SP_MAX_THREADS) threads = SP_MAX_THREADS;
  void *memory = NULL;
  if (posix_memalign(&memory, 64, sizeof(sp_pool))) return NULL;
  sp_pool *pool = memory;
  memset(pool, 0, sizeof *pool);
  pool->workers = calloc(threads, sizeof *pool->workers);
  if (!pool->workers) {
    free(pool);
    return NULL;
  }
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->changed, NULL);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, (size_t)1 << 20);
  // The count is final before the first worker reads it; a thread that cannot be had leaves a range that the
  // others steal from.
  pool->threads = threads;
  for (unsigned i = 1; i < threads; i++) {
    worker_start *start = malloc(sizeof *start);
    if (!start) continue;
    *start = (worker_start){pool, i};
    if (pthread_create(&pool->workers[i], &attributes, work, start) != 0) {
      pool->workers[i] = 0;
      free(start);
    }
  }
  pthread_attr_destroy(&attributes);
  return pool;
}

void sp_pool_destroy(sp_pool *pool) {
  if (!pool) return;
  atomic_store(&pool->stop, 1);
  atomic_fetch_add(&pool->generation, 1);
  wake_all(pool, &pool->generation);
  for (unsigned i = 1; i < pool->threads; i++)
    if (pool->workers[i]) pthread_join(pool->workers[i], NULL);
  pthread_cond_destroy(&pool->changed);
  pthread_mutex_destroy(&pool->mutex);
  free(pool->workers);
  free(pool);
}

unsigned sp_pool_threads(const sp_pool *pool) { return pool ? pool->threads : 1; }

void sp_pool_enter(sp_pool *pool) {
  if (pool) atomic_fetch_add(&pool->active, 1);
}

void sp_pool_leave(sp_pool *pool) {
  if (pool) atomic_fetch_sub(&pool->active, 1);
}

void sp_parallel_for(sp_pool *pool, size_t chunks, void (*body)(void *context, size_t chunk), void *context) {
  uint32_t idle = 0;
  if (!pool || pool->threads == 1 || chunks < 2 || !atomic_compare_exchange_strong(&pool->taken, &idle, 1)) {
    for (size_t chunk = 0; chunk < chunks; chunk++) body(context, chunk);
    return;
  }
  const size_t per_claim = (chunks + 32767) / 32768;
  const uint32_t claims = (uint32_t)((chunks + per_claim - 1) / per_claim);
  atomic_store_explicit(&pool->body, body, memory_order_relaxed);
  atomic_store_explicit(&pool->context, context, memory_order_relaxed);
  atomic_store_explicit(&pool->chunks, chunks, memory_order_relaxed);
  atomic_store_explicit(&pool->per_claim, per_claim, memory_order_relaxed);
  atomic_store_explicit(&pool->float_mode, sp_float_control(sp_float_mode()), memory_order_relaxed);
  atomic_store_explicit(&pool->left, claims, memory_order_relaxed);
  const uint32_t generation = atomic_load_explicit(&pool->generation, memory_order_relaxed) + 1;
  uint32_t next = 0;
  for (unsigned i = 0; i < pool->threads; i++) {
    const uint32_t end = (uint32_t)((uint64_t)claims * (i + 1) / pool->threads);
    const uint64_t word = (uint64_t)generation << 32 | (uint64_t)next << 16 | end;
    atomic_store_explicit(&pool->ranges[i].word, word, memory_order_release);
    next = end;
  }
  announce(pool);
  serve(pool, 0, generation, NULL);
  unsigned spins = CALLER_SPINS;
  uint32_t left;
  while ((left = atomic_load(&pool->left)) != 0) {
    if (spins > 0) {
      spins--;
      RELAX();
      continue;
    }
    atomic_store(&pool->caller_sleeps, 1);
    left = atomic_load(&pool->left);
    if (left != 0) sleep_while(pool, &pool->left, left);
    atomic_store(&pool->caller_sleeps, 0);
  }
  atomic_store(&pool->taken, 0);
}

// --- What the system allows ---------------------------------------------------------------------

#if defined(__linux__)
// Processors that a cgroup's quota of time amounts to, rounded up; 0 when there is none.
static unsigned quota_of(const char *quota_path, const char *period_path) {
  FILE *file = fopen(quota_path, "r");
  if (!file) return 0;
  char text[64] = "";
  long long quota = 0, period = 0;
  const bool read = fgets(text, sizeof text, file) != NULL;
  fclose(file);
  if (!read) return 0;
  if (!period_path) {
    // Version 2 has both in one file: "max 100000" or "150000 100000".
    if (sscanf(text, "%lld %lld", &quota, &period) != 2) return 0;
  } else {
    if (sscanf(text, "%lld", &quota) != 1) return 0;
    file = fopen(period_path, "r");
    if (!file) return 0;
    if (fscanf(file, "%lld", &period) != 1) period = 0;
    fclose(file);
  }
  if (quota <= 0 || period <= 0) return 0;
  const long long count = (quota + period - 1) / period;
  return count < SP_MAX_THREADS ? (unsigned)count : SP_MAX_THREADS;
}

// The smallest quota of this process's group and the groups above it.
static unsigned cgroup_quota(void) {
  unsigned smallest = 0;
  FILE *file = fopen("/proc/self/cgroup", "r");
  if (!file) return 0;
  char line[1024];
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *controllers++ = 0;
    *group++ = 0;
    const bool second = *controllers == 0;
    bool has_cpu = false;
    for (char *at = controllers; !second && at; at = strchr(at, ',')) {
      if (*at == ',') at++;
      if (!strncmp(at, "cpu", 3) && (at[3] == ',' || at[3] == 0)) has_cpu = true;
    }
    if (!second && !has_cpu) continue;
    for (;;) {
      char quota[1200], period[1200];
      const char *root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
      const char *path = strcmp(group, "/") ? group : "";
      snprintf(quota, sizeof quota, "%s%s/%s", root, path, second ? "cpu.max" : "cpu.cfs_quota_us");
      snprintf(period, sizeof period, "%s%s/cpu.cfs_period_us", root, path);
      const unsigned count = quota_of(quota, second ? NULL : period);
      if (count && (!smallest || count < smallest)) smallest = count;
      char *slash = strrchr(group, '/');
      if (!slash || !*group || !strcmp(group, "/")) break;
      if (slash == group) {
        slash[1] = 0;
      } else {
        *slash = 0;
      }
    }
  }
  fclose(file);
  return smallest;
}
#endif

unsigned sp_available_threads(void) {
  long count = 0;
#if defined(__linux__)
  cpu_set_t *set = NULL;
  // Machines with more processors than the fixed set refuse it: grow until it fits.
  for (int processors = 1024; processors <= 1 << 20; processors *= 4) {
    set = CPU_ALLOC((size_t)processors);
    if (!set) break;
    const size_t size = CPU_ALLOC_SIZE((size_t)processors);
    if (sched_getaffinity(0, size, set) == 0) count = CPU_COUNT_S(size, set);
    CPU_FREE(set);
    if (count > 0) break;
  }
#endif
  if (count <= 0) count = sysconf(_SC_NPROCESSORS_ONLN);
  if (count < 1) count = 1;
  if (count > SP_MAX_THREADS) count = SP_MAX_THREADS;
#if defined(__linux__)
  const unsigned quota = cgroup_quota();
  if (quota && quota < (unsigned)count) count = quota;
#endif
  return (unsigned)count;
}
