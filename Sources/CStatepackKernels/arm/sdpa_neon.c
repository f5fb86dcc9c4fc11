#if defined(__aarch64__)
#define TARGET
#include "../sdpa_body.h"

const sp_attention_kernels sp_attention_neon = {few, many};
#endif
