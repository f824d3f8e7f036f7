/* device_info -- what CUDA there is: the plugin, the driver and the GPUs, for `sifr doctor`. */
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
    char
        missing[512]; /* why there are no CUDA back ends; "" when there are, then the rest is set */
    int driver;       /* the CUDA version that the driver can do, 13000 = 13.0; 0 = no driver */
    int runtime;      /* the one that the back ends were built with */
    int cublas, cudnn; /* versions of what is loaded: 91400 = 9.14.0 */
    int nccl;          /* 0 = built without */
    bool nvml;         /* libnvidia-ml.so.1 is there: clock, power and what a GPU has in use */
    char release[80];  /* of the driver, as it says: "580.95.05"; "" = not known */
    int gpu_count;     /* of those that are described at most DEVICE_GPUS */
    struct device_gpu gpus[DEVICE_GPUS];
};

/* Loads the plugin; makes no use of a GPU. */
void device_cuda_info(struct device_cuda_info *info);

/* Entries of libsifr-cuda: all but `missing` and `nccl`; and NCCL's version. */
#define DEVICE_CUDA_LOOK "sifr_cuda_look"
#define DEVICE_NCCL_LOOK "sifr_nccl_look"
typedef void device_cuda_look_fn(struct device_cuda_info *info);
typedef int device_nccl_look_fn(void);

#endif
