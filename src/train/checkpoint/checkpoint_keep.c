/* checkpoint_keep -- names, ownership, cleanup, and removal of old checkpoints. */
#include "train/checkpoint/checkpoint_keep.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/input.h"
#include "base/lock_file.h"
#include "base/output.h"
#include "base/part_folder.h"
#include "train/checkpoint/checkpoint_write.h"

enum status checkpoint_keep_path(struct env *env, const char *folder, const char *prefix,
                                 int64_t step, const char *suffix, char **path)
{
    char name[96];
    snprintf(name, sizeof name, "%sstep-%" PRId64 "%s", prefix, step, suffix);
    return path_join(env, folder, name, path);
}

/* --- listing -------------------------------------------------------------------------------- */

/* The N of a folder name "step-N"; -1 for any other name. */
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9' ||
        (name[5] == '0' && name[6] != '\0')) /* "step-07" is not the name of step 7 */
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

enum status checkpoint_keep_newest_of(struct env *env, const char *folder, const char *second,
                                      int64_t below, int64_t *step, bool *apart)
{
    int64_t other = -1;
    bool again = below < INT64_MAX && !*apart; /* `second` may have the same step */
    TRY(checkpoint_keep_newest(env, folder, below, step));
    if (second)
        TRY(checkpoint_keep_newest(env, second, again ? below + 1 : below, &other));
    *apart = other > *step;
    *step = *apart ? other : *step;
    return STATUS_OK;
}

/* --- ownership ------------------------------------------------------------------------------ */

static bool is_member(const char *name, bool is_folder)
{
    if (is_folder)
        return strcmp(name, "optimizer") == 0;
    return strcmp(name, "state.json") == 0 || strcmp(name, "COMPLETE") == 0 ||
           strcmp(name, PART_FOLDER_MARKER) == 0 || checkpoint_list_is_plain(name) ||
           checkpoint_layout_is_name(name);
}

/* Did sifr write the checkpoint? */
static bool is_own(const char *path)
{
    struct stat info;
    char text[CHECKPOINT_MARKER + 1] = "";
    bool ours = false;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return false;
    int file = openat(folder, "COMPLETE", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0) {
        ours = fstat(file, &info) == 0 && S_ISREG(info.st_mode) &&
               pread(file, text, sizeof text - 1, 0) > 0 && checkpoint_marker_is(text);
        close(file);
    }
    close(folder);
    return ours;
}

enum status checkpoint_keep_newest_own(struct env *env, const char *folder, int64_t *step)
{
    bool own = false;
    for (*step = INT64_MAX; !own && *step >= 0;) {
        char *path;
        TRY(checkpoint_keep_newest(env, folder, *step, step));
        if (*step < 0)
            break;
        TRY(checkpoint_keep_path(env, folder, "", *step, "", &path));
        own = is_own(path);
        mem_free(env, path);
    }
    return STATUS_OK;
}

/* Fail if the folder is not ours or contains a foreign entry. */
static enum status check_own(struct env *env, const char *path)
{
    char stranger[TREE_PATH_BYTES];
    if (!is_own(path))
        return FAIL(env, CONFIG, "'%s' is kept: it is %s", path,
                    path_is_link(path) ? "a symbolic link, and not a checkpoint that sifr wrote"
                                       : "not a checkpoint that sifr wrote completely");
    TRY(tree_find_stranger(env, path, is_member, stranger));
    if (!*stranger)
        return STATUS_OK;
    return FAIL(
        env, CONFIG,
        "'%s' is kept: '%s' in it is not part of the checkpoint; move that file elsewhere to "
        "have old checkpoints removed",
        path, stranger + strlen(path) + 1);
}

static enum status remove_own(struct env *env, const char *path)
{
    return tree_remove(env, path, is_member, "COMPLETE");
}

/* --- leftovers ------------------------------------------------------------------------------ */

/* Is the name PREFIX N SUFFIX, or that followed by a number such as "-2"? */
static bool is_numbered(const char *name, const char *prefix, const char *suffix)
{
    char stem[64];
    size_t digits = strncmp(name, prefix, strlen(prefix)) == 0
                        ? strspn(name + strlen(prefix), "0123456789")
                        : 0;
    snprintf(stem, sizeof stem, "%.*s%s", (int)(strlen(prefix) + digits), name, suffix);
    return digits > 0 && digits < 20 && part_folder_is_name(name, stem);
}

/* Remove a checkpoint whose removal was interrupted. */
static enum status clear_old(struct env *env, const char *path)
{
    char stranger[TREE_PATH_BYTES];
    if (!is_own(path))
        return part_folder_clear(env, path);
    TRY(tree_find_stranger(env, path, is_member, stranger));
    if (!*stranger)
        return remove_own(env, path);
    part_folder_tell_left(env, path);
    return STATUS_OK;
}

/* Remove the marker of a process that was killed after it renamed the folder to step-N and before
 * it removed the marker. */
