// A block of elements that is moved as a whole, many times over: one row of an indexed tensor.
#ifndef STATEPACK_BLOCKS_H
#define STATEPACK_BLOCKS_H

#include "kernel.h"

typedef struct sp_block {
  sp_walk walk;  // 0: out, 1: source
  size_t element_size, bytes;
  bool dense;  // one run of bytes on both sides
} sp_block;

SP_INLINE void sp_block_of(sp_block *block, int32_t rank, const int64_t *shape, size_t element_size,
                           const int64_t *out_strides, const int64_t *source_strides) {
  sp_walk_start(&block->walk, rank, shape);
  sp_walk_add(&block->walk, NULL, element_size, out_strides);
  sp_walk_add(&block->walk, NULL, element_size, source_strides);
  sp_walk_merge(&block->walk);
  block->element_size = element_size;
  block->bytes = (size_t)block->walk.elements * element_size;
  block->dense = block->walk.elements <= 1 ||
                 (block->walk.rank == 1 && block->walk.strides[0][0] == 1 && block->walk.strides[1][0] == 1);
}

void sp_block_strip(void *context, int64_t n, char *const *data, const int64_t *strides);

SP_INLINE void sp_block_move(sp_block *block, char *out, char *source) {
  if (block->dense) {
    memmove(out, source, block->bytes);
    return;
  }
  block->walk.data[0] = out;
  block->walk.data[1] = source;
  sp_walk_range(&block->walk, 0, block->walk.elements, sp_block_strip, block);
}

#endif
