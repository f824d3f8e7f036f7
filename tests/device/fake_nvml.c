/* fake_nvml -- a management library for the simulated GPU: the part of libnvidia-ml.so.1 that
 * device/cuda/nvml.c calls. It reports what the simulated GPU uses (if that is loaded), memory held
 * by other processes, and fixed gauges. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/fake_gpu.h"

#define EXPORT __attribute__((visibility("default")))

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned bytes);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu);
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory *memory);
EXPORT int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz);
EXPORT int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts);
EXPORT int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius);

enum { INVALID = 2 };

/* Detects shutdowns without init, and queries while the library is not initialized. */
static int open_count;

int nvmlInit_v2(void)
{
    open_count++;
    return 0;
}

int nvmlShutdown(void)
{
    return --open_count >= 0 ? 0 : INVALID;
}

int nvmlSystemGetDriverVersion(char *version, unsigned bytes)
{
    snprintf(version, bytes, "580.1");
    return open_count > 0 ? 0 : INVALID;
}

/* The handle of a GPU is its index plus one. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu)
{
    unsigned index;
    if (open_count == 0 || sscanf(bus, "0000:%x:00.0", &index) != 1 || index >= FAKE_GPUS)
        return INVALID;
    *gpu = (void *)((uintptr_t)index + 1);
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory *memory)
{
    size_t (*ask)(int index) = NULL;
    void *object = dlopen("libsifr-cuda.so", RTLD_NOW | RTLD_NOLOAD), *address;
    if (open_count == 0 || memory->version != (sizeof *memory | 2u << 24))
        return INVALID;
    address = object != NULL ? dlsym(object, "fake_gpu_in_use") : NULL;
    memcpy(&ask, &address, sizeof ask);
    memory->total = FAKE_GPU_BYTES + 7;
    memory->reserved = 7;
    memory->used = FAKE_OTHERS_BYTES + (ask != NULL ? ask((int)(uintptr_t)gpu - 1) : 0);
    memory->free = FAKE_GPU_BYTES - memory->used;
    if (object != NULL)
        dlclose(object);
    return 0;
}

int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz)
{
    *mhz = kind == 1 ? 1755 : 3201;
    return gpu != NULL && open_count > 0 ? 0 : INVALID;
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts)
{
    *milliwatts = 640500;
    return gpu != NULL && open_count > 0 ? 0 : INVALID;
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius)
{
    *celsius = 61;
    return gpu != NULL && sensor == 0 && open_count > 0 ? 0 : INVALID;
}
