#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define WIDTH 16
#define TOGETHER 4
#include "../sdpa_body.h"

const sp_attention_kernels sp_attention_avx512 = {few, many};
#endif
