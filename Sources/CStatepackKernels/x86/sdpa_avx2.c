#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#define TOGETHER 3
#include "../sdpa_body.h"

const sp_attention_kernels sp_attention_avx2 = {few, many};
#endif
