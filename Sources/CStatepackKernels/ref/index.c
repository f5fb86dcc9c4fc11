// index and index_put: advanced indexing of the leading axes by tensors that broadcast together.
#include "../blocks.h"

// The shape that the index tensors broadcast to. False when they do not.
static bool index_shape(const sp_tensor *const *indices, uint32_t count, int32_t *rank, int64_t *shape) {
  *rank = 0;
  for (uint32_t i = 0; i < count; i++)
    if (indices[i]->rank > *rank) *rank = indices[i]->rank;
  for (int32_t axis = 0; axis < *rank; axis++) {
    int64_t length = 1;
    for (uint32_t i = 0; i < count; i++) {
      const int32_t at = axis - (*rank - indices[i]->rank);
      if (at < 0 || indices[i]->shape[at] == 1) continue;
      if (length != 1 && indices[i]->shape[at] != length) return false;
      length = indices[i]->shape[at];
    }
    shape[axis] = length;
  }
  return true;
}

// What index_put and index have in common: `shape` becomes [index shape..., rest of a].
static const char *check(const sp_tensor *a, const sp_tensor *const *indices, uint32_t count, int32_t *rank,
                         int64_t *shape) {
  if ((int64_t)count > a->rank) return "there are more indices than axes";
  for (uint32_t i = 0; i < count; i++)
    if (!sp_is_index(indices[i])) return "an index is neither int64 nor int32";
  if (!index_shape(indices, count, rank, shape)) return "the indices do not broadcast together";
  if (*rank + a->rank - (int32_t)count > SP_MAX_RANK) return "the indexed shape has more than eight axes";
  for (int32_t i = (int32_t)count; i < a->rank; i++) shape[(*rank)++] = a->shape[i];
  return NULL;
}

static bool indices_valid(sp_run *run, const sp_tensor *a, const sp_tensor *const *indices, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (!sp_check_indices(run, indices[i], a->shape[i], true, (int32_t)i)) return false;
  return true;
}

// One pass over all positions of the broadcast index, in row-major order.
typedef struct indexing {
  const sp_tensor *a;  // the indexed tensor: source of index, destination of index_put
  const sp_tensor *indices[SP_MAX_RANK];
  uint32_t count;
  sp_walk walk;  // 0: the other side (its index axes), then the indices
  sp_block block;
  // What to do with one position: bytes of the indexed tensor, bytes of the other side.
  bool (*body)(struct indexing *self, char *indexed, char *other);
  sp_run *run;
  const int64_t *rest_shape, *rest_strides;
  int32_t rest_rank;
  bool ok;
} indexing;

static void position_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  indexing *self = context;
  const int64_t size = (int64_t)self->block.element_size;
  for (int64_t i = 0; i < n && self->ok; i++) {
    int64_t offset = 0;
    for (uint32_t j = 0; j < self->count; j++) {
      sp_tensor view = *self->indices[j];
      view.data = data[1 + j];
      int64_t value = sp_index_at(&view, i * strides[1 + j]);
      if (value < 0) value += self->a->shape[j];
      offset += value * self->a->strides[j];
    }
    self->ok = self->body(self, sp_at(self->a, offset), data[0] + i * strides[0] * size);
  }
}

// other_strides: of the other side, one per axis of [index shape..., rest].
static void prepare(indexing *self, sp_run *run, const sp_tensor *a, const sp_tensor *const *indices, uint32_t count,
                    void *other, const int64_t *other_strides, bool other_is_destination) {
  int64_t shape[SP_MAX_RANK];
  int32_t rank;
  index_shape(indices, count, &rank, shape);
  self->a = a;
  self->count = count;
  self->run = run;
  self->ok = true;
  const size_t size = sp_type_size(a->scalar_type);
  sp_walk_start(&self->walk, rank, shape);
  sp_walk_add(&self->walk, other, size, other_strides);
  for (uint32_t i = 0; i < count; i++) {
    self->indices[i] = indices[i];
    sp_walk_add_tensor(&self->walk, indices[i]);
  }
  sp_walk_merge(&self->walk);
  self->rest_rank = a->rank - (int32_t)count;
  self->rest_shape = a->shape + count;
  self->rest_strides = a->strides + count;
  const int64_t *const other_rest = other_strides + rank;
  sp_block_of(&self->block, self->rest_rank, self->rest_shape, size,
              other_is_destination ? other_rest : self->rest_strides,
              other_is_destination ? self->rest_strides : other_rest);
}

