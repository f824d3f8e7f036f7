#include "train/run/run_noise.h"
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/json_doc.h"

static const char key[] = "\"noise_scale\"";
static const struct json_rules RULES = {.values = 1000000, .lists = 100000};

/* Read a record or a summary. Text that is not JSON has no noise scale. */
static enum status read_object(struct env *env, const char *text, size_t bytes,
                               const char *step_key, struct run_noise *noise)
{
    struct json_doc doc;
    if (bytes == 0 || !memmem(text, bytes, key, sizeof key - 1))
        return STATUS_OK;
    enum status st = json_doc_open(env, text, bytes, &RULES, &doc);
    if (st == STATUS_OK) {
        double scale = json_number_value(json_object_get(doc.root, "noise_scale"));
        if (isfinite(scale) && scale > 0)
            *noise = (struct run_noise){
                .scale = scale,
                .step = (int64_t)json_number_value(json_object_get(doc.root, step_key))};
    }
    json_doc_close(&doc);
    return st == STATUS_FORMAT ? STATUS_OK : st;
}

/* From the last line back. A last line without a newline is still being written and is skipped. */
static enum status read_lines(struct env *env, const struct file_map *map, struct run_noise *noise)
{
    const char *data = (const char *)map->data;
    const char *end = map->bytes > 0 ? memrchr(data, '\n', map->bytes) : NULL;
    while (end && noise->scale == 0) {
        const char *newline = memrchr(data, '\n', (size_t)(end - data));
        const char *line = newline ? newline + 1 : data;
        TRY(read_object(env, line, (size_t)(end - line), "step", noise));
        end = newline;
    }
    return STATUS_OK;
}

static enum status read_file(struct env *env, const char *folder, const char *name, bool *found,
                             struct run_noise *noise)
{
    struct file_map map;
    char *path;
    TRY(path_join(env, folder, name, &path));
    enum status st = STATUS_OK;
    if (file_exists(path) && noise->scale == 0) {
        *found = true;
        TRY_OR(undo_path, file_map_open(env, path, &map));
        if (strcmp(name, "summary.json") == 0)
            st = read_object(env, (const char *)map.data, map.bytes, "steps", noise);
        else
            st = read_lines(env, &map, noise);
        file_map_close(&map);
    }
undo_path:
    mem_free(env, path);
    return st;
}

enum status run_noise_find(struct env *env, const char *folder, struct run_noise *noise)
{
    bool found = false;
    *noise = (struct run_noise){0};
    TRY(read_file(env, folder, "metrics.jsonl", &found, noise));
    TRY(read_file(env, folder, "summary.json", &found, noise));
    if (!found)
        return FAIL(env, CONFIG,
                    "'%s' is not the folder of a run: it has no metrics.jsonl and no summary.json",
                    folder);
    return STATUS_OK;
}
