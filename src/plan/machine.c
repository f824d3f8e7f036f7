/* machine -- loads, merges and saves profiles of machines. */
#include "plan/machine.h"
#include <string.h>
#include "base/file.h"
#include "plan/machine_file.h"

const char *machine_preset_name(int index)
{
    return index < machine_preset_count ? machine_presets[index].name : NULL;
}

static const struct machine_preset *find_preset(const char *name)
{
    for (int i = 0; i < machine_preset_count; i++)
        if (strcmp(machine_presets[i].name, name) == 0)
            return &machine_presets[i];
    return NULL;
}

const char *machine_preset_words(const char *name)
{
    const struct machine_preset *preset = find_preset(name);
    return preset ? preset->words : "";
}

static enum status load_file(struct env *env, const char *path, struct machine_profile *profile)
{
    char *data;
    size_t bytes;
    TRY(file_read(env, path, MACHINE_FILE_BYTES, &data, &bytes));
    enum status st = machine_file_parse(env, data, bytes, path, profile);
    mem_free(env, data);
    return st;
}

static enum status refuse_name(struct env *env, const char *name)
{
    struct text text;
    text_init(&text, env);
    for (int i = 0; i < machine_preset_count; i++)
        text_printf(&text, "%s%s", i ? ", " : "", machine_presets[i].name);
    enum status st = FAIL(env, CONFIG,
                          "unknown machine '%s', and no such file; use %s, or measure one "
                          "with sifr bench ops --save=FILE and sifr bench comm -n 2 --save=FILE",
                          name, text_string(&text));
    text_free(&text);
    return st;
}

/* A file that was named as a profile and is none is a configuration error. */
static enum status load_named(struct env *env, const char *path, struct machine_profile *profile)
{
    enum status st = load_file(env, path, profile);
    return st == STATUS_IO || st == STATUS_FORMAT ? STATUS_CONFIG : st;
}

enum status machine_profile_load(struct env *env, const char *name_or_path,
                                 struct machine_profile *profile)
{
    *profile = (struct machine_profile){0};
    const struct machine_preset *preset = find_preset(name_or_path);
    if (preset)
        return machine_preset_profile(env, preset, profile);
    if (!strchr(name_or_path, '/') && !file_exists(name_or_path))
        return refuse_name(env, name_or_path);
    return load_named(env, name_or_path, profile);
}

static enum status check_kind(struct env *env, const char *path, bool there, bool here)
{
    if (there == here)
        return STATUS_OK;
    return FAIL(
        env, CONFIG,
        "'%s' is the profile of a machine that computes on %s, unlike this one; use another file",
        path, there ? "GPUs" : "the CPU");
}

enum status machine_profile_check(struct env *env, const char *path, const bool *gpu)
{
    struct machine_profile old;
    if (!file_exists(path))
        return file_check_parent(env, path);
    TRY(load_named(env, path, &old)); /* by path only: a name of a preset is a file name here */
    enum status st = gpu ? check_kind(env, path, old.gpu, *gpu) : STATUS_OK;
    machine_profile_free(env, &old);
    return st == STATUS_OK ? file_check_parent(env, path) : st;
}

static bool has_call(const struct ops_prices *prices, const struct ops_measured *call)
{
    for (int i = 0; i < prices->measured_count; i++)
        if (prices->measured[i].type == call->type &&
            ops_case_equal(&prices->measured[i].shape, &call->shape))
            return true;
    return false;
}

/* The calls of `new`, and those calls of `old` that are not among them. The caller frees *calls. */
static enum status join_calls(struct env *env, const struct ops_prices *new,
                              const struct ops_prices *old, struct ops_measured **calls, int *count)
{
    size_t room = (size_t) new->measured_count + (size_t)old->measured_count;
    TRY(mem_alloc_array(env, MEM_OTHER, "measured calls", room + 1, sizeof **calls, calls));
    *count = 0;
    for (int i = 0; i < new->measured_count; i++)
        (*calls)[(*count)++] = new->measured[i];
    for (int i = 0; i < old->measured_count && *count < MACHINE_FILE_CALLS; i++)
        if (!has_call(new, &old->measured[i]))
            (*calls)[(*count)++] = old->measured[i];
    return STATUS_OK;
}

/* Copy to `all` what it lacks and `old` has. */
static void merge_missing(const struct machine_profile *old, struct machine_profile *all)
{
    if (!all->has_ops && old->has_ops) {
        all->ops = old->ops;
        all->copy_bytes_per_second = old->copy_bytes_per_second;
        all->ops_ranks = old->ops_ranks;
        all->offload = old->offload;
        all->has_ops = true;
    }
    if (!all->has_comm && old->has_comm) {
        all->comm = old->comm;
        all->comm_ranks = old->comm_ranks;
        all->has_comm = true;
    }
    if (all->memory_bytes == 0)
        all->memory_bytes = old->memory_bytes;
}

/* All calls of a file should have been measured with the same number of ranks and threads. */
static void warn_mixed(struct env *env, const struct machine_profile *old,
                       const struct machine_profile *new, int kept, const char *path)
{
    const struct machine_ranks *a = &old->ops_ranks, *b = &new->ops_ranks;
    if (kept == 0 || a->ranks == 0 || (a->ranks == b->ranks && a->threads == b->threads))
        return;
    log_warn(env,
             "%d call%s in '%s' not measured again: measured with %d rank%s x %d thread%s, not "
             "%d x %d; use another file for these",
             kept, kept == 1 ? "" : "s", path, a->ranks, a->ranks == 1 ? "" : "s", a->threads,
             a->threads == 1 ? "" : "s", b->ranks, b->threads);
}

enum status machine_profile_save(struct env *env, const struct machine_profile *profile,
                                 const char *path)
{
    struct machine_profile old = {0}, all = *profile;
    struct ops_measured *calls = NULL;
    struct text text;
    int count = 0;
    enum status st = STATUS_OK;
    text_init(&text, env);
    if (file_exists(path)) {
        TRY_OR(undo, load_file(env, path, &old));
        TRY_OR(undo, check_kind(env, path, old.gpu, profile->gpu));
    }
    merge_missing(&old, &all);
    TRY_OR(undo, join_calls(env, &all.ops, &old.ops, &calls, &count));
    all.ops.measured = calls;
    all.ops.measured_count = count;
    machine_file_print(&all, &text);
    TRY_OR(undo, file_write_text(env, path, &text));
    if (profile->has_ops)
        warn_mixed(env, &old, profile, count - profile->ops.measured_count, path);
undo:
    text_free(&text);
    mem_free(env, calls);
    machine_profile_free(env, &old);
    return st;
}

void machine_profile_free(struct env *env, struct machine_profile *profile)
{
    mem_free(env, profile->ops.measured);
    *profile = (struct machine_profile){0};
}
