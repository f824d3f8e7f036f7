/* nvml -- calls the library through dlsym.
 *
 * The toolkit's header is a separate package and often missing, so the part of the interface that
 * we use is declared here: a GPU is a pointer, 0 is success, and structs begin with their size and
 * version. Functions are looked up by name at every call: there are few calls, and if the library
 * lacks one of them, only that figure is unknown. The library is never unloaded.
 */
#include "device/cuda/cuda.h"
#include <dlfcn.h>
#include <string.h>

enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0 };

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

typedef int plain_fn(void);
typedef int driver_fn(char *version, unsigned bytes);
typedef int find_fn(const char *bus, void **gpu);
typedef int memory_fn(void *gpu, struct nvml_memory_v2 *memory);
typedef int figure_fn(void *gpu, unsigned *figure);
typedef int kind_fn(void *gpu, int kind, unsigned *figure);

/* *out = the function `name`; `out` is the address of a function pointer. */
static bool look_up(const struct nvml *nvml, const char *name, void *out)
{
    void *address = nvml->object != NULL ? dlsym(nvml->object, name) : NULL;
    memcpy(out, &address, sizeof address);
    return address != NULL;
}

static bool find_gpu(struct nvml *nvml, int index)
{
    find_fn *find;
    char bus[32];
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return look_up(nvml, "nvmlDeviceGetHandleByPciBusId_v2", &find) &&
           find(bus, &nvml->gpu) == NVML_SUCCESS;
}

bool nvml_open(int index, struct nvml *nvml)
{
    plain_fn *start;
    *nvml =
        (struct nvml){.object = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    if (nvml->object == NULL)
        return false;
    if (!look_up(nvml, "nvmlInit_v2", &start) || start() != NVML_SUCCESS) {
        dlclose(nvml->object);
        nvml->object = NULL;
        return false;
    }
    if (index < 0 || find_gpu(nvml, index))
        return true;
    nvml_close(nvml);
    return false;
}

void nvml_close(struct nvml *nvml)
{
    plain_fn *stop;
    if (look_up(nvml, "nvmlShutdown", &stop))
        stop();
    if (nvml->object != NULL)
        dlclose(nvml->object);
    *nvml = (struct nvml){0};
}

bool nvml_memory(const struct nvml *nvml, size_t *used, size_t *free)
{
    memory_fn *ask;
    struct nvml_memory_v2 memory = {.version = sizeof memory | 2u << 24};
    if (!look_up(nvml, "nvmlDeviceGetMemoryInfo_v2", &ask) ||
        ask(nvml->gpu, &memory) != NVML_SUCCESS)
        return false;
    *used = memory.used;
    *free = memory.free;
    return true;
}

void nvml_gauges(const struct nvml *nvml, struct device_gauges *gauges)
{
    kind_fn *clock, *temperature;
    figure_fn *power;
    unsigned figure;
    if (look_up(nvml, "nvmlDeviceGetClockInfo", &clock) &&
        clock(nvml->gpu, NVML_CLOCK_SM, &figure) == NVML_SUCCESS)
        gauges->clock_mhz = figure;
    if (look_up(nvml, "nvmlDeviceGetPowerUsage", &power) &&
        power(nvml->gpu, &figure) == NVML_SUCCESS)
        gauges->watts = 1e-3 * figure;
    if (look_up(nvml, "nvmlDeviceGetTemperature", &temperature) &&
        temperature(nvml->gpu, NVML_TEMPERATURE_GPU, &figure) == NVML_SUCCESS)
        gauges->celsius = figure;
}

void nvml_driver(const struct nvml *nvml, char *version, size_t bytes)
{
    driver_fn *ask;
    version[0] = '\0';
    if (look_up(nvml, "nvmlSystemGetDriverVersion", &ask) &&
        ask(version, (unsigned)bytes) != NVML_SUCCESS)
        version[0] = '\0';
}
