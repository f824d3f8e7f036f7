/* cuda_info -- versions and GPUs, from the driver and the loaded libraries. */
#include <cublasLt.h>
#include <cudnn.h>
#include <stdio.h>
#include "device/cuda/cuda.h"

static void look_at_gpu(int index, struct device_gpu *gpu)
{
    struct cudaDeviceProp found;
    if (cudaGetDeviceProperties(&found, index) != cudaSuccess)
        return;
    snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)sizeof gpu->name - 1, found.name);
    gpu->bytes = found.totalGlobalMem;
    gpu->capability = 10 * found.major + found.minor;
}

static void look_at_nvml(struct device_cuda_info *info)
{
    struct nvml nvml;
    info->nvml = nvml_open(-1, &nvml);
    if (!info->nvml)
        return;
    nvml_driver(&nvml, info->release, sizeof info->release);
    nvml_close(&nvml);
}

CUDA_ENTRY device_cuda_look_fn sifr_cuda_look;
void sifr_cuda_look(struct device_cuda_info *info)
{
    cudaRuntimeGetVersion(&info->runtime);
    if (cudaDriverGetVersion(&info->driver) != cudaSuccess)
        info->driver = 0;
    info->cublas = (int)cublasLtGetVersion();
    info->cudnn = (int)cudnnGetVersion();
    if (cudaGetDeviceCount(&info->gpu_count) != cudaSuccess)
        info->gpu_count = 0;
    look_at_nvml(info);
    for (int i = 0; i < info->gpu_count && i < DEVICE_GPUS; i++)
        look_at_gpu(i, &info->gpus[i]);
    (void)cudaGetLastError();
}
