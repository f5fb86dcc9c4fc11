#if defined(__aarch64__)
#define TARGET
#define WIDTH 4
#define TOGETHER 4
#include "../sdpa_body.h"

const sp_attention_kernels sp_attention_neon = {few, many};
#endif
