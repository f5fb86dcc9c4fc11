// Products of many rows through oneDNN, a library that is opened at run time where it is there. Without it, and for
// shapes that it does not take as they lie, linear's own blocked kernel does the work: oneDNN is only ever faster.
//
// What it costs: the first check of a call with 16 rows or more opens the library, and each new shape of weights makes
// three primitives, a fraction of a millisecond each, kept for the life of the process. While it runs, oneDNN allocates
// a few hundred bytes per block of rows and frees them; calls with up to 15 rows, a step of generation among them,
// never go there. The last rows of a call, fewer than 16, are the own kernel's.
#ifndef STATEPACK_ONEDNN_H
#define STATEPACK_ONEDNN_H

#include "kernel.h"

// Rows of one product: a power of two up to this many, and 16 at least.
enum { SP_ONEDNN_MOST_ROWS = 64, SP_ONEDNN_LEAST_ROWS = 16 };

// out [rows, n] = a [rows, k] x weight, both dense, weight in panels of 16 columns.
typedef struct sp_onednn_product sp_onednn_product;

// Makes the products of every size of block for this shape, unless they are made or cannot be. Allocates and takes a
// lock: for checks, not for runs.
void sp_onednn_prepare(int64_t n, int64_t k);
// What was prepared, or NULL. Neither locks nor allocates.
sp_onednn_product *sp_onednn_find(int64_t rows, int64_t n, int64_t k);
// On the caller's thread alone. False when oneDNN reports a failure.
bool sp_onednn_run(sp_onednn_product *product, const float *a, const float *weight, float *out);

#endif
