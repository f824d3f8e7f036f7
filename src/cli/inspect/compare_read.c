/* compare_read -- metrics.jsonl, summary.json and config.yaml of one run. None of them need be
 * complete: the run may be running, or may have died. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/inspect/compare.h"
#include "train/checkpoint/config_lines.h"
#include "train/run/records.h"

enum { CONFIG_BYTES_MAX = 1 << 24 };

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static size_t bytes_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) > 0
               ? (size_t)json_integer_value(value)
               : 0;
}

/* --- metrics.jsonl -------------------------------------------------------------------------- */

static void take_memory(struct compare_run *run, const json_t *record)
{
    const json_t *mem = json_object_get(record, "mem");
    size_t bytes[MEM_CATEGORY_COUNT], held = 0;
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        held += bytes[c] = bytes_of(mem, mem_category_word((enum mem_category)c));
    if (held < run->held)
        return;
    run->held = held;
    memcpy(run->mem, bytes, sizeof bytes);
    run->gpu = bytes_of(record, "gpu_bytes");
    run->host = bytes_of(record, "host_bytes");
    run->disk = bytes_of(record, "disk_bytes");
}

static void take_evaluation(struct compare_run *run, int64_t step, const json_t *record)
{
    double loss = number(json_object_get(record, "val"), "loss");
    if (isnan(loss))
        return;
    run->val = loss;
    run->val_step = step;
    run->val_tokens = json_integer_value(json_object_get(json_object_get(record, "val"), "tokens"));
    if (isnan(run->val_best) || loss < run->val_best) {
        run->val_best = loss;
        run->val_best_step = step;
    }
}

/* A step that is there twice counts as it was written last: a run that resumed repeats it. */
static bool take_record(void *user, const json_t *record)
{
    struct compare_run *run = user;
    const json_t *number_of = json_object_get(record, "step"),
                 *comm = json_object_get(record, "comm");
    int64_t step = json_integer_value(number_of);
    if (!json_is_integer(number_of)) {
        run->skipped++;
        return true;
    }
    while (run->count > 0 && run->steps[run->count - 1].step >= step)
        run->count--;
    if (run->count == run->room) {
        int64_t room = 2 * run->room + 1024;
        run->status = mem_grow_array(run->env, MEM_OTHER, "steps", (size_t)room, sizeof *run->steps,
                                     &run->steps);
        if (run->status != STATUS_OK)
            return false;
        run->room = room;
    }
    run->steps[run->count++] = (struct compare_step){
        .step = step,
        .loss = number(record, "loss"),
        .seconds = number(record, "seconds"),
        .tokens_per_second = number(record, "tokens_per_second"),
        .mfu = number(record, "mfu"),
        .in_flight = number(comm, "in_flight"),
        .waited = number(comm, "waited"),
        .stalled = number(comm, "stalled"),
        .tensor_waited = number(comm, "tensor_waited"),
    };
    run->ranks = json_is_integer(json_object_get(comm, "ranks"))
                     ? (int)json_integer_value(json_object_get(comm, "ranks"))
                     : 1;
    run->clock_mhz = number(record, "clock_mhz");
    run->watts = number(record, "power_w");
    run->celsius = number(record, "temperature_c");
    take_memory(run, record);
    take_evaluation(run, step, record);
    return true;
}

static enum status read_steps(struct compare_run *run, const char *path)
{
    const struct records_query all = {.bad = &run->skipped};
    TRY(records_read(run->env, path, &all, take_record, run));
    return run->status;
}

/* --- summary.json and config.yaml ----------------------------------------------------------- */

/* A summary of fewer steps than were recorded is that of an earlier part of the run. */
static bool take_summary(void *user, const json_t *summary)
{
    struct compare_run *run = user;
    const json_t *end = json_object_get(summary, "end");
    int64_t steps = json_integer_value(json_object_get(summary, "steps"));
    int64_t last = run->count > 0 ? run->steps[run->count - 1].step : 0;
    run->planned = json_integer_value(json_object_get(summary, "planned_steps"));
    if (json_is_string(end) && steps >= last)
        snprintf(run->end, sizeof run->end, "%s", json_string_value(end));
    return true;
}

static enum status read_config(struct compare_run *run, const char *path)
{
    struct text yaml;
    struct file_map map;
    TRY(file_map_open(run->env, path, &map));
    text_init(&yaml, run->env);
    if (map.bytes > 0)
        text_add_bytes(&yaml, (const char *)map.data,
                       map.bytes < CONFIG_BYTES_MAX ? map.bytes : CONFIG_BYTES_MAX);
    file_map_close(&map);
    enum status st = yaml.status;
    if (st == STATUS_OK)
        config_lines(text_string(&yaml), NULL, &run->config);
    text_free(&yaml);
    return st != STATUS_OK ? st : run->config.status;
}

/* Call `read` with the path of a file of the run, if it exists. *found may be NULL. */
static enum status with_file(struct compare_run *run, const char *name,
                             enum status (*read)(struct compare_run *, const char *), bool *found)
{
    char *path;
    TRY(path_join(run->env, run->path, name, &path));
    bool there = file_exists(path);
    enum status st = there ? read(run, path) : STATUS_OK;
    mem_free(run->env, path);
    if (found)
        *found = there;
    return st;
}

static enum status read_summary(struct compare_run *run, const char *path)
{
    return record_read(run->env, path, take_summary, run);
}

enum status compare_open(struct env *env, const char *path, struct compare_run *run)
{
    bool steps, config;
    *run = (struct compare_run){.path = path,
                                .env = env,
                                .val = NAN,
                                .val_best = NAN,
                                .ranks = 1,
                                .clock_mhz = NAN,
                                .celsius = NAN,
                                .watts = NAN,
                                .end = "not finished"};
    text_init(&run->config, env);
    TRY(with_file(run, "metrics.jsonl", read_steps, &steps));
    TRY(with_file(run, "config.yaml", read_config, &config));
    if (!steps && !config)
        return FAIL(
            env, CONFIG,
            "'%s' is not a run folder: it has neither metrics.jsonl nor config.yaml; name a "
            "folder that `sifr train` has made (--out)",
            path);
    return with_file(run, "summary.json", read_summary, NULL);
}

void compare_close(struct compare_run *run)
{
    if (!run->env)
        return;
    mem_free(run->env, run->steps);
    text_free(&run->config);
    *run = (struct compare_run){0};
}
