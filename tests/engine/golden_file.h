/* golden_file -- reads the output of tools/golden_model.py: a safetensors file and its JSON. For
 * tests only; the trainer's reader belongs to a higher layer.
 */
#ifndef TESTS_ENGINE_GOLDEN_FILE_H
#define TESTS_ENGINE_GOLDEN_FILE_H
#include <jansson.h>
#include "testing.h"
#include "base/dtype.h"
#include "base/file.h"

struct golden {
    json_t *root;   /* NAME.json */
    json_t *header; /* of NAME.safetensors */
    struct file_map map;
    const uint8_t *data;
};

static inline void golden_open(struct env *env, const char *folder, const char *name,
                               struct golden *g)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    g->root = json_load_file(path, 0, &error);
    if (!g->root)
        fail_msg("%s: %s (tests run in the project's folder)", path, error.text);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    assert_ok(file_map_open(env, path, &g->map));
    uint64_t bytes;
    memcpy(&bytes, g->map.data, sizeof bytes);
    g->header = json_loadb((const char *)g->map.data + 8, bytes, 0, &error);
    assert_non_null(g->header);
    g->data = g->map.data + 8 + bytes;
}

static inline void golden_close(struct golden *g)
{
    json_decref(g->header);
    json_decref(g->root);
    file_map_close(&g->map);
}

/* "<kind><name>" as doubles; checks the count. free() it. */
static inline double *golden_tensor(const struct golden *g, const char *kind, const char *name,
                                    int64_t count)
{
    char key[256];
    snprintf(key, sizeof key, "%s%s", kind, name);
    const json_t *entry = json_object_get(g->header, key);
    if (!entry)
        fail_msg("the golden file has no %s", key);
    int64_t first = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
    int64_t end = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 1));
    bool wide = strcmp(json_string_value(json_object_get(entry, "dtype")), "F64") == 0;
    assert_int_equal(end - first, count * (wide ? 8 : 4));
    double *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    dtype_convert(values, DTYPE_F64, g->data + first, wide ? DTYPE_F64 : DTYPE_F32, count);
    return values;
}

static inline double golden_real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static inline int64_t golden_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static inline bool golden_is(const json_t *object, const char *key, const char *word)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, word) == 0;
}

#endif
