/* run_folder -- never overwrites or removes existing files. */
#include "train/run/run_folder.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/run/line_file.h"
#include "train/data/token_cache.h"

/* Lock the folder. If `lock` is NULL, only check that no other run has locked it and that DIR/lock is
 * not somebody else's file. */
static enum status lock_folder(struct env *env, const char *folder, struct lock_file **lock)
{
    const struct lock_words words = {
        .writer = "run", .output = folder, .advice = "choose another folder with --out"};
    char *path;
    TRY(path_join(env, folder, "lock", &path));
    enum status st =
        lock ? lock_file_take(env, path, &words, lock) : lock_file_check(env, path, &words);
    mem_free(env, path);
    return st;
}

/* Does the folder contain a file or folder `name`? */
static enum status has(struct env *env, const char *path, const char *name, bool *found)
{
    char *inside;
    TRY(path_join(env, path, name, &inside));
    enum status st = file_find(env, inside, found);
    mem_free(env, inside);
    return st;
}

/* Does the folder contain a run of sifr? A run creates metrics.jsonl before its other files, and it
 * is later at most renamed to metrics.jsonl.1. A copied run may have only checkpoints; `proven`
 * demands that sifr wrote one of them. */
static enum status is_ours(struct env *env, const char *path, bool proven, bool *ours)
{
    static const char *const names[] = {"metrics.jsonl", "metrics.jsonl.1"};
    enum status st = STATUS_OK;
    int64_t step;
    char *inside;
    *ours = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !*ours; i++) {
        TRY(path_join(env, path, names[i], &inside));
        st = line_file_is_ours(env, inside, ours);
        mem_free(env, inside);
        TRY(st);
    }
    if (*ours)
        return STATUS_OK;
    TRY(path_join(env, path, "checkpoints", &inside));
    st = proven ? checkpoint_keep_newest_own(env, inside, &step)
                : checkpoint_keep_newest(env, inside, INT64_MAX, &step);
    mem_free(env, inside);
    *ours = st == STATUS_OK && step >= 0;
    return st;
}

/* Reject a folder with files of the user that a run would overwrite, or that would be mistaken for
 * part of the run. */
static enum status refuse_others(struct env *env, const char *path)
{
    static const char *const names[] = {"config.yaml",   "summary.json", "metrics.jsonl",
                                        "samples.jsonl", "config.json",  "model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool found;
        TRY(has(env, path, names[i], &found));
        if (found)
            return FAIL(env, CONFIG,
                        "there is a '%s' in '%s' that is not of a run, and nothing is overwritten; "
                        "choose another folder with --out",
                        names[i], path);
    }
    return STATUS_OK;
}

static enum status holds_run(struct env *env, const char *path, bool *found)
{
    TRY(is_ours(env, path, false, found));
    if (*found)
        return STATUS_OK;
    TRY(refuse_others(env, path));
    return has(env, path, "checkpoints", found);
}

/* --fresh renames the whole folder, so it must hold a run and not merely look like one. */
static enum status check_proof(struct env *env, const char *path)
{
    bool ours;
    TRY(is_ours(env, path, true, &ours));
    if (ours)
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "'%s' has a folder 'checkpoints' but no run of sifr, and --fresh moves only runs "
                "aside; choose another folder with --out",
                path);
}

/* The length of the path without trailing slashes. */
static size_t name_end(const char *path)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    return bytes;
}

/* "." and ".." cannot be renamed to NAME.1. */
static enum status check_name(struct env *env, const char *path)
{
    size_t end = name_end(path), begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (end - begin > 2 || end - begin != strspn(path + begin, "."))
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "--fresh cannot move the run in '%s' aside by that name; give the folder's own, as "
                "in --out=../NAME, or choose another --out",
                path);
}

/* Rename DIR to the first free DIR.n; `old` receives that name. */
static enum status move_aside(struct env *env, const char *path, struct text *old)
{
    enum status st = STATUS_OK;
    size_t bytes = name_end(path);
    for (int n = 1; st == STATUS_OK; n++) {
        text_clear(old);
        text_add_bytes(old, path, bytes);
        text_printf(old, ".%d", n);
        st = old->status;
        if (st != STATUS_OK || !path_is_free(text_string(old)))
            continue;
        if (rename(path, text_string(old)) == 0) {
            log_info(env, "the earlier run in '%s' is now in '%s'", path, text_string(old));
            break;
        }
        st = FAIL(env, IO, "cannot move '%s' to '%s': %s", path, text_string(old), strerror(errno));
    }
    return st;
}

enum status run_folder_check(struct env *env, const char *path, bool fresh, bool *holds)
{
    TRY(lock_folder(env, path, NULL));
    TRY(holds_run(env, path, holds));
    if (!*holds || !fresh)
        return STATUS_OK;
    TRY(check_name(env, path));
    return check_proof(env, path);
}

/* Move an earlier run aside and create the folder anew, with its lock. */
static enum status begin_again(struct env *env, const char *path, struct lock_file **lock)
{
    struct text old;
    char *moved = NULL, *from = NULL, *to = NULL;
    enum status st;
    text_init(&old, env);
    TRY_OR(done, move_aside(env, path, &old));
    TRY_OR(done, path_join(env, text_string(&old), "lock", &moved));
    TRY_OR(done, lock_file_moved(*lock, moved));
    TRY_OR(done, dir_create(env, path));
    /* Cached tokens do not belong to one run: move them to the new folder for the next run, which
     * may already have them mapped. */
    TRY_OR(done, path_join(env, text_string(&old), "cache", &from));
    TRY_OR(done, path_join(env, path, "cache", &to));
    token_cache_move(env, from, to);
    lock_file_release(*lock);
    *lock = NULL;
    st = lock_folder(env, path, lock);
done:
    mem_free(env, to);
    mem_free(env, from);
    mem_free(env, moved);
    text_free(&old);
    return st;
}

/* Called with the lock held, so no other run can interfere while the earlier run is moved. */
static enum status settle(struct env *env, const char *path, bool fresh, struct lock_file **lock)
{
    bool found;
    char *probe;
    TRY(holds_run(env, path, &found));
    if (found && fresh) {
        TRY(check_name(env, path));
        TRY(check_proof(env, path));
        TRY(begin_again(env, path, lock));
    }
    /* Report now, not after hours of training, if the folder is not writable or has no room even
     * for config.yaml. */
    TRY(path_join(env, path, "config.yaml", &probe));
    enum status st = file_check_parent(env, probe);
    mem_free(env, probe);
    return st;
}

enum status run_folder_prepare(struct env *env, const char *path, bool fresh,
                               struct lock_file **lock)
{
    struct lock_file *held = NULL;
    struct dir_made made;
    TRY(lock_folder(env, path, NULL));
    enum status st = dir_make(env, path, &made);
    if (st == STATUS_OK)
        st = lock_folder(env, path, &held);
    if (st == STATUS_OK)
        st = settle(env, path, fresh, &held);
    if (st == STATUS_OK) {
        *lock = held;
        return STATUS_OK;
    }
    lock_file_release(held);
    dir_unmake(env, path, &made);
    return st;
}
