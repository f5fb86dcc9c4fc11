// What the reference of attention shares with the fast paths.
#ifndef STATEPACK_SDPA_H
#define STATEPACK_SDPA_H

#include "kernel.h"

typedef struct sp_attention {
  const sp_tensor *query, *key, *value, *mask, *out;
  int64_t batch, heads, groups, queries, keys, d, e;
  int64_t mask_strides[4];  // of [B, H, Q, S]; 0 where the mask broadcasts
  bool causal;
  float scale;
} sp_attention;

sp_attention sp_attention_of(const sp_call *call);

// Whether query i of head h reads key j; *added is what the mask adds to the score.
SP_INLINE bool sp_attends(const sp_attention *t, int64_t b, int64_t h, int64_t i, int64_t j, float *added) {
  *added = 0.0f;
  if (t->causal && j > i) return false;
  if (!t->mask) return true;
  const int64_t at = b * t->mask_strides[0] + h * t->mask_strides[1] + i * t->mask_strides[2] + j * t->mask_strides[3];
  if (t->mask->scalar_type == SP_BOOL) return ((const uint8_t *)t->mask->data)[at] != 0;
  *added = ((const float *)t->mask->data)[at];
  return *added != -INFINITY;
}

#endif