static bool pass(indexing *self, bool (*body)(indexing *self, char *indexed, char *other)) {
  self->body = body;
  if (self->block.walk.elements == 0) return true;
  sp_walk_range(&self->walk, 0, self->walk.elements, position_strip, self);
  return self->ok;
}

static bool read_position(indexing *self, char *indexed, char *other) {
  sp_block_move(&self->block, other, indexed);
  return true;
}

static bool write_position(indexing *self, char *indexed, char *other) {
  sp_block_move(&self->block, indexed, other);
  return true;
}

static bool save_position(indexing *self, char *indexed, char *other) {
  (void)other;
  return sp_save_strided(self->run, self->rest_rank, self->rest_shape, self->block.element_size, indexed,
                         self->rest_strides);
}

static void add_strip(void *context, int64_t n, char *const *data, const int64_t *strides) {
  const indexing *self = context;
  for (int64_t i = 0; i < n; i++) {
    const int64_t o = i * strides[0], s = i * strides[1];
    switch (self->a->scalar_type) {
      case SP_FLOAT32:
        ((float *)(void *)data[0])[o] += ((const float *)(const void *)data[1])[s];
        break;
      case SP_INT32:
        ((uint32_t *)(void *)data[0])[o] += ((const uint32_t *)(const void *)data[1])[s];
        break;
      case SP_INT64:
        ((uint64_t *)(void *)data[0])[o] += ((const uint64_t *)(const void *)data[1])[s];
        break;
      default:
        data[0][o] = data[0][o] != 0 || data[1][s] != 0;
    }
  }
}

static bool add_position(indexing *self, char *indexed, char *other) {
  self->block.walk.data[0] = indexed;
  self->block.walk.data[1] = other;
  sp_walk_range(&self->block.walk, 0, self->block.walk.elements, add_strip, self);
  return true;
}

const char *sp_index_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  int64_t shape[SP_MAX_RANK];
  int32_t rank;
  const char *reason = check(a, call->operands + 1, call->operand_count - 1, &rank, shape);
  if (reason) return reason;
  if (out->scalar_type != a->scalar_type) return "operand and result have different scalar types";
  if (out->rank != rank) return "the result has the wrong shape";
  for (int32_t i = 0; i < rank; i++)
    if (out->shape[i] != shape[i]) return "the result has the wrong shape";
  return NULL;
}

bool sp_index_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *out = call->results[0];
  if (!indices_valid(run, a, call->operands + 1, call->operand_count - 1)) return false;
  indexing self;
  prepare(&self, run, a, call->operands + 1, call->operand_count - 1, out->data, out->strides, true);
  return pass(&self, read_position);
}

const char *sp_index_put_check(const sp_call *call) {
  const sp_tensor *a = call->operands[0], *source = call->operands[1], *out = call->results[0];
  if (call->ints[0] != 0 && call->ints[0] != 1) return "accumulate is neither 0 nor 1";
  int64_t shape[SP_MAX_RANK];
  int32_t rank;
  const char *reason = check(a, call->operands + 2, call->operand_count - 2, &rank, shape);
  if (reason) return reason;
  if (source->scalar_type != a->scalar_type || out->scalar_type != a->scalar_type)
    return "operands and result have different scalar types";
  if (!sp_same_shape(a, out)) return "the result has the wrong shape";
  return sp_broadcasts(source, rank, shape) ? NULL : "source does not broadcast to the indexed shape";
}

bool sp_index_put_run(const sp_call *call, sp_run *run) {
  const sp_tensor *a = call->operands[0], *source = call->operands[1], *out = call->results[0];
  const sp_tensor *const *indices = call->operands + 2;
  const uint32_t count = call->operand_count - 2;
  if (!indices_valid(run, a, indices, count)) return false;
  int64_t shape[SP_MAX_RANK], strides[SP_MAX_RANK];
  int32_t rank;
  check(a, indices, count, &rank, shape);
  sp_broadcast_strides(source, rank, strides);
  indexing self;
  prepare(&self, run, out, indices, count, source->data, strides, false);
  if (!sp_same_view(a, out)) {
    sp_copy_view(out, a, run->pool);
  } else if (run->undo && !pass(&self, save_position)) {
    return false;
  }
  return pass(&self, call->ints[0] ? add_position : write_position);
}
