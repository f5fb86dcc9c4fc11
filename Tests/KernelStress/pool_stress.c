// Two runs at once on one pool, pools made and destroyed under way, loops of all sizes: for ThreadSanitizer.
// Prints what it counted and exits 1 when a chunk ran twice or not at all.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "statepack_kernels.h"

enum { MOST = 70000 };

typedef struct counting {
  unsigned char *seen;
  size_t chunks;
} counting;

static void count(void *context, size_t chunk) {
  counting *c = context;
  if (chunk < c->chunks) c->seen[chunk]++;
}

static _Atomic unsigned long loops, failures;

static void check_loop(sp_pool *pool, unsigned char *seen, size_t chunks) {
  memset(seen, 0, chunks + 1);
  counting c = {seen, chunks};
  sp_parallel_for(pool, chunks, count, &c);
  for (size_t i = 0; i < chunks; i++)
    if (seen[i] != 1) atomic_fetch_add(&failures, 1);
  atomic_fetch_add(&loops, 1);
}

static sp_tensor vector(float *data, int64_t n) {
  sp_tensor t = {.data = data, .rank = 1, .scalar_type = SP_FLOAT32};
  t.shape[0] = n;
  t.strides[0] = 1;
  return t;
}

typedef struct user {
  sp_pool *pool;
  double until;
  unsigned seed;
} user;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// A run of three instructions that hand data on to each other, between plain loops and pauses that let workers sleep.
static void *use(void *argument) {
  user *u = argument;
  unsigned char *seen = malloc(MOST + 1);
  enum { N = 100000 };
  float *a = malloc(N * 4), *b = malloc(N * 4), *c = malloc(N * 4);
  sp_tensor ta = vector(a, N), tb = vector(b, N), tc = vector(c, N);
  const sp_tensor *first[2] = {&ta, &ta}, *second[2] = {&tb, &ta}, *third[1] = {&tc};
  sp_tensor *to_b[1] = {&tb}, *to_c[1] = {&tc}, *to_a[1] = {&ta};
  const sp_instruction list[3] = {
      {sp_kernel_find("add"), {.operands = first, .results = to_b, .operand_count = 2, .result_count = 1}},
      {sp_kernel_find("sub"), {.operands = second, .results = to_c, .operand_count = 2, .result_count = 1}},
      {sp_kernel_find("neg"), {.operands = third, .results = to_a, .operand_count = 1, .result_count = 1}},
  };
  float expected = 1;
  for (int i = 0; i < N; i++) a[i] = expected;
  while (now() < u->until) {
    u->seed = u->seed * 1664525u + 1013904223u;
    const size_t sizes[] = {0, 1, 2, 3, 17, 64, 1000, MOST};
    check_loop(u->pool, seen, sizes[u->seed >> 16 & 7]);
    sp_run run = {.pool = u->pool};
    if (!sp_execute(list, 3, &run)) atomic_fetch_add(&failures, 1);
    expected = -expected;
    for (int i = 0; i < N; i += 997)
      if (a[i] != expected) atomic_fetch_add(&failures, 1);
    if ((u->seed >> 20 & 15) == 0) usleep(1500);
  }
  free(seen);
  free(a);
  free(b);
  free(c);
  return NULL;
}

int main(void) {
  for (unsigned threads = 1; threads <= 4; threads++) {
    sp_pool *pool = sp_pool_create(threads);
    user users[2] = {{pool, now() + 1, threads}, {pool, now() + 1, 77 * threads}};
    pthread_t other;
    pthread_create(&other, NULL, use, &users[0]);
    use(&users[1]);
    pthread_join(other, NULL);
    sp_pool_destroy(pool);
  }
  unsigned char *seen = malloc(MOST + 1);
  for (int i = 0; i < 200; i++) {
    sp_pool *pool = sp_pool_create(3);
    if (i % 2) check_loop(pool, seen, 10);
    sp_pool_destroy(pool);
  }
  free(seen);
  printf("%lu loops, %lu failures\n", loops, failures);
  return failures ? 1 : 0;
}
