#include "cli/page/run_watch.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json_doc.h"
#include "train/checkpoint/config_lines.h"

enum {
    WHOLE_BYTES = 1 << 20, /* of a file that is read as a whole */
    SAMPLE_BYTES = 16 << 10,
    CHECKPOINTS = 256,
    TRACE_SPANS = 12000,
    SILENT_SECONDS = 600,
};
static const struct json_rules RULES = {.values = 100000, .lists = 10000};

/* --- columns -------------------------------------------------------------------------------- */

enum { STEP, TOKENS, LOSS, RATE_FIRST, HIDDEN = RATE_FIRST + 14, MEMORY, SENT, COLUMNS };
static const char *const names[COLUMNS] = {
    "step",
    "tokens",
    "loss",
    "grad_norm",
    "lr",
    "seconds",
    "tokens_per_second",
    "mfu",
    "clock_mhz",
    "power_w",
    "temperature_c",
    "batch",
    "loss_scale",
    "noise_scale",
    "resident",
    "gpu_bytes",
    "host_bytes",
    "hidden",
    "memory",
    "sent",
};
static const char *const evaluation_names[] = {"step", "loss", "tokens"};
enum { EVALUATION_COLUMNS = sizeof evaluation_names / sizeof *evaluation_names };

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The share of communication time in which the rank did not wait. */
static double share_hidden(const json_t *comm)
{
    double in_flight = number(comm, "in_flight"), waited = number(comm, "waited");
    if (!(in_flight > 0) || isnan(waited))
        return NAN;
    return waited < in_flight ? 1 - waited / in_flight : 0;
}

static double sum_of(const json_t *object, const char *const *keys)
{
    double sum = NAN;
    for (; *keys; keys++) {
        double value = number(object, *keys);
        if (!isnan(value))
            sum = isnan(sum) ? value : sum + value;
    }
    return sum;
}

static double sum_all(json_t *object)
{
    double sum = NAN;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (json_is_number(value))
            sum = json_number_value(value) + (isnan(sum) ? 0 : sum);
    }
    return sum;
}

/* --- lines ---------------------------------------------------------------------------------- */

static void restart_steps(void *user)
{
    struct run_watch *watch = user;
    series_clear(&watch->steps);
    series_clear(&watch->evaluations);
    watch->skipped = 0;
    watch->generation++;
}

/* False: it is no record of a step. */
static bool take_record(struct run_watch *watch, json_t *record)
{
    static const char *const purposes[] = {"gather", "reduce",  "muon", "pipe",
                                           "tensor", "control", NULL};
    double values[COLUMNS];
    json_t *comm = json_object_get(record, "comm");
    for (int c = 0; c < HIDDEN; c++)
        values[c] = number(record, names[c]);
    if (isnan(values[STEP]))
        return false;
    values[HIDDEN] = share_hidden(comm);
    values[MEMORY] = sum_all(json_object_get(record, "mem"));
    values[SENT] = sum_of(comm, purposes);
    watch->generation += series_add(&watch->steps, values);
    const json_t *val = json_object_get(record, "val");
    double evaluation[EVALUATION_COLUMNS] = {values[STEP], number(val, "loss"),
                                             number(val, "tokens")};
    if (isfinite(evaluation[1]))
        watch->generation += series_add(&watch->evaluations, evaluation);
    double ranks = number(comm, "ranks");
    int now = ranks >= 1 && ranks <= 65536 ? (int)ranks : 1;
    if (now != watch->ranks) {
        watch->ranks = now;
        text_clear(&watch->layout);
    }
    return true;
}

static void take_step(void *user, char *line, size_t bytes)
{
    struct run_watch *watch = user;
    struct json_doc doc;
    if (json_doc_open(watch->env, line, bytes, &RULES, &doc) != STATUS_OK) {
        watch->skipped++;
        return;
    }
    if (json_is_object(doc.root) && take_record(watch, doc.root)) {
        text_clear(&watch->last);
        text_add_bytes(&watch->last, line, bytes);
    } else {
        watch->skipped++;
    }
    json_doc_close(&doc);
}

static void restart_samples(void *user)
{
    struct run_watch *watch = user;
    watch->text_count = 0;
}

static void take_sample(void *user, char *line, size_t bytes)
{
    struct run_watch *watch = user;
    struct text *text = &watch->texts[watch->text_count % RUN_SAMPLES];
    if (bytes > SAMPLE_BYTES || line[0] != '{' || !json_scan_is_valid(line, bytes))
        return;
    text_clear(text);
    text_add_bytes(text, line, bytes);
    watch->text_count++;
}

