/* Any bytes as a model.safetensors.index.json: they are refused, or every file in the index is
 * inside the folder and is listed once. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "train/weights/weight_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct weight_index index;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    if (weight_index_parse(&env, (const char *)data, bytes, "input", &index) == STATUS_OK) {
        for (int i = 0; i < index.count; i++) {
            CHECK(*index.files[i] && !strchr(index.files[i], '/') && !strstr(index.files[i], ".."));
            CHECK(i == 0 || strcmp(index.files[i - 1], index.files[i]) < 0);
        }
        weight_index_free(&index);
    }
    env_destroy(&env);
    return 0;
}
