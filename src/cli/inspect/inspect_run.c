/* inspect_run -- a run folder: its summary, loss curve, checkpoints and cache. The run may still be
 * running. */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/plot.h"
#include "cli/inspect/inspect.h"
#include "train/checkpoint/fallback.h"
#include "train/data/token_cache.h"
#include "train/run/records.h"

enum { MARKS = 256 };

/* --- summary.json --------------------------------------------------------------------------- */

static bool is_bytes(const char *name)
{
    static const char *const groups[] = {"peak_mem_", "peak_host_mem", "disk_bytes", "offload_",
                                         "process_",  "gpu_",          "card_"};
    bool found = false;
    for (size_t i = 0; i < sizeof groups / sizeof *groups && !found; i++)
        found = strncmp(name, groups[i], strlen(groups[i])) == 0;
    return found && strcmp(name, "peak_mem_rank") != 0;
}

static void print_value(struct inspection *in, const char *name, const json_t *value)
{
    if (json_is_string(value) && *json_string_value(value))
        inspect_string(in, name, json_string_value(value));
    else if (json_is_integer(value) && is_bytes(name))
        inspect_bytes(in, name, (size_t)json_integer_value(value));
    else if (json_is_integer(value))
        inspect_int(in, name, json_integer_value(value));
    else if (json_is_real(value))
        inspect_real(in, name, json_real_value(value));
}

/* The last checkpoint. Unless it was saved in checkpoint.fallback, it is named relative to this
 * folder: the run may have been moved or copied since. */
static void print_newest(struct inspection *in, const char *written)
{
    const char *slash = strrchr(written, '/');
    struct text path;
    if (fallback_holds(written)) {
        inspect_string(in, "checkpoint", written);
        return;
    }
    text_init(&path, in->cli->env);
    text_printf(&path, "%s%scheckpoints%s", in->path,
                in->path[strlen(in->path) - 1] == '/' ? "" : "/", slash ? slash : "");
    inspect_string(in, "checkpoint", text_string(&path));
    text_free(&path);
}

static void print_object(struct inspection *in, json_t *object, const char *prefix)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        char name[128];
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "_" : "", key);
        if (json_is_object(value))
            print_object(in, value, name);
        else if (strcmp(name, "checkpoint") == 0 && json_is_string(value))
            print_newest(in, json_string_value(value));
        else if (strcmp(key, "schema") != 0)
            print_value(in, name, value);
    }
}

static enum status print_summary(struct inspection *in)
{
    struct env *env = in->cli->env;
    char *path;
    struct json_doc doc;
    TRY(path_join(env, in->path, "summary.json", &path));
    enum status st = STATUS_OK;
    if (!file_exists(path)) {
        inspect_string(in, "end", "not finished: there is no summary.json");
    } else if ((st = record_open(env, path, &doc)) == STATUS_OK) {
        print_object(in, doc.root, "");
        json_doc_close(&doc);
    }
    mem_free(env, path);
    return st;
}

/* --- metrics.jsonl: the loss curve ---------------------------------------------------------- */

struct history {
    struct curve losses;
    struct plot_point marks[MARKS];
    int mark_count;
    int64_t lines;
};

static bool read_record(void *user, const json_t *record)
{
    struct history *history = user;
    double step = json_number_value(json_object_get(record, "step"));
    const json_t *loss = json_object_get(record, "loss"),
                 *held_out = json_object_get(json_object_get(record, "val"), "loss");
    if (json_is_number(loss))
        curve_add(&history->losses, step, json_number_value(loss));
    if (json_is_number(held_out) && history->mark_count < MARKS)
        history->marks[history->mark_count++] =
            (struct plot_point){step, json_number_value(held_out)};
    history->lines++;
    return true;
}

static enum status print_history(struct inspection *in)
{
    struct env *env = in->cli->env;
    struct history *history;
    char *path;
    enum status st;
    TRY(path_join(env, in->path, "metrics.jsonl", &path));
    if (!file_exists(path)) {
        mem_free(env, path);
        return STATUS_OK;
    }
    TRY_OR(undo_path, mem_alloc(env, MEM_OTHER, "history", sizeof *history, &history));
    st = records_read(env, path, NULL, read_record, history);
    if (st == STATUS_OK)
        inspect_int(in, "records", history->lines);
    if (st == STATUS_OK && !in->json) {
        struct text text;
        text_init(&text, env);
        curve_draw(&history->losses, history->marks, history->mark_count, in->cli->console, &text);
        st = console_print(in->cli->console, &text);
    }
    mem_free(env, history);
undo_path:
    mem_free(env, path);
    return st;
}

/* --- checkpoints ---------------------------------------------------------------------------- */

static enum status print_checkpoints(struct inspection *in)
{
    struct env *env = in->cli->env;
    struct path_list list;
    char *folder, *pattern;
    TRY(path_join(env, in->path, "checkpoints", &folder));
    bool none = dir_is_empty(env, folder);
    enum status st = path_join(env, folder, "step-*", &pattern);
    mem_free(env, folder);
    TRY(st);
    inspect_open_list(in, "checkpoints");
    if (!none && (st = path_glob(env, pattern, &list)) == STATUS_OK) {
        for (int i = 0; i < list.count; i++) {
            if (in->json)
                json_out_string(in->json, NULL, list.paths[i]);
            else
                inspect_string(in, "model", list.paths[i]);
        }
        path_list_free(env, &list);
    }
    inspect_close_list(in);
    mem_free(env, pattern);
    return st;
}

/* The cache of encoded text. */
static enum status print_cache(struct inspection *in)
{
    char *folder, human[32], line[96];
    uint64_t bytes;
    TRY(path_join(in->cli->env, in->path, "cache", &folder));
    int files = token_cache_list(folder, &bytes);
    mem_free(in->cli->env, folder);
    if (files == 0)
        return STATUS_OK;
    if (in->json) {
        inspect_int(in, "cache_bytes", (int64_t)bytes);
        return STATUS_OK;
    }
    snprintf(line, sizeof line, "%s of encoded text in %d file%s; safe to delete",
             text_human_bytes(human, (double)bytes), files, files == 1 ? "" : "s");
    inspect_string(in, "cache", line);
    return STATUS_OK;
}

enum status inspect_run(struct inspection *in)
{
    inspect_string(in, "kind", "run folder");
    TRY(print_summary(in));
    TRY(print_cache(in));
    TRY(print_checkpoints(in));
    return print_history(in);
}
