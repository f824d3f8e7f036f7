/* cuda_info -- versions and cards, asked of the driver and the libraries that are really loaded. */
#include <cublasLt.h>
#include <cudnn.h>
#include <stdio.h>
#include "device/cuda/cuda.h"
#include "device/device_info.h"

static void look_at_card(int index, struct device_card *card)
{
    struct cudaDeviceProp found;
    if (cudaGetDeviceProperties(&found, index) != cudaSuccess)
        return;
    snprintf(card->name, sizeof card->name, "%.*s", (int)sizeof card->name - 1, found.name);
    card->bytes = found.totalGlobalMem;
    card->capability = 10 * found.major + found.minor;
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
    if (cudaGetDeviceCount(&info->card_count) != cudaSuccess)
        info->card_count = 0;
    look_at_nvml(info);
    for (int i = 0; i < info->card_count && i < DEVICE_CARDS; i++)
        look_at_card(i, &info->cards[i]);
    (void)cudaGetLastError();
}
