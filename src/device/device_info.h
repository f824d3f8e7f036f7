/* device_info -- the CUDA installation: plugin, driver and GPUs, for `sifr doctor`. */
#ifndef DEVICE_DEVICE_INFO_H
#define DEVICE_DEVICE_INFO_H
#include <stdbool.h>
#include <stddef.h>

enum { DEVICE_GPUS = 16 };

struct device_gpu {
    char name[64];
    size_t bytes;
    int capability; /* 90 = 9.0 */
};

struct device_cuda_info {
    /* Why the CUDA back ends are not available; "" when they are, and only then the rest is set. */
    char missing[512];
    int driver;        /* latest CUDA version it supports, 13000 = 13.0; 0 = no driver */
    int runtime;       /* the CUDA version that the back ends were built with */
    int cublas, cudnn; /* versions of the loaded libraries: 91400 = 9.14.0 */
    int nccl;          /* 0 = built without */
    bool nvml;        /* libnvidia-ml.so.1 is available: clock, power, temperature, memory in use */
    char release[80]; /* version of the driver: "580.95.05"; "" = unknown */
    int gpu_count;    /* all GPUs; at most DEVICE_GPUS of them are described */
    struct device_gpu gpus[DEVICE_GPUS];
};

/* Loads the plugin; does not open a GPU. */
void device_cuda_info(struct device_cuda_info *info);

/* Symbols in libsifr-cuda: one sets everything but `missing` and `nccl`, the other returns NCCL's
 * version. */
#define DEVICE_CUDA_LOOK "sifr_cuda_look"
#define DEVICE_NCCL_LOOK "sifr_nccl_look"
typedef void device_cuda_look_fn(struct device_cuda_info *info);
typedef int device_nccl_look_fn(void);

#endif
