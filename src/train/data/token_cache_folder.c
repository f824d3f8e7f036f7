/* token_cache_folder.c -- the folder of token caches: its lock and its files.
 *
 * A token cache is recognized by its name and its first bytes. Nothing else in the folder is ever
 * moved or removed, and symbolic links are not followed.
 */
#include "train/data/token_cache.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

/* --- the lock ------------------------------------------------------------------------------- */

enum status token_cache_lock(struct env *env, const char *folder, int *fd)
{
    struct env quiet;
    char *path;
    int failed;
    *fd = -1;
    TRY(token_cache_quiet(env, &quiet));
    enum status st = token_cache_blame(env, &quiet, dir_create(&quiet, folder));
    log_destroy(quiet.log);
    if (st == STATUS_MEMORY) /* the writer reports any other failure */
        return st;
    TRY(path_join(env, folder, "lock", &path));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    mem_free(env, path);
    do
        failed = *fd >= 0 ? flock(*fd, LOCK_EX) : 0;
    while (failed != 0 && errno == EINTR);
    return STATUS_OK;
}

void token_cache_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* --- recognizing token caches --------------------------------------------------------------- */

static bool is_hash(const char *text)
{
    return strspn(text, "0123456789abcdef") >= 16;
}

static bool is_ours(int folder, const char *name, uint64_t *bytes)
{
    char magic[sizeof TOKEN_CACHE_MAGIC - 1];
    struct stat info;
    /* "tokens-0123456789abcdef-0123456789abcdef.bin" */
    if (strlen(name) != 44 || strncmp(name, "tokens-", 7) != 0 || !is_hash(name + 7) ||
        name[23] != '-' || !is_hash(name + 24) || strcmp(name + 40, ".bin") != 0)
        return false;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ours = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
                memcmp(magic, TOKEN_CACHE_MAGIC, sizeof magic) == 0;
    *bytes = ours ? (uint64_t)info.st_size : 0;
    close(fd);
    return ours;
}

/* Called for every token cache in the folder. */
typedef void visit_fn(void *user, int folder, const char *name, uint64_t bytes);

static void visit(const char *folder, visit_fn *each, void *user)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    uint64_t bytes;
    if (!dir)
        return;
    while ((entry = readdir(dir)))
        if (is_ours(dirfd(dir), entry->d_name, &bytes))
            each(user, dirfd(dir), entry->d_name, bytes);
    closedir(dir);
}

/* --- the files ------------------------------------------------------------------------------ */

struct kept {
    const struct token_cache_key *keys;
    int count;
};

static void remove_other(void *user, int folder, const char *name, uint64_t bytes)
{
    const struct kept *kept = user;
    char own[64];
    (void)bytes;
    for (int i = 0; i < kept->count; i++) {
        snprintf(own, sizeof own, TOKEN_CACHE_NAME, kept->keys[i].text, kept->keys[i].how);
        if (strcmp(own, name) == 0)
            return;
    }
    unlinkat(folder, name, 0);
}

void token_cache_prune(const char *folder, const struct token_cache_key *keys, int key_count)
{
    struct kept kept = {keys, key_count};
    visit(folder, remove_other, &kept);
}

void token_cache_discard(const char *folder)
{
    struct kept none = {0};
    struct stat info;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    visit(folder, remove_other, &none);
    if (fstatat(fd, "lock", &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
        info.st_size == 0)
        unlinkat(fd, "lock", 0);
    close(fd);
    rmdir(folder); /* fails if the folder is not empty */
}

static void move_one(void *user, int folder, const char *name, uint64_t bytes)
{
    const int *to = user;
    (void)bytes;
    renameat(folder, name, *to, name);
}

void token_cache_move(struct env *env, const char *from, const char *to)
{
    uint64_t bytes;
    if (token_cache_list(from, &bytes) == 0 || dir_create(env, to) != STATUS_OK)
        return;
    int fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    visit(from, move_one, &fd);
    close(fd);
}

struct listing {
    int count;
    uint64_t bytes;
};

static void add_one(void *user, int folder, const char *name, uint64_t bytes)
{
    struct listing *listing = user;
    (void)folder, (void)name;
    listing->count++;
    listing->bytes += bytes;
}

int token_cache_list(const char *folder, uint64_t *bytes)
{
    struct listing listing = {0};
    visit(folder, add_one, &listing);
    *bytes = listing.bytes;
    return listing.count;
}
