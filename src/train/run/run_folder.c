/* run_folder -- nothing that was there is ever written over or removed. */
#include "train/run/run_folder.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/run/line_file.h"
#include "train/data/token_cache.h"

/* Is there a file or folder `name` in the folder? */
static enum status has(struct env *env, const char *path, const char *name, bool *found)
{
    char *inside;
    TRY(path_join(env, path, name, &inside));
    *found = file_exists(inside);
    mem_free(env, inside);
    return STATUS_OK;
}

/* Did sifr make a run here? One begins with metrics.jsonl, before any other file of its own, and
 * has it until the lines are set aside; a copied one may have its checkpoints only. */
static enum status is_ours(struct env *env, const char *path, bool *ours)
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
    st = checkpoint_keep_newest(env, inside, INT64_MAX, &step);
    mem_free(env, inside);
    *ours = st == STATUS_OK && step >= 0;
    return st;
}

/* Files that are somebody's own, and that a run would write over or be taken for a part of. */
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
    TRY(is_ours(env, path, found));
    if (*found)
        return STATUS_OK;
    TRY(refuse_others(env, path));
    return has(env, path, "checkpoints", found);
}

/* Bytes of the path without slashes at its end. */
static size_t name_end(const char *path)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    return bytes;
}

/* "." and ".." have no name beside which there could be another. */
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

static enum status move_lock(struct env *env, const char *folder, struct lock_file *lock)
{
    char *path;
    TRY(path_join(env, folder, "lock", &path));
    enum status st = lock_file_moved(lock, path);
    mem_free(env, path);
    return st;
}

/* Tokens of text are no part of a run: they stay for the next one, which may have them mapped. */
static enum status keep_cache(struct env *env, const char *old, const char *path)
{
    char *from = NULL, *to = NULL;
    enum status st;
    TRY_OR(done, path_join(env, old, "cache", &from));
    TRY_OR(done, path_join(env, path, "cache", &to));
    token_cache_move(env, from, to);
done:
    mem_free(env, to);
    mem_free(env, from);
    return st;
}

/* Rename DIR to the first DIR.n that is free; `old` gets that name, and the lock moves with it. */
static enum status move_aside(struct env *env, const char *path, struct lock_file *lock,
                              struct text *old)
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
            st = move_lock(env, text_string(old), lock);
            break;
        }
        st = FAIL(env, IO, "cannot move '%s' to '%s': %s", path, text_string(old), strerror(errno));
    }
    return st;
}

/* Known now, not after hours of training: also that there is room for as much as config.yaml. */
static enum status check_writable(struct env *env, const char *path)
{
    char *probe;
    TRY(path_join(env, path, "config.yaml", &probe));
    enum status st = file_check_parent(env, probe);
    mem_free(env, probe);
    return st;
}

enum status run_folder_check(struct env *env, const char *path, bool fresh, bool *holds)
{
    TRY(run_lock_check(env, path));
    TRY(holds_run(env, path, holds));
    return *holds && fresh ? check_name(env, path) : STATUS_OK;
}

static enum status begin_again(struct env *env, const char *path, struct lock_file **lock)
{
    struct text old;
    enum status st;
    text_init(&old, env);
    TRY_OR(done, move_aside(env, path, *lock, &old));
    TRY_OR(done, dir_create(env, path));
    st = keep_cache(env, text_string(&old), path);
    lock_file_release(*lock);
    *lock = NULL;
    TRY_OR(done, st);
    st = run_lock_take(env, path, lock);
done:
    text_free(&old);
    return st;
}

/* The folder is ours: nobody else comes or goes while the earlier run is moved. */
static enum status settle(struct env *env, const char *path, bool fresh, struct lock_file **lock)
{
    bool found;
    TRY(holds_run(env, path, &found));
    if (found && fresh) {
        TRY(check_name(env, path));
        TRY(begin_again(env, path, lock));
    }
    return check_writable(env, path);
}

enum status run_folder_prepare(struct env *env, const char *path, bool fresh,
                               struct lock_file **lock)
{
    struct lock_file *held = NULL;
    struct dir_made made;
    TRY(run_lock_check(env, path));
    enum status st = dir_make(env, path, &made);
    if (st == STATUS_OK)
        st = run_lock_take(env, path, &held);
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
