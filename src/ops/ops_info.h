/* ops_info -- what the cpu back end was built with and runs on, for `sifr doctor` and the
 * fingerprint of a run. */
#ifndef OPS_OPS_INFO_H
#define OPS_OPS_INFO_H
#include <stddef.h>

/* No less than one buffer of OpenBLAS takes of the address space; see cpu_blas.c. */
#define OPS_BLAS_BUFFER_BYTES ((size_t)129 << 20)

struct ops_info {
    const char *blas;    /* "OpenBLAS 0.3.21 DYNAMIC_ARCH ...": the library's own words */
    const char *core;    /* the CPU kind that the BLAS chose its kernels for: "NEOVERSEV1" */
    const char *flavour; /* how the BLAS would thread by itself: "openmp", "pthread" or "serial" */
    const char
        *vectors; /* instructions that our own loops were compiled for: "NEON", "AVX2", ... */
    int openmp;   /* year and month of the OpenMP standard: 201511 */
};

void ops_cpu_info(struct ops_info *info); /* the strings live as long as the process */

#endif
