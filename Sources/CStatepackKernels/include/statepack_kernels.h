// The kernels behind every instruction of a bundle, the executor that walks them and the pool they
// run on. Plain C without dependencies. Kernels are chosen at load time by what the processor has.
//
// Life of a call: the runtime fills an sp_call for one set of sizes and asks the kernel's `check`
// once; after that `run` trusts types, ranks, shapes and strides, and checks only what it reads
// (indices). Nothing here allocates during a run but sp_run_save when an undo log is asked for.
#ifndef STATEPACK_KERNELS_H
#define STATEPACK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SP_MAX_RANK = 8 };

// Numbers of schemas/program.proto.
enum {
  SP_BOOL = 1,
  SP_INT8 = 2,
  SP_INT16 = 3,
  SP_INT32 = 4,
  SP_INT64 = 5,
  SP_UINT8 = 6,
  SP_UINT16 = 7,
  SP_UINT32 = 8,
  SP_UINT64 = 9,
  SP_FLOAT16 = 10,
  SP_FLOAT32 = 11,
  SP_FLOAT64 = 12,
  SP_BFLOAT16 = 13,
};

// Numbers of schemas/bundle.proto.
enum { SP_ROW_MAJOR = 0, SP_PANEL_16 = 1 };

// A strided view. Strides count elements and may be 0 (broadcast) or negative. For SP_PANEL_16 the
// shape is the logical [N, K] and strides are ignored.
typedef struct sp_tensor {
  void *data;
  int64_t shape[SP_MAX_RANK];
  int64_t strides[SP_MAX_RANK];
  int32_t rank;
  uint16_t scalar_type;
  uint16_t layout;
} sp_tensor;

typedef struct sp_call {
  const sp_tensor *const *operands;  // NULL entries are absent optional operands
  sp_tensor *const *results;
  const int64_t *ints;  // meaning and order: schemas/ops.json
  const double *floats;
  void *scratch;  // at least sp_kernel.scratch(...) bytes, 64-byte aligned, contents undefined
  uint32_t operand_count;
  uint32_t result_count;
  uint32_t int_count;
  uint32_t float_count;
} sp_call;

typedef enum sp_failure_kind {
  SP_NO_FAILURE = 0,
  SP_INDEX_OUT_OF_RANGE = 1,  // value is not in -limit..<limit (or 0..<limit) of axis
  SP_DIVISION_BY_ZERO = 2,
  SP_OUT_OF_MEMORY = 3,
} sp_failure_kind;

typedef struct sp_failure {
  sp_failure_kind kind;
  int64_t value;
  int64_t limit;
  int32_t axis;
  uint32_t instruction;  // filled by sp_execute
} sp_failure;

typedef struct sp_statistics {
  // Distinct key rows that attention read, summed over batch entries, key-value heads and blocks of queries; as many
  // value rows follow. A block is one query when a call has fewer than 8, else what makes about 96 rows with the
  // heads of a group (SP_ATTENTION_ROWS). Where the mask differs between the heads of a group, each head counts for
  // itself. For one query: keys that the mask lets through, times batch, times key-value heads. Follows from sizes
  // and mask alone, whatever the processor and the number of threads.
  uint64_t attention_rows;
  // Bytes moved by copies of whole states (the write back of an update that is not in place).
  uint64_t state_bytes_copied;
} sp_statistics;

typedef struct sp_pool sp_pool;
typedef struct sp_undo_log sp_undo_log;

// One inference. Not shared between threads; kernels use it only from the calling thread.
typedef struct sp_run {
  sp_pool *pool;      // may be NULL: everything runs on the caller's thread
  sp_undo_log *undo;  // NULL when nothing can fail after the first state write
  sp_statistics statistics;
  sp_failure failure;
} sp_run;

typedef struct sp_kernel {
  const char *name;
  // Why the call is invalid (static text), or NULL. Proves that run stays inside its operands.
  const char *(*check)(const sp_call *call);
  // Bytes of scratch that run needs for this call, for a pool of `threads`.
  size_t (*scratch)(const sp_call *call, unsigned threads);
  // False on failure: run->failure says why, and no result was touched.
  bool (*run)(const sp_call *call, sp_run *run);
  bool fallible;  // may return false on values it reads
  bool writes;    // results[0] may be the same view as operands[0]: then writes in place
} sp_kernel;

