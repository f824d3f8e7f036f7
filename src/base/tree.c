/* tree -- one recursive walk, which either looks for a stranger or removes. */
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/output.h"

struct walk {
    struct env *env;
    tree_member_fn *member; /* NULL = every entry */
    const char *last;       /* entry of the top folder to remove last; NULL = none */
    bool removes;           /* false: look for a stranger */
    char *stranger;
    dev_t device;
    size_t top;                 /* offset in `path` of names relative to the folder */
    char path[TREE_PATH_BYTES]; /* of the current entry */
};

static enum status fail(const struct walk *walk, const char *what, int reason)
{
    return FAIL(walk->env, IO, "cannot %s '%s': %s", what, walk->path, strerror(reason));
}

static enum status walk_folder(struct walk *walk, int folder, size_t bytes);

/* Visit the entry whose path, of `bytes` bytes, is walk->path. */
static enum status visit(struct walk *walk, int folder, const char *name, size_t bytes)
{
    struct stat info;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? STATUS_OK : fail(walk, "look at", errno);
    bool is_folder = S_ISDIR(info.st_mode);
    if (walk->member && !((is_folder || S_ISREG(info.st_mode)) &&
                          walk->member(walk->path + walk->top, is_folder))) {
        if (walk->stranger && !*walk->stranger)
            snprintf(walk->stranger, TREE_PATH_BYTES, "%s", walk->path);
        return STATUS_OK;
    }
    if (is_folder) {
        int below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0)
            return fail(walk, "open", errno);
        TRY(walk_folder(walk, below, bytes));
    }
    if (!walk->removes || (walk->last && strcmp(walk->path + walk->top, walk->last) == 0))
        return STATUS_OK;
    if (output_remove_at(walk->env, folder, name, is_folder) || errno == ENOENT)
        return STATUS_OK;
    return fail(walk, "remove", errno);
}

/* Visit every entry of the open folder, whose path, of `bytes` bytes, is walk->path. Closes it. */
static enum status walk_folder(struct walk *walk, int folder, size_t bytes)
{
    struct stat info;
    DIR *dir = fdopendir(folder);
    if (!dir || fstat(folder, &info) != 0 || info.st_dev != walk->device) {
        int reason = !dir ? errno : EXDEV;
        if (dir)
            closedir(dir);
        else
            close(folder);
        return fail(walk, "open", reason);
    }
    enum status st = STATUS_OK;
    for (const struct dirent *entry; st == STATUS_OK && (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int more = snprintf(walk->path + bytes, sizeof walk->path - bytes, "/%s", entry->d_name);
        st = (size_t)more < sizeof walk->path - bytes
                 ? visit(walk, folder, entry->d_name, bytes + (size_t)more)
                 : fail(walk, "open", ENAMETOOLONG);
        walk->path[bytes] = '\0';
    }
    closedir(dir);
    return st;
}

/* *folder = -1 when it does not exist. */
static enum status open_top(struct walk *walk, const char *path, int *folder)
{
    struct stat info;
    int bytes = snprintf(walk->path, sizeof walk->path, "%s", path);
    *folder = -1;
    if ((size_t)bytes + 1 >= sizeof walk->path)
        return fail(walk, "open", ENAMETOOLONG);
    walk->top = (size_t)bytes + 1;
    *folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*folder < 0)
        return errno == ENOENT ? STATUS_OK : fail(walk, "open the folder", errno);
    if (fstat(*folder, &info) != 0) {
        int reason = errno;
        close(*folder);
        return fail(walk, "open the folder", reason);
    }
    walk->device = info.st_dev;
    return STATUS_OK;
}

enum status tree_find_stranger(struct env *env, const char *path, tree_member_fn *member,
                               char stranger[TREE_PATH_BYTES])
{
    struct walk walk = {.env = env, .member = member, .stranger = stranger};
    int folder;
    *stranger = '\0';
    TRY(open_top(&walk, path, &folder));
    return folder < 0 ? STATUS_OK : walk_folder(&walk, folder, walk.top - 1);
}

/* Remove `last`, then the folder itself, which is empty now. */
static enum status remove_rest(struct walk *walk, const char *path, int folder)
{
    if (walk->last && !output_remove_at(walk->env, folder, walk->last, false) && errno != ENOENT) {
        snprintf(walk->path, sizeof walk->path, "%s/%s", path, walk->last);
        return fail(walk, "remove", errno);
    }
    if (output_remove_at(walk->env, AT_FDCWD, path, true) || errno == ENOENT)
        return STATUS_OK;
    return fail(walk, "remove", errno);
}

enum status tree_remove(struct env *env, const char *path, tree_member_fn *member, const char *last)
{
    struct walk walk = {.env = env, .member = member, .last = last, .removes = true};
    int folder;
    TRY(open_top(&walk, path, &folder));
    if (folder < 0)
        return STATUS_OK;
    int below = fcntl(folder, F_DUPFD_CLOEXEC, 0);
    enum status st =
        below < 0 ? fail(&walk, "open", errno) : walk_folder(&walk, below, walk.top - 1);
    if (st == STATUS_OK)
        st = remove_rest(&walk, path, folder);
    close(folder);
    return st;
}