/* --- files that are read as a whole --------------------------------------------------------- */

enum whole { WHOLE_CONFIG, WHOLE_SUMMARY, WHOLE_CHECKPOINTS, WHOLE_LOCK, WHOLE_TRACES };
static const char *const whole_names[] = {"config.yaml", "summary.json", "checkpoints", "lock"};

/* Changes whenever the file does; 0 = there is none. */
static int64_t stamp_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return 0;
    return (int64_t)(info.st_mtim.tv_sec * 1000003 + info.st_mtim.tv_nsec) ^
           ((int64_t)info.st_size << 20) ^ (int64_t)info.st_ino;
}

static bool set_stamp(struct run_watch *watch, enum whole file, int64_t stamp)
{
    bool changed = stamp != watch->stamps[file];
    watch->stamps[file] = stamp;
    return changed;
}

/* The caller frees *path. */
static bool has_changed(struct run_watch *watch, enum whole file, char **path)
{
    if (path_join(watch->env, watch->folder, whole_names[file], path) != STATUS_OK) {
        *path = NULL;
        return false;
    }
    return set_stamp(watch, file, stamp_of(*path));
}

static char *read_whole(struct run_watch *watch, const char *path, size_t *bytes)
{
    char *text;
    if (!file_exists(path) || file_read(watch->env, path, WHOLE_BYTES, &text, bytes) != STATUS_OK)
        return NULL;
    return text;
}

/* [["model.layers","4"], ...] */
static void print_config(struct env *env, const char *yaml, struct text *out)
{
    struct text lines;
    const char *before = "[";
    text_init(&lines, env);
    config_lines(yaml, NULL, &lines);
    for (const char *line = text_string(&lines), *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        const char *colon = memmem(line, (size_t)(end - line), ": ", 2);
        if (!colon)
            continue;
        text_printf(out, "%s[", before);
        before = ",";
        text_json_string(out, line, (size_t)(colon - line));
        text_add(out, ",");
        text_json_string(out, colon + 2, (size_t)(end - colon - 2));
        text_add(out, "]");
    }
    text_add(out, *before == '[' ? "[]" : "]");
    text_free(&lines);
}

static void look_at_config(struct run_watch *watch, const char *path)
{
    size_t bytes;
    char *yaml = read_whole(watch, path, &bytes);
    text_clear(&watch->config);
    text_clear(&watch->layout);
    if (yaml)
        print_config(watch->env, yaml, &watch->config);
    mem_free(watch->env, yaml);
}