// NULL when there is no kernel of that name.
const sp_kernel *sp_kernel_find(const char *name);

typedef struct sp_instruction {
  const sp_kernel *kernel;
  sp_call call;
} sp_instruction;

// Runs the instructions in order. False when one failed; run->failure names it, and every byte that
// earlier instructions overwrote through sp_run_save is restored when run->undo is set.
// Flush-to-zero is set for the duration and restored, on this thread and on the pool's.
bool sp_execute(const sp_instruction *instructions, size_t count, sp_run *run);

// --- Undo log ---------------------------------------------------------------------------------

sp_undo_log *sp_undo_log_create(void);
void sp_undo_log_destroy(sp_undo_log *log);
// Remembers `count` bytes at `bytes` before they are overwritten. True at once when run->undo is NULL.
// False, with run->failure set, when memory is short.
bool sp_run_save(sp_run *run, void *bytes, size_t count);

// --- Threads ----------------------------------------------------------------------------------

// A pool of `threads` threads, the caller of sp_parallel_for included; 1 or more.
sp_pool *sp_pool_create(unsigned threads);
void sp_pool_destroy(sp_pool *pool);
unsigned sp_pool_threads(const sp_pool *pool);
// Calls body(context, chunk) once for each chunk in 0..<chunks and returns when all are done. Whoever
// is free claims the next chunk. A pool that serves another run at that moment is not waited for: the
// caller does all chunks itself. pool may be NULL.
void sp_parallel_for(sp_pool *pool, size_t chunks, void (*body)(void *context, size_t chunk), void *context);
// What affinity mask and cgroup quota allow, at least 1.
unsigned sp_available_threads(void);

// --- Processor --------------------------------------------------------------------------------

typedef enum sp_isa { SP_ISA_GENERIC = 0, SP_ISA_AVX2 = 1, SP_ISA_AVX512 = 2, SP_ISA_NEON = 3 } sp_isa;
// The best the processor has, or what the environment variable STATEPACK_ISA (generic, avx2, avx512)
// lowers it to. Read once.
sp_isa sp_isa_in_use(void);
const char *sp_isa_name(sp_isa isa);
// For comparing one with another in one process; false when this processor does not have it. Calls that were checked
// before must be checked again.
bool sp_isa_choose(sp_isa isa);

// What multiplies matrices of many rows: the kernels of this library, or oneDNN where it was found and is known to be
// ahead on this processor. STATEPACK_MATMUL (own, onednn) decides otherwise; STATEPACK_ONEDNN names the library to
// open instead of libdnnl.so.2. Both are read once, when the first call with many rows is checked.
typedef enum sp_matmul { SP_MATMUL_OWN = 0, SP_MATMUL_ONEDNN = 1 } sp_matmul;
sp_matmul sp_matmul_in_use(void);
// For measuring one beside the other. Not while calls run.
void sp_matmul_choose(sp_matmul matmul);

// --- Packing and checksums --------------------------------------------------------------------

// Bytes of an [n, k] float32 matrix in SP_PANEL_16.
size_t sp_panel_bytes(int64_t n, int64_t k);
// Packs rows first_row..<first_row+rows (first_row a multiple of 16) of a row-major [n, k] matrix whose
// row first_row starts at `source`, into the panels that hold them: `panels` is where the first of those starts.
// Padding rows are zero.
void sp_panel_pack(const float *source, int64_t n, int64_t k, int64_t first_row, int64_t rows, float *panels);

// Reads the whole blocks of 256 KiB (streams = 1) or 1 MiB (streams = 4: the same block of four equal stripes at
// once) of a buffer that is aligned to 16 bytes, with prefetch. Returns how many bytes that were; `sum` is the sum
// of their 64-bit words. Timed by the caller, this is the speed that a step over as many bytes is measured against.
size_t sp_read_streams(sp_pool *pool, const void *buffer, size_t bytes, unsigned streams, uint64_t *sum);

// CRC-32C (Castagnoli) of bytes, continuing from `seed` (0 to start). Hardware where the processor has it.
uint32_t sp_crc32c(uint32_t seed, const void *bytes, size_t count);

// Asks the system to begin writing a range of a file to its disk, and waits for nothing. Where the system cannot be
// asked nothing happens.
void sp_start_flushing(int descriptor, int64_t offset, int64_t count);

#ifdef __cplusplus
}
#endif

#endif
