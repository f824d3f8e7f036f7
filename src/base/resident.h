/* resident -- the memory that this process really uses, from whatever source.
 *
 * The account (mem.h) counts what sifr allocates. The system's figure also includes libraries (MPI
 * with its shared segments, BLAS, the C library), and excludes memory that was allocated but never
 * touched.
 */
#ifndef BASE_RESIDENT_H
#define BASE_RESIDENT_H
#include <stddef.h>

/* RssAnon + RssShmem of this process now, in bytes; file pages are not included. 0 = unknown.
 * Allocates nothing. */
size_t resident_bytes(void);

#endif
