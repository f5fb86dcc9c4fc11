// Counts what a process allocates, whoever asks and on whatever thread: C, C++ and Swift all end in malloc.
#ifndef STATEPACK_ALLOCATION_METER_H
#define STATEPACK_ALLOCATION_METER_H

#include <stdbool.h>
#include <stdint.h>

// From here until sp_meter_stop every allocation of the process is counted. One measurement at a time.
void sp_meter_start(void);
// How many there were.
int64_t sp_meter_stop(void);
// The bytes that were asked for in the last measurement.
int64_t sp_meter_bytes(void);

// Allocates `count` bytes in each of these ways, uses them and frees them: what a meter has to see.
enum { SP_METER_WAYS = 7 };
void sp_meter_allocate(int way, uint64_t count);
// The same on a thread of its own.
void sp_meter_allocate_on_thread(int way, uint64_t count);

// True under AddressSanitizer, which keeps freed memory and slows some instructions more than others: times and
// resident memory say nothing then.
bool sp_is_instrumented(void);

// Bytes of the process that are in memory; 0 where the system does not say.
int64_t sp_resident_bytes(void);

#endif