static enum status clear_marker(struct env *env, const char *path)
{
    char *marker;
    TRY(path_join(env, path, PART_FOLDER_MARKER, &marker));
    if (!path_is_link(path) && lock_file_is_left(marker) &&
        !output_remove_at(env, AT_FDCWD, marker, false))
        log_debug(env, "cannot remove '%s': %s", marker, strerror(errno));
    mem_free(env, marker);
    return STATUS_OK;
}

enum status checkpoint_keep_clear(struct env *env, const char *folder)
{
    enum status st = STATUS_OK;
    DIR *dir = opendir(folder);
    if (!dir)
        return STATUS_OK;
    for (const struct dirent *entry; st == STATUS_OK && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        char *path;
        TRY_OR(done, path_join(env, folder, name, &path));
        if (is_numbered(name, ".step-", ".tmp"))
            st = part_folder_clear(env, path);
        else if (is_numbered(name, ".old-step-", ""))
            st = clear_old(env, path);
        else if (step_of(name) >= 0)
            st = clear_marker(env, path);
        mem_free(env, path);
    }
done:
    closedir(dir);
    return st;
}

/* --- keeping -------------------------------------------------------------------------------- */

/* Rename step-N to {PREFIX}step-N{SUFFIX}, or, if that exists, to the first free name with -2, -3,
 * ... appended. The caller frees *to with mem_free. */
static enum status rename_free(struct env *env, const char *folder, int64_t step,
                               const char *prefix, const char *suffix, char **to)
{
    enum status st;
    char *path, numbered[32];
    TRY(checkpoint_keep_path(env, folder, "", step, "", &path));
    TRY_OR(undo_path, checkpoint_keep_path(env, folder, prefix, step, suffix, to));
    for (int n = 2; !path_is_free(*to); n++) {
        mem_free(env, *to);
        snprintf(numbered, sizeof numbered, "%s-%d", suffix, n);
        TRY_OR(undo_path, checkpoint_keep_path(env, folder, prefix, step, numbered, to));
    }
    if (!output_rename(env, path, *to)) {
        st = FAIL(env, IO, "cannot rename '%s' to '%s': %s", path, *to, strerror(errno));
        mem_free(env, *to);
    }
undo_path:
    mem_free(env, path);
    return st;
}

static enum status remove_step(struct env *env, const char *folder, int64_t step)
{
    char *path, *old;
    TRY(checkpoint_keep_path(env, folder, "", step, "", &path));
    enum status st = check_own(env, path);
    mem_free(env, path);
    TRY(st);
    TRY(rename_free(env, folder, step, ".old-", "", &old));
    st = remove_own(env, old);
    mem_free(env, old);
    return st;
}

enum status checkpoint_keep_prune(struct env *env, const char *folder, int64_t keep, int64_t major)
{
    int64_t step = INT64_MAX, kept = 0;
    enum status st = STATUS_OK;
    for (;;) {
        char *path;
        TRY(checkpoint_keep_newest(env, folder, step, &step));
        if (step < 0)
            return st;
        if (kept < keep) {
            /* Links and foreign folders do not count: what a user has put there must not cause the
             * removal of a checkpoint. */
            TRY(checkpoint_keep_path(env, folder, "", step, "", &path));
            kept += is_own(path);
            mem_free(env, path);
            continue;
        }
        if (major > 0 && step % major == 0)
            continue;
        enum status removed = remove_step(env, folder, step);
        if (removed != STATUS_OK && removed != STATUS_CONFIG) /* CONFIG: it is kept; continue */
            return removed;
        st = st == STATUS_OK ? removed : st;
    }
}

/* Fail if anything called step-N above `step` is not a real folder: only those may be renamed. */
static enum status check_folders(struct env *env, const char *folder, int64_t step)
{
    for (int64_t above = INT64_MAX;;) {
        struct stat info;
        char *path;
        TRY(checkpoint_keep_newest(env, folder, above, &above));
        if (above <= step)
            return STATUS_OK;
        TRY(checkpoint_keep_path(env, folder, "", above, "", &path));
        enum status st = STATUS_OK;
        if (lstat(path, &info) == 0 && !S_ISDIR(info.st_mode))
            st = FAIL(env, CONFIG,
                      "'%s' is not a folder that sifr made, and the run needs that name after step "
                      "%" PRId64 "; move it elsewhere",
                      path, step);
        mem_free(env, path);
        TRY(st);
    }
}

enum status checkpoint_keep_set_aside(struct env *env, const char *folder, int64_t step)
{
    TRY(check_folders(env, folder, step));
    for (int64_t above = INT64_MAX;;) {
        char *aside;
        TRY(checkpoint_keep_newest(env, folder, above, &above));
        if (above <= step)
            return STATUS_OK;
        TRY(rename_free(env, folder, above, "", ".damaged", &aside));
        mem_free(env, aside);
    }
}
