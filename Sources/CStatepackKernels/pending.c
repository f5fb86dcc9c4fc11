// Weak definitions that let the runtime link until the kernels are in the tree; then this file goes.
// Without kernels no function of any bundle can be loaded: sp_kernel_find finds none.
#include <stdlib.h>

#include "statepack_kernels.h"

#define PENDING __attribute__((weak))

PENDING const sp_kernel *sp_kernel_find(const char *name) {
  (void)name;
  return NULL;
}

PENDING bool sp_execute(const sp_instruction *instructions, size_t count, sp_run *run) {
  for (size_t i = 0; i < count; i++)
    if (!instructions[i].kernel->run(&instructions[i].call, run)) {
      run->failure.instruction = (uint32_t)i;
      return false;
    }
  return true;
}

PENDING sp_undo_log *sp_undo_log_create(void) { return NULL; }
PENDING void sp_undo_log_destroy(sp_undo_log *log) { (void)log; }
PENDING sp_pool *sp_pool_create(unsigned threads) {
  (void)threads;
  return NULL;
}
PENDING void sp_pool_destroy(sp_pool *pool) { (void)pool; }
PENDING unsigned sp_available_threads(void) { return 1; }
