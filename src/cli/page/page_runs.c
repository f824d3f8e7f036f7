/* page_runs -- the runs that were named on the command line, and the child process of a run. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/named.h"
#include "cli/page/page.h"

static bool holds(struct env *env, const char *folder, const char *name, struct timespec *when)
{
    char *path;
    if (path_join(env, folder, name, &path) != STATUS_OK)
        return false;
    struct stat info;
    bool found = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    mem_free(env, path);
    if (found)
        *when = info.st_mtim;
    return found;
}

/* *when: its last record, or its beginning */
static bool is_run(struct env *env, const char *folder, struct timespec *when)
{
    return holds(env, folder, "metrics.jsonl", when) || holds(env, folder, "config.yaml", when);
}

static enum status add(struct page_runs *runs, const char *folder)
{
    CHECK(runs->count < PAGE_MOST_RUNS);
    TRY(run_watch_open(&runs->env, folder, &runs->watches[runs->count]));
    runs->count++;
    return STATUS_OK;
}

/* --- the newest runs of a folder -------------------------------------------------------------- */

struct found {
    const char *path; /* borrowed */
    struct timespec when;
};

static int by_age(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->when.tv_sec != y->when.tv_sec)
        return x->when.tv_sec < y->when.tv_sec ? 1 : -1;
    if (x->when.tv_nsec != y->when.tv_nsec)
        return x->when.tv_nsec < y->when.tv_nsec ? 1 : -1;
    return strcmp(x->path, y->path);
}

static int by_name(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return strcmp(x->path, y->path);
}

static enum status add_newest(struct env *env, struct page_runs *runs, int room,
                              const struct path_list *list)
{
    struct found *found;
    int count = 0;
    enum status st = STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "runs", (size_t)list->count, sizeof *found, &found));
    for (int i = 0; i < list->count; i++) {
        struct timespec when;
        if (is_run(env, list->paths[i], &when))
            found[count++] = (struct found){list->paths[i], when};
    }
    qsort(found, (size_t)count, sizeof *found, by_age);
    if (count > room) {
        runs->left_out += count - room;
        count = room;
    }
    qsort(found, (size_t)count, sizeof *found, by_name);
    for (int i = 0; i < count && st == STATUS_OK; i++)
        st = add(runs, found[i].path);
    mem_free(env, found);
    return st;
}

static enum status add_matches(struct env *env, struct page_runs *runs, int room,
                               const char *pattern)
{
    struct path_list list;
    TRY(path_glob(env, pattern, &list));
    enum status st = list.count > 0 ? add_newest(env, runs, room, &list) : STATUS_OK;
    path_list_free(env, &list);
    return st;
}

/* The runs in a folder that is none itself, such as runs/. */
static enum status add_inside(struct env *env, struct page_runs *runs, int room, const char *folder)
{
    enum status st = STATUS_OK;
    char *pattern;
    int before = runs->count;
    TRY(path_join(env, folder, "*", &pattern));
    if (dir_exists(folder) && !dir_is_empty(env, folder))
        st = add_matches(env, runs, room, pattern);
    mem_free(env, pattern);
    if (st == STATUS_OK && runs->count == before)
        return FAIL(env, CONFIG,
                    "'%s' is not a run folder: it has no config.yaml and no metrics.jsonl, and no "
                    "folder inside it has; name the folder that `sifr train` wrote",
                    folder);
    return st;
}

static void ignore(void *user, enum log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

enum status page_runs_open(struct env *env, const char *const *paths, int count, bool waits,
                           struct page_runs *runs)
{
    CHECK(count <= PAGE_MOST_RUNS);
    *runs = (struct page_runs){.env = *env};
    runs->env.log = log_create(ignore, NULL, LOG_ERROR);
    if (runs->env.log == NULL)
        return FAIL(env, MEMORY, "out of memory");
    for (int i = 0; i < count; i++) {
        if (!waits)
            TRY(path_exists(env, "", paths[i]));
        int room = PAGE_MOST_RUNS - runs->count - (count - i - 1); /* one for each later path */
        struct timespec when;
        if (waits || is_run(env, paths[i], &when))
            TRY(add(runs, paths[i]));
        else
            TRY(add_inside(env, runs, room, paths[i]));
    }
    return STATUS_OK;
}

const char *page_runs_left_out(const struct page_runs *runs, char words[PAGE_WORDS])
{
    *words = 0;
    if (runs->left_out > 0)
        snprintf(words, PAGE_WORDS,
                 "the %d newest runs are shown, %d older %s not; to choose, name the runs",
                 runs->count, runs->left_out, runs->left_out == 1 ? "is" : "are");
    return words;
}

void page_runs_close(struct page_runs *runs)
{
    for (int i = 0; i < runs->count; i++)
        run_watch_close(&runs->watches[i]);
    log_destroy(runs->env.log);
    *runs = (struct page_runs){0};
}

/* --- the child of a run --------------------------------------------------------------------- */

/* A session of its own: Ctrl-C in the terminal is for the run, and the page shows how it ends. */
enum status page_start(struct cli *cli, const char *folder, const char *address)
{
    char program[4096], listen[512];
    struct page_address parsed;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    sigset_t none;
    pid_t pid;
    TRY(page_check(cli->env));
    if (!*address || !page_address_parse(address, &parsed))
        return FAIL(cli->env, USAGE,
                    "--page=%s is not an address; write --page, --page=8080 or --page=HOST:8080, "
                    "where HOST is an IP address of this machine",
                    address);
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes < 0)
        return FAIL(cli->env, IO, "cannot find the executable of sifr: %s", strerror(errno));
    program[bytes] = 0;
    snprintf(listen, sizeof listen, "--listen=%s", address);
    char *argv[] = {program, "page", "--child", listen, "--", (char *)folder, NULL};
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    int error = posix_spawn(&pid, program, &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return error == 0 ? STATUS_OK
                      : FAIL(cli->env, IO, "cannot start the page server: %s", strerror(error));
}
