// What the kernels share: the rows of the kernel table, checks that every call goes through, and strided
// iteration. Internal to this target.
#ifndef STATEPACK_KERNEL_H
#define STATEPACK_KERNEL_H

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "include/statepack_kernels.h"

#if defined(__GNUC__)
#define SP_INLINE static inline __attribute__((always_inline))
#else
#define SP_INLINE static inline
#endif

// --- Kernel table -----------------------------------------------------------------------------

// One row of schemas/ops.json, what its call must look like before the kernel's own check sees it.
typedef struct sp_row {
  uint8_t operands;  // fixed ones; a list follows them when `list` is set (one entry or more)
  bool list;
  uint8_t results;
  uint8_t ints;
  uint8_t floats;
  uint16_t types;     // bit n: scalar type n is allowed for the principal operand
  uint32_t optional;  // bit n: operand n may be NULL
  uint32_t panels;    // bit n: operand n may have layout PANEL_16; of a list, the bit of its first entry
} sp_row;

// Counts, ranks, lengths, types, layouts; results must not repeat elements. The reason, or NULL.
const char *sp_check_call(const sp_call *call, const sp_row *row);

SP_INLINE bool sp_type_allowed(const sp_row *row, uint16_t type) { return (row->types >> type) & 1; }

// Bytes of one element of the four types that kernels compute in.
SP_INLINE size_t sp_type_size(uint16_t type) {
  switch (type) {
    case SP_BOOL:
      return 1;
    case SP_INT64:
      return 8;
    default:
      return 4;
  }
}

// --- Shapes -----------------------------------------------------------------------------------

// No tensor that passes sp_check_call has more elements, so that products of lengths and sizes stay in int64_t.
#define SP_MAX_ELEMENTS ((int64_t)1 << 46)

SP_INLINE int64_t sp_elements(const sp_tensor *t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t->rank; i++) n *= t->shape[i];
  return n;
}

bool sp_same_shape(const sp_tensor *a, const sp_tensor *b);
// Same bytes seen the same way. Strides of axes of length one do not matter.
bool sp_same_view(const sp_tensor *a, const sp_tensor *b);
// `operand` broadcasts to `shape` by right alignment.
bool sp_broadcasts(const sp_tensor *operand, int32_t rank, const int64_t *shape);
// Strides of `operand` seen with `rank` axes: 0 on the axes it does not have.
void sp_broadcast_strides(const sp_tensor *operand, int32_t rank, int64_t *strides);
// Unit stride on the last axis and no holes: one run of elements.
bool sp_is_contiguous(const sp_tensor *t);

SP_INLINE void *sp_at(const sp_tensor *t, int64_t element_offset) {
  return (char *)t->data + element_offset * (int64_t)sp_type_size(t->scalar_type);
}

SP_INLINE int64_t sp_min(int64_t a, int64_t b) { return a < b ? a : b; }
SP_INLINE int64_t sp_max(int64_t a, int64_t b) { return a > b ? a : b; }
SP_INLINE int64_t sp_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- Strided iteration ------------------------------------------------------------------------

enum { SP_WALK_TENSORS = 9 };

// Several tensors walked in step over one shape. Axes of length one are dropped and neighbours that are one
// run of elements in every tensor are merged, so that a contiguous call is one strip.
typedef struct sp_walk {
  int32_t rank;   // after merging; 0 is one element
  int32_t count;  // tensors
  int64_t shape[SP_MAX_RANK];
  int64_t strides[SP_WALK_TENSORS][SP_MAX_RANK];
  int64_t elements;
  char *data[SP_WALK_TENSORS];
  int64_t sizes[SP_WALK_TENSORS];  // bytes of an element
} sp_walk;

void sp_walk_start(sp_walk *walk, int32_t rank, const int64_t *shape);
// One more tensor, with one stride per axis of the shape.
void sp_walk_add(sp_walk *walk, void *data, size_t element_size, const int64_t *strides);
// A tensor that broadcasts to the shape.
void sp_walk_add_tensor(sp_walk *walk, const sp_tensor *t);
void sp_walk_merge(sp_walk *walk);

// n elements of every tensor: first addresses and strides in elements.
typedef void (*sp_strip)(void *context, int64_t n, char *const *data, const int64_t *strides);

// Elements first..<first+n of the walk in row-major order, as strips along the innermost axis.
void sp_walk_range(const sp_walk *walk, int64_t first, int64_t n, sp_strip strip, void *context);
// All elements, in chunks of `grain` elements on the pool when there are two chunks or more.
void sp_walk_run(const sp_walk *walk, sp_pool *pool, int64_t grain, sp_strip strip, void *context);

// Point-wise kernels. grain: elements that are worth another thread.
bool sp_pointwise_run(const sp_call *call, sp_run *run, sp_strip strip, int64_t grain);
// Every operand broadcasts to the result; types are checked by the caller.
const char *sp_check_broadcast(const sp_call *call);

// out = a for two views of one shape and element size.
void sp_copy_view(const sp_tensor *out, const sp_tensor *a, sp_pool *pool);
void sp_copy_strided(int32_t rank, const int64_t *shape, size_t element_size, void *out, const int64_t *out_strides,
                     const void *a, const int64_t *a_strides, sp_pool *pool);
// sp_run_save for every byte of a strided region. True at once when run->undo is NULL.
bool sp_save_strided(sp_run *run, int32_t rank, const int64_t *shape, size_t element_size, void *data,
                     const int64_t *strides);

// --- Indices ----------------------------------------------------------------------------------

SP_INLINE bool sp_is_index(const sp_tensor *t) { return t->scalar_type == SP_INT64 || t->scalar_type == SP_INT32; }
SP_INLINE int64_t sp_index_at(const sp_tensor *t, int64_t element_offset) {
  return t->scalar_type == SP_INT64 ? ((const int64_t *)t->data)[element_offset]
                                    : (int64_t)((const int32_t *)t->data)[element_offset];
}
// Records the failure and returns false.
bool sp_index_failure(sp_run *run, int64_t value, int64_t limit, int32_t axis);
// Every element of `index` is in 0..<limit, or in -limit..<limit when `wraps`.
bool sp_check_indices(sp_run *run, const sp_tensor *index, int64_t limit, bool wraps, int32_t axis);

// One panel of an [n, k] matrix from up to 16 of its rows, dense in themselves and `row` floats apart; the rest is
// zero.
void sp_panel_of_rows(const float *rows, int64_t count, int64_t row, int64_t k, float *panel);

// --- Scratch that each thread takes while it works on a chunk -----------------------------------

// At most 64 slots; the pool never has more threads than that.
typedef struct sp_slots {
  _Atomic uint64_t busy;
  char *base;
  size_t stride;
} sp_slots;
void *sp_slot_take(sp_slots *slots, unsigned *slot);
void sp_slot_give(sp_slots *slots, unsigned slot);

enum { SP_MAX_THREADS = 64 };

// --- Executor and undo log ----------------------------------------------------------------------

void sp_pool_enter(sp_pool *pool);
void sp_pool_leave(sp_pool *pool);
void sp_undo_log_clear(sp_undo_log *log);
void sp_undo_log_restore(sp_undo_log *log);

// Control word of the floating-point unit, and the one with denormals flushed to zero.
#if defined(__aarch64__)
bool sp_processor_has_crc(void);
#endif
uint64_t sp_float_mode(void);
uint64_t sp_float_mode_flushing(uint64_t mode);
// Without the flags that computing sets.
uint64_t sp_float_control(uint64_t mode);
void sp_set_float_mode(uint64_t mode);

#include "kernels.generated.h"

#endif
