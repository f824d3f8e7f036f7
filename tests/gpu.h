/* gpu -- the device of a test: the CPU, or the one that SIFR_TEST_DEVICE names ("cuda"). */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H
#include "testing.h"
#include "device/device.h"

static inline const char *test_device(void)
{
    const char *name = getenv("SIFR_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

static inline bool test_on_cpu(void)
{
    return strcmp(test_device(), "cpu") == 0;
}

/* True if there is no such device: main then returns 77, which counts as skipped. */
static inline bool test_missing(const char *device)
{
    struct device_info info;
    device_look(device, -1, &info);
    if (info.count == 0)
        printf("SKIPPED: %s\n", info.why);
    return info.count == 0;
}

static inline bool test_device_missing(void)
{
    return test_missing(test_device());
}

#endif
