/* ops_info -- what the cpu back end was built with and runs on, for `sifr doctor` and the
 * fingerprint of a run. */
#ifndef OPS_OPS_INFO_H
#define OPS_OPS_INFO_H
#include <stddef.h>

/* Upper bound of the address space of one OpenBLAS buffer (cpu_blas.c). */
#define OPS_BLAS_BUFFER_BYTES ((size_t)129 << 20)

struct ops_info {
    const char *blas;    /* "OpenBLAS 0.3.21 DYNAMIC_ARCH ...", as the library reports it */
    const char *core;    /* the CPU type whose kernels the BLAS chose: "NEOVERSEV1" */
    const char *flavour; /* threading of the BLAS library: "openmp", "pthread" or "serial" */
    const char *vectors; /* instruction set that our loops were compiled for: "NEON", "AVX2" */
    int openmp;          /* year and month of the OpenMP version: 201511 */
};

void ops_cpu_info(struct ops_info *info); /* the strings live as long as the process */

#endif
