/* checkpoint_keep -- see the header. */
#include "train/checkpoint_keep.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/input.h"
#include "base/output.h"

enum status checkpoint_keep_path(struct env *env, const char *folder, const char *prefix,
                                 int64_t step, const char *suffix, char **path)
{
    char name[96];
    snprintf(name, sizeof name, "%sstep-%" PRId64 "%s", prefix, step, suffix);
    return path_join(env, folder, name, path);
}

/* --- removing ------------------------------------------------------------------------------- */

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static enum status remove_entry(struct env *env, const char *folder, const char *name)
{
    struct stat info;
    char *path;
    TRY(path_join(env, folder, name, &path));
    enum status st = STATUS_OK;
    if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
        st = checkpoint_keep_remove(env, path);
    else if (!output_remove(env, path) && errno != ENOENT)
        st = FAIL(env, IO, "cannot remove '%s': %s", path, strerror(errno));
    mem_free(env, path);
    return st;
}

enum status checkpoint_keep_remove(struct env *env, const char *path)
{
    enum status st = STATUS_OK;
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? STATUS_OK
                               : FAIL(env, IO, "cannot remove '%s': %s", path, strerror(errno));
    for (const struct dirent *entry; st == STATUS_OK && (entry = readdir(dir));)
        if (!is_dots(entry->d_name))
            st = remove_entry(env, path, entry->d_name);
    closedir(dir);
    if (st == STATUS_OK && !output_remove(env, path))
        st = FAIL(env, IO, "cannot remove '%s': %s", path, strerror(errno));
    return st;
}

static enum status rename_folder(struct env *env, const char *from, const char *to)
{
    if (output_rename(env, from, to))
        return STATUS_OK;
    return FAIL(env, IO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
}

/* --- looking -------------------------------------------------------------------------------- */

/* The N of a folder's name "step-N", -1 for any other name. */
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return *end == '\0' && errno == 0 ? step : -1;
}

struct newest {
    int64_t below, step;
};

static void take_newer(void *user, const char *name)
{
    struct newest *newest = user;
    int64_t found = step_of(name);
    if (found > newest->step && found < newest->below)
        newest->step = found;
}

enum status checkpoint_keep_newest(struct env *env, const char *folder, int64_t below,
                                   int64_t *step)
{
    char reason[128];
    struct newest newest = {.below = below, .step = -1};
    *step = -1;
    if (!input_list(env, folder, take_newer, &newest))
        return errno == ENOENT ? STATUS_OK
                               : FAIL(env, IO, "cannot read the folder '%s': %s", folder,
                                      input_reason(errno, reason, sizeof reason));
    *step = newest.step;
    return STATUS_OK;
}

/* --- keeping -------------------------------------------------------------------------------- */

static bool is_left_over(const char *name)
{
    size_t bytes = strlen(name);
    return strncmp(name, ".old-step-", 10) == 0 ||
           (strncmp(name, ".step-", 6) == 0 && bytes > 4 && strcmp(name + bytes - 4, ".tmp") == 0);
}

enum status checkpoint_keep_clear(struct env *env, const char *folder)
{
    enum status st = STATUS_OK;
    DIR *dir = opendir(folder);
    if (!dir)
        return STATUS_OK;
    for (const struct dirent *entry; st == STATUS_OK && (entry = readdir(dir));)
        if (is_left_over(entry->d_name))
            st = remove_entry(env, folder, entry->d_name);
    closedir(dir);
    return st;
}

static enum status remove_step(struct env *env, const char *folder, int64_t step)
{
    enum status st;
    char *path, *old;
    TRY(checkpoint_keep_path(env, folder, "", step, "", &path));
    TRY_OR(undo_path, checkpoint_keep_path(env, folder, ".old-", step, "", &old));
    TRY_OR(undo_old, checkpoint_keep_remove(env, old)); /* of a removal that was cut short */
    TRY_OR(undo_old, rename_folder(env, path, old));
    st = checkpoint_keep_remove(env, old);
undo_old:
    mem_free(env, old);
undo_path:
    mem_free(env, path);
    return st;
}

enum status checkpoint_keep_prune(struct env *env, const char *folder, int64_t keep, int64_t major)
{
    int64_t step = INT64_MAX, kept = 0;
    for (;;) {
        TRY(checkpoint_keep_newest(env, folder, step, &step));
        if (step < 0)
            return STATUS_OK;
        bool stays = major > 0 && step % major == 0;
        if (kept < keep)
            kept++;
        else if (!stays)
            TRY(remove_step(env, folder, step));
    }
}

static enum status set_aside(struct env *env, const char *folder, int64_t step)
{
    enum status st;
    char *path, *aside = NULL, suffix[32] = ".damaged";
    TRY(checkpoint_keep_path(env, folder, "", step, "", &path));
    TRY_OR(done, checkpoint_keep_path(env, folder, "", step, suffix, &aside));
    for (int n = 2; file_exists(aside); n++) {
        mem_free(env, aside);
        snprintf(suffix, sizeof suffix, ".damaged-%d", n);
        TRY_OR(done, checkpoint_keep_path(env, folder, "", step, suffix, &aside));
    }
    st = rename_folder(env, path, aside);
done:
    mem_free(env, aside);
    mem_free(env, path);
    return st;
}

enum status checkpoint_keep_set_aside(struct env *env, const char *folder, int64_t step)
{
    for (int64_t above = INT64_MAX;;) {
        TRY(checkpoint_keep_newest(env, folder, above, &above));
        if (above <= step)
            return STATUS_OK;
        TRY(set_aside(env, folder, above));
    }
}
