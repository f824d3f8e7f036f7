/* Any bytes as a safetensors file: they are refused, or every tensor can be read to its last
 * element. */
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "train/weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void read_tensor(const struct safetensors *file, const struct safetensor *tensor)
{
    float values[64];
    int64_t step = 64;
    for (int64_t first = 0; first < tensor->count; first += step) {
        int64_t count = tensor->count - first < step ? tensor->count - first : step;
        if (safetensors_read(file, tensor, first, count, DTYPE_F32, values) != STATUS_OK)
            return;
    }
    CHECK(safetensors_find(file, tensor->name) == tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct safetensors *file;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    if (safetensors_open_memory(&env, data, bytes, "input", &file) == STATUS_OK) {
        for (int i = 0; i < safetensors_count(file); i++)
            read_tensor(file, safetensors_at(file, i));
        safetensors_close(file);
    }
    env_destroy(&env);
    return 0;
}
