/* resident -- the memory that this process really holds, whoever took it.
 *
 * The account (mem.h) has what sifr takes. The system's figure has also what libraries take (MPI
 * with its shared segments, BLAS, the C library), and not what was taken and never touched.
 */
#ifndef BASE_RESIDENT_H
#define BASE_RESIDENT_H
#include <stddef.h>

/* RssAnon + RssShmem of the process now, in bytes: pages of files are not in it. 0 = not known.
 * Allocates nothing. */
size_t resident_bytes(void);

#endif
