// Walks an instruction list, and the undo log that makes a failed call leave no trace.
#include <stdlib.h>

#include "kernel.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
uint64_t sp_float_mode(void) { return _mm_getcsr(); }
void sp_set_float_mode(uint64_t mode) { _mm_setcsr((unsigned)mode); }
uint64_t sp_float_mode_flushing(uint64_t mode) { return mode | 0x8040; }     // FTZ and DAZ
uint64_t sp_float_control(uint64_t mode) { return mode & ~(uint64_t)0x3f; }  // without what has happened
#elif defined(__aarch64__)
uint64_t sp_float_mode(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void sp_set_float_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
uint64_t sp_float_mode_flushing(uint64_t mode) { return mode | (uint64_t)1 << 24; }  // FZ
uint64_t sp_float_control(uint64_t mode) { return mode; }
#else
uint64_t sp_float_mode(void) { return 0; }
void sp_set_float_mode(uint64_t mode) { (void)mode; }
uint64_t sp_float_mode_flushing(uint64_t mode) { return mode; }
uint64_t sp_float_control(uint64_t mode) { return mode; }
#endif

bool sp_execute(const sp_instruction *instructions, size_t count, sp_run *run) {
  run->failure = (sp_failure){.kind = SP_NO_FAILURE};
  if (run->undo) sp_undo_log_clear(run->undo);
  const uint64_t mode = sp_float_mode(), flushing = sp_float_mode_flushing(mode);
  if (flushing != mode) sp_set_float_mode(flushing);
  sp_pool_enter(run->pool);
  bool ok = true;
  for (size_t i = 0; i < count && ok; i++) {
    ok = instructions[i].kernel->run(&instructions[i].call, run);
    if (!ok) run->failure.instruction = (uint32_t)i;
  }
  if (run->undo) {
    if (!ok) sp_undo_log_restore(run->undo);
    sp_undo_log_clear(run->undo);
  }
  sp_pool_leave(run->pool);
  if (flushing != mode) sp_set_float_mode(mode);
  return ok;
}

// --- Undo log -----------------------------------------------------------------------------------

typedef struct saved {
  void *bytes;
  size_t count;
  size_t at;  // where the old bytes lie in sp_undo_log.old
} saved;

struct sp_undo_log {
  saved *entries;
  size_t entry_count, entry_capacity;
  char *old;
  size_t old_count, old_capacity;
};

sp_undo_log *sp_undo_log_create(void) { return calloc(1, sizeof(sp_undo_log)); }

void sp_undo_log_destroy(sp_undo_log *log) {
  if (!log) return;
  free(log->entries);
  free(log->old);
  free(log);
}

void sp_undo_log_clear(sp_undo_log *log) { log->entry_count = log->old_count = 0; }

void sp_undo_log_restore(sp_undo_log *log) {
  // Backwards: bytes that were saved twice end as they were first.
  for (size_t i = log->entry_count; i-- > 0;)
    memcpy(log->entries[i].bytes, log->old + log->entries[i].at, log->entries[i].count);
  sp_undo_log_clear(log);
}

// Room for `more` more of `used`; capacity doubles. False when memory is short.
static bool grow(void **memory, size_t *capacity, size_t used, size_t more, size_t size) {
  if (more <= *capacity - used) return true;
  size_t needed, bytes;
  if (__builtin_add_overflow(used, more, &needed)) return false;
  if (needed < 64) needed = 64;
  if (needed < *capacity * 2) needed = *capacity * 2;
  if (__builtin_mul_overflow(needed, size, &bytes)) return false;
  void *grown = realloc(*memory, bytes);
  if (!grown) return false;
  *memory = grown;
  *capacity = needed;
  return true;
}

bool sp_run_save(sp_run *run, void *bytes, size_t count) {
  sp_undo_log *log = run->undo;
  if (!log || count == 0) return true;
  if (!grow((void **)&log->entries, &log->entry_capacity, log->entry_count, 1, sizeof(saved)) ||
      !grow((void **)&log->old, &log->old_capacity, log->old_count, count, 1)) {
    run->failure = (sp_failure){.kind = SP_OUT_OF_MEMORY};
    return false;
  }
  memcpy(log->old + log->old_count, bytes, count);
  log->entries[log->entry_count++] = (saved){bytes, count, log->old_count};
  log->old_count += count;
  return true;
}
