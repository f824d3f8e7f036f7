/* gpu_facts -- the table of published GPU figures. All code takes them from here. */
#ifndef DEVICE_GPU_FACTS_H
#define DEVICE_GPU_FACTS_H
#include "base/dtype.h"

/* Multiprocessors of an H100 or H200. Kernels derive launch sizes from it on every GPU, since the
 * order of their sums, and so their bits, must not depend on the GPU. */
#define GPU_HOPPER_PROCESSORS 132

/* TFLOP/s of dense bf16 products with fp32 sums, by the GPU's name ("NVIDIA H200"); 0 = unknown. */
double gpu_peak_tflops(const char *name);
/* Operations per second of dense products with operands of `type`, the peak that MFU is relative
 * to; 0 = unknown. fp32 products use TF32, which has half the 16-bit rate on all of these GPUs. */
double gpu_peak_flops(const char *name, enum dtype type);

#endif
