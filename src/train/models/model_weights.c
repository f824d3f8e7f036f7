#include <string.h>
#include <xxhash.h>
#include "base/file.h"
#include "train/models/model_weights.h"
#include "train/models/weight_files.h"

enum { CHUNK = 1 << 20 };                       /* elements copied at once */
enum { PRINT_WINDOWS = 16, PRINT_COUNT = 256 }; /* of a fingerprint, elements of each */
#define CONFIG_BYTES_MAX ((size_t)64 << 20)

/* --- loading -------------------------------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static enum status load_tensor(struct zero *zero, int i, struct weight_found found, float *chunk)
{
    for (int64_t first = 0; first < found.tensor->count; first += CHUNK) {
        int64_t count = smaller(CHUNK, found.tensor->count - first);
        TRY(safetensors_read(found.file, found.tensor, first, count, DTYPE_F32, chunk));
        TRY(zero_write(zero, i, first, count, chunk));
    }
    return STATUS_OK;
}

static enum status load_all(const struct weight_files *weights, const struct model *model,
                            struct zero *zero, const char *path)
{
    const struct unit_graph *graph = model_graph(model);
    float *chunk;
    TRY(weight_files_match(weights, graph, model_config(model)->tied == 1, path));
    TRY(mem_alloc_array(weights->env, MEM_OTHER, "weights on their way", CHUNK, sizeof *chunk,
                        &chunk));
    enum status st = STATUS_OK;
    for (int i = 0; st == STATUS_OK && i < graph->tensor_count; i++)
        st = load_tensor(zero, i, weight_files_find(weights, graph->tensors[i].name), chunk);
    mem_free(weights->env, chunk);
    return st == STATUS_OK ? zero_publish(zero, 0) : st;
}

enum status model_weights_load(struct env *env, const struct model_source *source,
                               const struct model *model, struct zero *zero)
{
    struct weight_files weights = {.env = env};
    enum status st = weight_files_open(&weights, source);
    if (st == STATUS_OK)
        st = load_all(&weights, model, zero, source->file ? source->file : source->folder);
    weight_files_close(&weights);
    return st;
}

/* --- a fingerprint -------------------------------------------------------------------------- */

/* Hash name, type, shape and evenly spaced windows of elements; these cover all of a small
 * tensor. */
static enum status print_tensor(const struct safetensors *file, const struct safetensor *tensor,
                                uint64_t *print)
{
    uint64_t window[PRINT_COUNT]; /* large enough for every type */
    int64_t step = tensor->count / PRINT_WINDOWS;
    step = step > PRINT_COUNT ? step : PRINT_COUNT;
    *print = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), *print + tensor->type);
    *print =
        XXH3_64bits_withSeed(tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape, *print);
    for (int64_t first = 0; first < tensor->count; first += step) {
        int64_t count = smaller(PRINT_COUNT, tensor->count - first);
        TRY(safetensors_read(file, tensor, first, count, tensor->type, window));
        *print = XXH3_64bits_withSeed(window, (size_t)count * dtype_bytes(tensor->type), *print);
    }
    return STATUS_OK;
}

static enum status print_config(struct env *env, const struct model_source *source, uint64_t *print)
{
    char *file, *text = NULL;
    size_t bytes = 0;
    TRY(path_join(env, source->folder, "config.json", &file));
    enum status st = file_read(env, file, CONFIG_BYTES_MAX, &text, &bytes);
    if (st == STATUS_OK)
        *print = XXH3_64bits_withSeed(text, bytes, *print);
    mem_free(env, text);
    mem_free(env, file);
    return st;
}

enum status model_weights_fingerprint(struct env *env, const struct model_source *source,
                                      uint64_t *print)
{
    struct weight_files weights = {.env = env};
    *print = 0;
    TRY(print_config(env, source, print));
    enum status st = weight_files_open(&weights, source);
    for (int f = 0; st == STATUS_OK && f < weights.count; f++)
        for (int i = 0; st == STATUS_OK && i < safetensors_count(weights.files[f]); i++)
            st = print_tensor(weights.files[f], safetensors_at(weights.files[f], i), print);
    weight_files_close(&weights);
    return st;
}
