/* nvml -- what the driver's management library says of a GPU, where there is such a library.
 *
 * It comes with the driver as libnvidia-ml.so.1 and is loaded when it is asked, so nothing is
 * linked with it, and a machine without it has fewer figures. It knows a GPU by its place on the
 * bus, sees the memory of all processes, and needs no context on the GPU.
 */
#ifndef DEVICE_CUDA_NVML_H
#define DEVICE_CUDA_NVML_H
#include "device/device.h"

struct nvml { /* all zero: there is none */
    void *object;
    void *gpu;
};

/* GPU `index` of the CUDA runtime; -1: only the library. false: there is none, or it does not know
 * the GPU; then there is nothing to close. */
bool nvml_open(int index, struct nvml *nvml);
void nvml_close(struct nvml *nvml);

/* Of all processes, without what the driver keeps for itself. */
bool nvml_memory(const struct nvml *nvml, size_t *used, size_t *free);
void nvml_gauges(const struct nvml *nvml, struct device_gauges *gauges);
void nvml_driver(const struct nvml *nvml, char *version, size_t bytes); /* "580.95.05"; or "" */

#endif
