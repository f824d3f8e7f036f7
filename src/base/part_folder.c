/* part_folder -- mkdir, marker, rename. */
#include "base/part_folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/lock_file.h"
#include "base/output.h"

enum { ATTEMPTS = 1000 };

struct part_folder {
    struct env *env; /* borrowed */
    char *path;      /* temporary path; NULL = none, or renamed */
    int number;
    struct lock_file *marker;
};

enum status part_folder_name(struct env *env, const char *stem, int number, char **path)
{
    size_t bytes = strlen(stem) + 16;
    TRY(mem_alloc(env, MEM_OTHER, "path", bytes, path));
    if (number == 1)
        snprintf(*path, bytes, "%s", stem);
    else
        snprintf(*path, bytes, "%s-%d", stem, number);
    return STATUS_OK;
}

/* --- filling a folder ----------------------------------------------------------------------- */

static enum status make_folder(struct part_folder *folder, const char *stem)
{
    struct env *env = folder->env;
    int reason = 0;
    for (folder->number = 1; folder->number <= ATTEMPTS; folder->number++) {
        TRY(part_folder_name(env, stem, folder->number, &folder->path));
        if (output_mkdir(env, folder->path))
            return STATUS_OK;
        reason = errno;
        mem_free(env, folder->path);
        folder->path = NULL;
        if (reason != EEXIST)
            break;
    }
    return FAIL(env, IO, "cannot create folder '%s': %s", stem, strerror(reason));
}

static enum status mark(struct part_folder *folder)
{
    const struct lock_words words = {.writer = "process",
                                     .output = folder->path,
                                     .advice = "leave this folder to sifr",
                                     .quiet = true};
    char *path;
    TRY(path_join(folder->env, folder->path, PART_FOLDER_MARKER, &path));
    enum status st = lock_file_take(folder->env, path, &words, &folder->marker);
    mem_free(folder->env, path);
    return st;
}

enum status part_folder_create(struct env *env, const char *stem, struct part_folder **folder)
{
    struct part_folder *f;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "part folder", sizeof *f, &f));
    *f = (struct part_folder){.env = env};
    TRY_OR(undo_self, make_folder(f, stem));
    TRY_OR(undo_self, mark(f));
    *folder = f;
    return STATUS_OK;
undo_self:
    part_folder_destroy(f);
    return st;
}

const char *part_folder_path(const struct part_folder *folder)
{
    return folder->path;
}

int part_folder_number(const struct part_folder *folder)
{
    return folder->number;
}

/* Removes the marker last. The marker is closed before: on NFS, an open file keeps its folder from
 * being removed. */
static enum status remove_marked(struct env *env, const char *path)
{
    return tree_remove(env, path, NULL, PART_FOLDER_MARKER);
}

void part_folder_destroy(struct part_folder *folder)
{
    if (!folder)
        return;
    struct env *env = folder->env;
    lock_file_leave(folder->marker);
    if (folder->path)
        remove_marked(env, folder->path);
    mem_free(env, folder->path);
    mem_free(env, folder);
}

/* The folder has its final name: nothing is undone from here on. A marker that cannot be removed
 * does no harm. */
static void unmark(struct part_folder *folder, const char *goal)
{
    char *path;
    mem_free(folder->env, folder->path);
    folder->path = NULL;
    if (path_join(folder->env, goal, PART_FOLDER_MARKER, &path) != STATUS_OK)
        return;
    if (lock_file_moved(folder->marker, path) == STATUS_OK) {
        lock_file_release(folder->marker);
        folder->marker = NULL;
    }
    mem_free(folder->env, path);
}

enum status part_folder_commit(struct part_folder *folder, const char *goal)
{
    struct env *env = folder->env;
    TRY(dir_sync(env, folder->path));
    if (!output_rename(env, folder->path, goal))
        return FAIL(env, IO, "cannot rename '%s' to '%s': %s", folder->path, goal, strerror(errno));
    unmark(folder, goal);
    return dir_sync_parent(env, goal);
}

/* --- moving files out ----------------------------------------------------------------------- */

struct move {
    char *from, *to;
    bool moved;
};

static enum status make_move(struct env *env, struct move *move)
{
    move->moved = output_rename_new(env, move->from, move->to);
    /* ENOENT: the file was not created, or `goal` is missing and its sync fails. */
    if (move->moved || errno == ENOENT)
        return STATUS_OK;
    if (errno == EEXIST)
        return FAIL(env, CONFIG, "'%s' exists already and is not overwritten", move->to);
    return FAIL(env, IO, "cannot write '%s': %s", move->to, strerror(errno));
}

enum status part_folder_hand_over(struct part_folder *folder, const char *goal,
                                  const char *const *names, int count)
{
    struct env *env = folder->env;
    struct move *moves;
    TRY(mem_alloc_array(env, MEM_OTHER, "moves", (size_t)count, sizeof *moves, &moves));
    enum status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        st = path_join(env, folder->path, names[i], &moves[i].from);
        if (st == STATUS_OK)
            st = path_join(env, goal, names[i], &moves[i].to);
    }
    for (int i = 0; i < count && st == STATUS_OK; i++)
        st = make_move(env, &moves[i]);
    if (st == STATUS_OK)
        st = dir_sync(env, goal);
    for (int i = count - 1; i >= 0; i--) {
        /* A file that cannot be moved back stays where it is: it is complete. */
        if (st != STATUS_OK && moves[i].moved && !output_rename(env, moves[i].to, moves[i].from))
            log_warn(env, "'%s' is left there: %s", moves[i].to, strerror(errno));
        mem_free(env, moves[i].to);
        mem_free(env, moves[i].from);
    }
    mem_free(env, moves);
    return st;
}

/* --- leftovers ------------------------------------------------------------------------------ */

bool part_folder_is_name(const char *name, const char *stem)
{
    size_t bytes = strlen(stem);
    if (strncmp(name, stem, bytes) != 0)
        return false;
    const char *rest = name + bytes;
    return *rest == '\0' ||
           (*rest == '-' && rest[1] && rest[1 + strspn(rest + 1, "0123456789")] == '\0');
}

void part_folder_tell_left(struct env *env, const char *path)
{
    log_warn(
        env,
        "'%s' is left as it is: it has the name of an unfinished output, and nothing shows that "
        "sifr made it or that it is unused; remove it if you do not need it",
        path);
}

enum status part_folder_clear(struct env *env, const char *path)
{
    char *marker;
    if (path_is_free(path))
        return STATUS_OK;
    if (output_remove_at(env, AT_FDCWD, path, true)) /* it was empty */
        return STATUS_OK;
    TRY(path_join(env, path, PART_FOLDER_MARKER, &marker));
    bool ours = !path_is_link(path) && lock_file_is_left(marker);
    mem_free(env, marker);
    if (ours)
        return remove_marked(env, path);
    part_folder_tell_left(env, path);
    return STATUS_OK;
}

enum status part_folder_clear_all(struct env *env, const char *stem)
{
    enum status st = STATUS_OK;
    char *folder, *path;
    const char *slash = strrchr(stem, '/');
    TRY(path_parent(env, stem, &folder));
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && st == STATUS_OK && (entry = readdir(dir));) {
        if (!part_folder_is_name(entry->d_name, slash ? slash + 1 : stem))
            continue;
        st = slash ? path_join(env, folder, entry->d_name, &path)
                   : mem_strdup(env, entry->d_name, &path);
        if (st != STATUS_OK)
            break;
        st = part_folder_clear(env, path);
        mem_free(env, path);
    }
    if (dir)
        closedir(dir);
    mem_free(env, folder);
    return st;
}
