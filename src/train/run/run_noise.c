#include "train/run/run_noise.h"
#include <math.h>
#include "base/file.h"
#include "train/run/records.h"

struct search {
    struct run_noise *noise;
    const char *step_key;
};

static bool read_noise(void *user, const json_t *record)
{
    const struct search *search = user;
    double scale = json_number_value(json_object_get(record, "noise_scale"));
    if (!isfinite(scale) || scale <= 0)
        return true;
    *search->noise = (struct run_noise){
        .scale = scale,
        .step = (int64_t)json_number_value(json_object_get(record, search->step_key))};
    return false;
}

/* *found: one of the files is there. */
static enum status search_file(struct env *env, const char *folder, bool summary, bool *found,
                               struct run_noise *noise)
{
    static const struct records_query last = {.contains = "\"noise_scale\"", .backward = true};
    struct search search = {noise, summary ? "steps" : "step"};
    char *path;
    TRY(path_join(env, folder, summary ? "summary.json" : "metrics.jsonl", &path));
    enum status st = STATUS_OK;
    if (file_exists(path) && noise->scale == 0) {
        *found = true;
        st = summary ? record_read(env, path, read_noise, &search)
                     : records_read(env, path, &last, read_noise, &search);
    }
    mem_free(env, path);
    return st;
}

enum status run_noise_find(struct env *env, const char *folder, struct run_noise *noise)
{
    bool found = false;
    *noise = (struct run_noise){0};
    TRY(search_file(env, folder, false, &found, noise));
    TRY(search_file(env, folder, true, &found, noise));
    if (!found)
        return FAIL(env, CONFIG,
                    "'%s' is not the folder of a run: it has no metrics.jsonl and no summary.json",
                    folder);
    return STATUS_OK;
}