static void look_at_summary(struct run_watch *watch, const char *path)
{
    size_t bytes;
    char *json = read_whole(watch, path, &bytes);
    text_clear(&watch->summary);
    if (json && json[strspn(json, " \t\r\n")] == '{' && json_scan_is_valid(json, bytes))
        text_add_bytes(&watch->summary, json, bytes);
    mem_free(watch->env, json);
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Complete checkpoints have their final name, step-N. */
static void look_at_checkpoints(struct run_watch *watch, const char *path)
{
    int64_t steps[CHECKPOINTS];
    int count = 0;
    DIR *folder = opendir(path);
    text_clear(&watch->checkpoints);
    for (struct dirent *entry; folder && (entry = readdir(folder)) && count < CHECKPOINTS;) {
        char *end;
        if (strncmp(entry->d_name, "step-", 5) != 0)
            continue;
        steps[count] = strtoll(entry->d_name + 5, &end, 10);
        count += *end == 0 && end > entry->d_name + 5;
    }
    if (folder)
        closedir(folder);
    qsort(steps, (size_t)count, sizeof *steps, by_step);
    text_add(&watch->checkpoints, "[");
    for (int i = 0; i < count; i++)
        text_printf(&watch->checkpoints, "%s%" PRId64, i ? "," : "", steps[i]);
    text_add(&watch->checkpoints, "]");
}

/* The layout needs the configuration and the number of ranks, which the first record has. */
static bool look_at_layout(struct run_watch *watch)
{
    char *path, *yaml = NULL;
    size_t bytes;
    if (watch->layout.bytes > 0 || watch->ranks == 0 || watch->stamps[WHOLE_CONFIG] == 0)
        return false;
    if (path_join(watch->env, watch->folder, "config.yaml", &path) == STATUS_OK) {
        yaml = read_whole(watch, path, &bytes);
        mem_free(watch->env, path);
    }
    run_layout_print(watch->env, yaml ? yaml : "", watch->ranks, &watch->layout);
    mem_free(watch->env, yaml);
    return true;
}

/* The ranks write their files at different times. */
static bool look_at_traces(struct run_watch *watch)
{
    int64_t stamp = 0;
    char path[4096];
    for (int rank = 0; rank < watch->ranks && rank < RUN_TRACED; rank++) {
        snprintf(path, sizeof path, "%s/trace-rank-%d.json", watch->folder, rank);
        stamp += (rank + 1) * stamp_of(path);
    }
    if (!set_stamp(watch, WHOLE_TRACES, stamp))
        return false;
    text_clear(&watch->trace);
    run_trace_print(watch->env, watch->folder, watch->ranks, TRACE_SPANS, &watch->trace);
    return true;
}

/* --- is it alive? --------------------------------------------------------------------------- */

/* The lock file has the process and the host of the run (base/lock_file.h). It is read, not locked:
 * a lock taken here, even for a moment, could refuse a run that starts. */
static enum run_state look_at_lock(struct run_watch *watch, const char *path, char *words,
                                   size_t room)
{
    char host[65] = "", here[65] = "";
    struct stat info;
    size_t bytes;
    int pid = 0;
    char *text = read_whole(watch, path, &bytes);
    if (text)
        sscanf(text, "%d %64s", &pid, host);
    mem_free(watch->env, text);
    gethostname(here, sizeof here - 1);
    if (pid > 0 && strcmp(host, here) == 0) {
        bool lives = kill(pid, 0) == 0 || errno == EPERM;
        snprintf(words, room, lives ? "process %d" : "process %d has ended without a summary", pid);
        return lives ? RUN_ACTIVE : RUN_DIED;
    }
    bool recent =
        stat(watch->metrics.path, &info) == 0 && time(NULL) - info.st_mtime < SILENT_SECONDS;
    snprintf(words, room, "on %s", *host ? host : "another machine");
    return recent ? RUN_ACTIVE : RUN_SILENT;
}

static bool look_at_state(struct run_watch *watch)
{
    char words[sizeof watch->state_words] = "", *path;
    enum run_state state = RUN_WAITING;
    if (!dir_exists(watch->folder)) /* moved or deleted: what is known stays */
        return false;
    has_changed(watch, WHOLE_LOCK, &path);
    if (path && watch->stamps[WHOLE_LOCK] != 0)
        state = look_at_lock(watch, path, words, sizeof words);
    else if (watch->summary.bytes > 0)
        state = RUN_ENDED;
    else if (watch->steps.rows > 0)
        state = RUN_DIED;
    mem_free(watch->env, path);
    if (state == watch->state && strcmp(words, watch->state_words) == 0)
        return false;
    watch->state = state;
    memcpy(watch->state_words, words, sizeof words);
    return true;
}

/* --- the watch ------------------------------------------------------------------------------ */

enum status run_watch_open(struct env *env, const char *folder, struct run_watch *watch)
{
    enum status st;
    *watch = (struct run_watch){.env = env, .state = RUN_WAITING};
    struct text *const all[] = {&watch->last,   &watch->config, &watch->summary,
                                &watch->layout, &watch->trace,  &watch->checkpoints};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        text_init(all[i], env);
    for (int i = 0; i < RUN_SAMPLES; i++)
        text_init(&watch->texts[i], env);
    TRY_OR(undo, mem_strdup(env, folder, &watch->folder));
    TRY_OR(undo, path_join(env, folder, "metrics.jsonl", &watch->metrics.path));
    TRY_OR(undo, path_join(env, folder, "samples.jsonl", &watch->samples.path));
    TRY_OR(undo, series_create(env, names, COLUMNS, &watch->steps));
    TRY_OR(undo, series_create(env, evaluation_names, EVALUATION_COLUMNS, &watch->evaluations));
    return STATUS_OK;
undo:
    run_watch_close(watch);
    return st;
}

void run_watch_close(struct run_watch *watch)
{
    struct text *const all[] = {&watch->last,   &watch->config, &watch->summary,
                                &watch->layout, &watch->trace,  &watch->checkpoints};
    if (watch->env == NULL)
        return;
    series_free(&watch->evaluations);
    series_free(&watch->steps);
    mem_free(watch->env, watch->samples.path);
    mem_free(watch->env, watch->metrics.path);
    mem_free(watch->env, watch->folder);
    for (int i = 0; i < RUN_SAMPLES; i++)
        text_free(&watch->texts[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        text_free(all[i]);
    *watch = (struct run_watch){0};
}

static int64_t skipped_lines(const struct run_watch *watch)
{
    return watch->skipped + watch->metrics.long_lines;
}

bool run_watch_look(struct run_watch *watch)
{
    char *path;
    int64_t skipped = skipped_lines(watch);
    bool changed = line_tail_read(watch->env, &watch->metrics, take_step, restart_steps, watch);
    bool about = line_tail_read(watch->env, &watch->samples, take_sample, restart_samples, watch);
    about = about || skipped_lines(watch) != skipped;
    static void (*const looks[])(struct run_watch *,
                                 const char *) = {[WHOLE_CONFIG] = look_at_config,
                                                  [WHOLE_SUMMARY] = look_at_summary,
                                                  [WHOLE_CHECKPOINTS] = look_at_checkpoints};
    for (int file = 0; file <= WHOLE_CHECKPOINTS; file++) {
        if (has_changed(watch, (enum whole)file, &path)) {
            looks[file](watch, path);
            about = true;
        }
        mem_free(watch->env, path);
    }
    about = look_at_layout(watch) || about;
    about = look_at_traces(watch) || about;
    about = look_at_state(watch) || about;
    watch->version += about;
    return changed || about;
}

/* --- printing ------------------------------------------------------------------------------- */

static void print_series(const struct series *series, int64_t most, struct text *text)
{
    if (most > 0)
        series_print_most(series, most, text);
    else
        series_print(series, 0, text);
}

void run_watch_series(const struct run_watch *watch, int64_t most, struct text *text)
{
    text_printf(text,
                "{\"generation\":%" PRId64 ",\"version\":%" PRId64 ",\"steps\":", watch->generation,
                watch->version);
    print_series(&watch->steps, most, text);
    text_add(text, ",\"evaluations\":");
    print_series(&watch->evaluations, most, text);
    text_add(text, "}");
}

/* The last row may have grown, so it is sent again. */
static int64_t last_complete(const struct series *series)
{
    return series->rows > 0 && series->in_last < series->stride ? series->rows - 1 : series->rows;
}

void run_watch_news(struct run_watch *watch, struct text *text)
{
    text_printf(text,
                "{\"generation\":%" PRId64 ",\"version\":%" PRId64 ",\"steps\":", watch->generation,
                watch->version);
    series_print(&watch->steps, watch->sent_rows, text);
    text_add(text, ",\"evaluations\":");
    series_print(&watch->evaluations, watch->sent_evaluations, text);
    text_printf(text, ",\"last\":%s}", watch->last.bytes ? text_string(&watch->last) : "null");
    watch->sent_rows = last_complete(&watch->steps);
    watch->sent_evaluations = last_complete(&watch->evaluations);
}

static void add_json(struct text *text, const char *key, const struct text *json)
{
    text_printf(text, ",\"%s\":", key);
    text_add(text, json->bytes ? text_string(json) : "null");
}

void run_watch_about(const struct run_watch *watch, struct text *text)
{
    static const char *const words[] = {"waiting", "running", "silent", "died", "ended"};
    int64_t first = watch->text_count > RUN_SAMPLES ? watch->text_count - RUN_SAMPLES : 0;
    text_add(text, "{\"folder\":");
    text_json_string(text, watch->folder, strlen(watch->folder));
    text_printf(text,
                ",\"version\":%" PRId64 ",\"ranks\":%d,\"state\":\"%s\",\"words\":", watch->version,
                watch->ranks, words[watch->state]);
    text_json_string(text, watch->state_words, strlen(watch->state_words));
    add_json(text, "last", &watch->last);
    add_json(text, "config", &watch->config);
    add_json(text, "summary", &watch->summary);
    add_json(text, "checkpoints", &watch->checkpoints);
    text_add(text, ",\"samples\":[");
    for (int64_t i = first; i < watch->text_count; i++)
        text_printf(text, "%s%s", i > first ? "," : "",
                    text_string(&watch->texts[i % RUN_SAMPLES]));
    text_printf(text, "],\"skipped\":%" PRId64 ",\"has_layout\":%s,\"has_trace\":%s}",
                skipped_lines(watch), watch->layout.bytes ? "true" : "false",
                watch->trace.bytes > 4 ? "true" : "false");
}
