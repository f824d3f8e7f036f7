/* machine -- see the header. What is in a file is in machine_file.c, the presets in
 * machine_presets.c. */
#include "plan/machine.h"
#include <string.h>
#include "base/file.h"
#include "plan/machine_file.h"
#include "plan/machine_presets.h"

const char *machine_preset_name(int index)
{
    return index < machine_preset_count ? machine_presets[index].name : NULL;
}

const char *machine_preset_words(int index)
{
    return index < machine_preset_count ? machine_presets[index].words : NULL;
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
    enum status st =
        FAIL(env, CONFIG,
             "there is no machine '%s', and no such file; there are: %s, or measure one "
             "with sifr bench ops --save=FILE and sifr bench comm --save=FILE",
             name, text_string(&text));
    text_free(&text);
    return st;
}

enum status machine_profile_load(struct env *env, const char *name_or_path,
                                 struct machine_profile *profile)
{
    *profile = (struct machine_profile){0};
    for (int i = 0; i < machine_preset_count; i++) {
        if (strcmp(machine_presets[i].name, name_or_path) == 0)
            return machine_preset_profile(env, &machine_presets[i], profile);
    }
    if (!strchr(name_or_path, '/') && !file_exists(name_or_path))
        return refuse_name(env, name_or_path);
    return load_file(env, name_or_path, profile);
}

/* What is in the file of the half that is not to be written. */
static enum status merge(struct env *env, const struct machine_profile *profile,
                         struct machine_profile *old, const char *path)
{
    *old = (struct machine_profile){0};
    if (!file_exists(path))
        return STATUS_OK;
    TRY(load_file(env, path, old));
    if (old->card == profile->card)
        return STATUS_OK;
    machine_profile_free(env, old);
    return FAIL(env, CONFIG,
                "'%s' is of a machine that computes on %s, and this is another; give another file",
                path, profile->card ? "the CPU" : "cards");
}

enum status machine_profile_save(struct env *env, const struct machine_profile *profile,
                                 const char *path)
{
    struct machine_profile old, all = *profile;
    struct text text;
    TRY(merge(env, profile, &old, path));
    if (!all.has_ops && old.has_ops) {
        all.ops = old.ops;
        all.copy_bytes_per_second = old.copy_bytes_per_second;
        all.has_ops = true;
    }
    if (!all.has_comm && old.has_comm) {
        all.comm = old.comm;
        all.has_comm = true;
    }
    if (all.memory_bytes == 0)
        all.memory_bytes = old.memory_bytes;
    text_init(&text, env);
    machine_file_print(&all, &text);
    enum status st = text.status;
    if (st == STATUS_OK)
        st = file_write_atomic(env, path, text.data, text.bytes);
    text_free(&text);
    machine_profile_free(env, &old);
    return st;
}

void machine_profile_free(struct env *env, struct machine_profile *profile)
{
    mem_free(env, profile->ops.measured);
    *profile = (struct machine_profile){0};
}
