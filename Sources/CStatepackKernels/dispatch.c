// Which instruction set the kernels use, and the kernel table by name.
#include <stdatomic.h>
#include <stdlib.h>

#include "kernel.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
bool sp_processor_has_crc(void) { return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; }
#endif

static sp_isa best_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
    return SP_ISA_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return SP_ISA_AVX2;
  return SP_ISA_GENERIC;
#elif defined(__aarch64__)
  return SP_ISA_NEON;
#else
  return SP_ISA_GENERIC;
#endif
}

static _Atomic int known = -1;

bool sp_isa_choose(sp_isa isa) {
  const sp_isa best = best_isa();
  if (isa != best && isa != SP_ISA_GENERIC && !(isa == SP_ISA_AVX2 && best == SP_ISA_AVX512)) return false;
  atomic_store(&known, (int)isa);
  return true;
}

sp_isa sp_isa_in_use(void) {
  int isa = atomic_load_explicit(&known, memory_order_relaxed);
  if (isa >= 0) return (sp_isa)isa;
  isa = (int)best_isa();
  const char *wanted = getenv("STATEPACK_ISA");
  if (wanted) {
    if (!strcmp(wanted, "generic")) isa = SP_ISA_GENERIC;
    if (!strcmp(wanted, "avx2") && isa == SP_ISA_AVX512) isa = SP_ISA_AVX2;
  }
  atomic_store_explicit(&known, isa, memory_order_relaxed);
  return (sp_isa)isa;
}

const char *sp_isa_name(sp_isa isa) {
  static const char *const names[] = {"generic", "avx2", "avx512", "neon"};
  return (unsigned)isa < sizeof names / sizeof *names ? names[isa] : "unknown";
}
