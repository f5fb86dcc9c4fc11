#include "../kernel.h"

const char *sp_fill_check(const sp_call *call) {
  const sp_tensor *value = call->operands[0];
  if (value->rank != 0) return "value is not 0-dimensional";
  if (value->scalar_type != call->results[0]->scalar_type) return "value and result have different scalar types";
  return NULL;
}

bool sp_fill_run(const sp_call *call, sp_run *run) {
  sp_copy_view(call->results[0], call->operands[0], run->pool);
  return true;
}
