#include "../kernel.h"

// copy into a state: the bytes that it overwrites are saved first, all of them before the first write.
const char *sp_write_check(const sp_call *call) {
  if (call->ints[0] != 0 && call->ints[0] != 1) return "write_back is neither 0 nor 1";
  return sp_copy_check(call);
}

bool sp_write_run(const sp_call *call, sp_run *run) {
  const sp_tensor *out = call->results[0];
  const size_t size = sp_type_size(out->scalar_type);
  if (sp_same_view(call->operands[0], out)) return true;
  if (!sp_save_strided(run, out->rank, out->shape, size, out->data, out->strides)) return false;
  if (call->ints[0]) run->statistics.state_bytes_copied += (uint64_t)sp_elements(out) * size;
  return sp_copy_run(call, run);
}
