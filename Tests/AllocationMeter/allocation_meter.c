#include "allocation_meter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic bool counting;
static _Atomic int64_t allocations, bytes;

static void count(size_t size) {
  if (!atomic_load_explicit(&counting, memory_order_relaxed)) return;
  atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&bytes, (int64_t)size, memory_order_relaxed);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define METER_HOOKS 1
#endif
#endif

#if defined(METER_HOOKS)
// AddressSanitizer has malloc for itself, and hooks for those who want to watch.
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *memory, size_t size) {
  (void)memory;
  count(size);
}

static void on_free(const volatile void *memory) { (void)memory; }

static void prepare(void) {
  static _Atomic bool prepared;
  if (!atomic_exchange(&prepared, true)) __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}
#elif defined(__GLIBC__)
// Definitions in the program come before those of the C library, for shared libraries too.
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
  count(size);
  return __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
  count(n * size);
  return __libc_calloc(n, size);
}

void *realloc(void *memory, size_t size) {
  count(size);
  return __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size) {
  count(size);
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  count(size);
  return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  if (alignment % sizeof(void *) || !alignment || (alignment & (alignment - 1))) return 22;  // EINVAL
  count(size);
  void *made = __libc_memalign(alignment, size);
  if (!made) return 12;  // ENOMEM
  *memory = made;
  return 0;
}

void *valloc(size_t size) { return memalign((size_t)sysconf(_SC_PAGESIZE), size); }

static void prepare(void) {}
#else
static void prepare(void) {}
#endif

bool sp_is_instrumented(void) {
#if defined(METER_HOOKS)
  return true;
#else
  return false;
#endif
}

void sp_meter_start(void) {
  prepare();
  atomic_store(&allocations, 0);
  atomic_store(&bytes, 0);
  atomic_store(&counting, true);
}

int64_t sp_meter_stop(void) {
  atomic_store(&counting, false);
  return atomic_load(&allocations);
}

int64_t sp_meter_bytes(void) { return atomic_load(&bytes); }

typedef struct wish {
  int way;
  size_t count;
} wish;

static void *allocate(void *argument) {
  const wish *const wanted = argument;
  void *memory = NULL;
  switch (wanted->way) {
    case 0:
      memory = malloc(wanted->count);
      break;
    case 1:
      memory = calloc(1, wanted->count);
      break;
    case 2:
      memory = realloc(NULL, wanted->count);
      break;
    case 3:
      memory = aligned_alloc(64, (wanted->count + 63) / 64 * 64);
      break;
    case 4:
      if (posix_memalign(&memory, 64, wanted->count)) memory = NULL;
      break;
    case 5:
      memory = strdup("a string of the C library");
      break;
    default: {
      size_t size = 0;
      FILE *stream = open_memstream((char **)&memory, &size);
      if (stream) fclose(stream);
      break;
    }
  }
  // Or the compiler takes both calls away.
  *(char *volatile *)&memory = memory;
  if (memory) *(volatile char *)memory = 1;
  free(memory);
  return NULL;
}

void sp_meter_allocate(int way, uint64_t size) {
  wish wanted = {way, size};
  allocate(&wanted);
}

void sp_meter_allocate_on_thread(int way, uint64_t size) {
  wish wanted = {way, size};
  pthread_t thread;
  if (pthread_create(&thread, NULL, allocate, &wanted) == 0) pthread_join(thread, NULL);
}

int64_t sp_resident_bytes(void) {
  char text[128] = "";
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file) return 0;
  long long total = 0, resident = 0;
  const bool read = fgets(text, sizeof text, file) != NULL && sscanf(text, "%lld %lld", &total, &resident) == 2;
  fclose(file);
  return read ? resident * sysconf(_SC_PAGESIZE) : 0;
}
