/* nvml -- figures of a GPU from the driver's management library, where available.
 *
 * The library, libnvidia-ml.so.1, comes with the driver. It is loaded at run time, so nothing links
 * to it, and a machine without it only has fewer figures. It identifies a GPU by its PCI bus id,
 * sees the memory of all processes, and needs no context on the GPU.
 */
#ifndef DEVICE_CUDA_NVML_H
#define DEVICE_CUDA_NVML_H
#include "device/device.h"

struct nvml { /* all zero = not available */
    void *object;
    void *gpu;
};

/* GPU `index` of the CUDA runtime; -1 = only the library. false = no library, or it does not know
 * the GPU; then there is nothing to close. */
bool nvml_open(int index, struct nvml *nvml);
void nvml_close(struct nvml *nvml);

/* Memory of all processes, without the driver's own reserve. */
bool nvml_memory(const struct nvml *nvml, size_t *used, size_t *free);
void nvml_gauges(const struct nvml *nvml, struct device_gauges *gauges);
void nvml_driver(const struct nvml *nvml, char *version, size_t bytes); /* "580.95.05"; or "" */

#endif
