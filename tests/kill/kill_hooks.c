/* kill_hooks -- part of sifr_faults (tests/faults/fault_hooks.c): sends SIGKILL at the n-th call of
 * a kind that writes, renames or removes files, and records what a run has done so far.
 *
 *     KILL="WHO RANK CALL N WHEN"
 *         WHO   rank: this process; launcher: the supervisor that started it, or this process if
 *               there is none; mpirun: the process between the two
 *         RANK  the rank that sends the signal, at its N-th CALL (open, write_at, reserve, sync,
 *               close, rename, mkdir, unlink, rmdir; publish: a rename to step-N; retire: a rename
 *               to .old-step-N); ranks that are threads count as rank 0
 *         WHEN  before, after, or half: after half of a write
 *     KILL_RECORD=PATH
 *         PATH        a line "complete N" for each checkpoint that got its final name, and a line
 *                     "killed CALL WHEN PATH"
 *         PATH.fired  exists once the signal was sent: it is sent once, also when ranks restart
 *         PATH.R      what rank R is doing: "PID step 3, block 0 forward", for kills from outside
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/output.h"
#include "cli/rank_report.h"
#include "comm/comm.h"
#include "comm/launcher.h"

enum { PATH_BYTES = 4096 };
enum call {
    OPEN,
    WRITE_AT,
    RESERVE,
    SYNC,
    CLOSE,
    RENAME,
    MKDIR,
    UNLINK,
    RMDIR,
    PUBLISH,
    RETIRE,
    CALLS
};
static const char *const call_words[CALLS] = {"open",  "write_at", "reserve", "sync",
                                              "close", "rename",   "mkdir",   "unlink",
                                              "rmdir", "publish",  "retire"};
static atomic_int counts[CALLS];

/* --- the record ----------------------------------------------------------------------------- */

static int own_rank(void)
{
    struct launcher launcher;
    return launcher_find(&launcher) ? launcher.rank : 0;
}

static void record(const char *line)
{
    const char *path = getenv("KILL_RECORD");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (file < 0)
        return;
    ssize_t written = write(file, line, strlen(line));
    (void)written;
    close(file);
}

void kill_hooks_note(const char *what);
void kill_hooks_note(const char *what)
{
    static atomic_int file = -1;
    char path[PATH_BYTES], line[160];
    const char *prefix = getenv("KILL_RECORD");
    if (!prefix)
        return;
    if (atomic_load(&file) < 0) {
        snprintf(path, sizeof path, "%s.%d", prefix, own_rank());
        atomic_store(&file, open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    }
    snprintf(line, sizeof line, "%d %-96.96s\n", (int)getpid(), what);
    ssize_t written = pwrite(atomic_load(&file), line, strlen(line), 0);
    (void)written;
}

/* True once in all attempts of a run. */
static bool is_first(void)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s.fired", getenv("KILL_RECORD"));
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0)
        close(file);
    return file >= 0;
}

/* --- the kill ------------------------------------------------------------------------------- */

struct order {
    char who[16], call[16], when[16];
    int rank, number;
};

static bool find_order(struct order *order)
{
    const char *text = getenv("KILL");
    return text && sscanf(text, "%15s %d %15s %d %15s", order->who, &order->rank, order->call,
                          &order->number, order->when) == 5;
}

static pid_t find_victim(const char *who)
{
    int pid = 0;
    const char *address = getenv(RANK_REPORT_VARIABLE);
    const char *path = address ? strchr(address, ' ') : NULL;
    if (strcmp(who, "mpirun") == 0 && path)
        return getppid();
    if (strcmp(who, "launcher") == 0 && path && sscanf(path, " /proc/%d/", &pid) == 1)
        return pid;
    return getpid();
}

/* Is this call, the `number`-th of its kind, the one to strike at? */
static bool strikes(enum call call, int number, const char *when)
{
    struct order order;
    return find_order(&order) && order.number == number &&
           strcmp(order.call, call_words[call]) == 0 && strcmp(order.when, when) == 0 &&
           order.rank == own_rank();
}

static void strike(enum call call, int number, const char *when, const char *path)
{
    struct order order;
    char line[PATH_BYTES];
    if (!strikes(call, number, when) || !find_order(&order) || !is_first())
        return;
    snprintf(line, sizeof line, "killed %s %s %.3000s\n", order.call, when, path);
    record(line);
    kill(find_victim(order.who), SIGKILL);
}

static int begin(enum call call, const char *path)
{
    int number = atomic_fetch_add(&counts[call], 1) + 1;
    strike(call, number, "before", path);
    return number;
}

static const char *path_of(int fd, char *room)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, room, PATH_BYTES - 1);
    room[bytes > 0 ? bytes : 0] = 0;
    return room;
}

/* --- calls ---------------------------------------------------------------------------------- */

bool __real_output_open(struct env *env, const char *path, int flags, int *fd);
bool __wrap_output_open(struct env *env, const char *path, int flags, int *fd);
bool __wrap_output_open(struct env *env, const char *path, int flags, int *fd)
{
    int number = begin(OPEN, path);
    bool done = __real_output_open(env, path, flags, fd);
    strike(OPEN, number, "after", path);
    return done;
}

bool __real_output_write_at(struct env *env, int fd, uint64_t at, const void *data, size_t bytes);
bool __wrap_output_write_at(struct env *env, int fd, uint64_t at, const void *data, size_t bytes);
bool __wrap_output_write_at(struct env *env, int fd, uint64_t at, const void *data, size_t bytes)
{
    char room[PATH_BYTES];
    int number = begin(WRITE_AT, path_of(fd, room));
    size_t half = strikes(WRITE_AT, number, "half") ? bytes / 2 : 0;
    bool done = __real_output_write_at(env, fd, at, data, half);
    strike(WRITE_AT, number, "half", room);
    done =
        done && __real_output_write_at(env, fd, at + half, (const char *)data + half, bytes - half);
    strike(WRITE_AT, number, "after", room);
    return done;
}

bool __real_output_reserve(struct env *env, int fd, uint64_t bytes);
bool __wrap_output_reserve(struct env *env, int fd, uint64_t bytes);
bool __wrap_output_reserve(struct env *env, int fd, uint64_t bytes)
{
    char room[PATH_BYTES];
    int number = begin(RESERVE, path_of(fd, room));
    bool done = __real_output_reserve(env, fd, bytes);
    strike(RESERVE, number, "after", room);
    return done;
}

bool __real_output_sync(struct env *env, int fd);
bool __wrap_output_sync(struct env *env, int fd);
bool __wrap_output_sync(struct env *env, int fd)
{
    char room[PATH_BYTES];
    int number = begin(SYNC, path_of(fd, room));
    bool done = __real_output_sync(env, fd);
    strike(SYNC, number, "after", room);
    return done;
}

bool __real_output_close(struct env *env, int fd);
bool __wrap_output_close(struct env *env, int fd);
bool __wrap_output_close(struct env *env, int fd)
{
    char room[PATH_BYTES];
    int number = begin(CLOSE, path_of(fd, room));
    bool done = __real_output_close(env, fd);
    strike(CLOSE, number, "after", room);
    return done;
}

/* The N of a name PREFIX N; -1 = the name has another form. */
static int step_of(const char *path, const char *prefix)
{
    const char *name = strrchr(path, '/');
    int step, used = 0;
    if (!name || strncmp(name + 1, prefix, strlen(prefix)) != 0)
        return -1;
    name += 1 + strlen(prefix);
    return sscanf(name, "%d%n", &step, &used) == 1 && name[used] == 0 ? step : -1;
}

/* Record that a checkpoint got its final name and so is complete. */
static void note_complete(int step)
{
    char line[64];
    snprintf(line, sizeof line, "complete %d\n", step);
    record(line);
}

bool __real_output_rename(struct env *env, const char *from, const char *to);
bool __wrap_output_rename(struct env *env, const char *from, const char *to);
bool __wrap_output_rename(struct env *env, const char *from, const char *to)
{
    int complete = step_of(to, "step-"), old = step_of(to, ".old-step-");
    enum call kind = complete >= 0 ? PUBLISH : old >= 0 ? RETIRE : RENAME;
    int number = begin(kind, to);
    bool done = __real_output_rename(env, from, to);
    if (done && complete >= 0)
        note_complete(complete);
    strike(kind, number, "after", to);
    return done;
}

bool __real_output_mkdir(struct env *env, const char *path);
bool __wrap_output_mkdir(struct env *env, const char *path);
bool __wrap_output_mkdir(struct env *env, const char *path)
{
    int number = begin(MKDIR, path);
    bool done = __real_output_mkdir(env, path);
    strike(MKDIR, number, "after", path);
    return done;
}

bool __real_output_remove_at(struct env *env, int folder, const char *name, bool is_folder);
bool __wrap_output_remove_at(struct env *env, int folder, const char *name, bool is_folder);
bool __wrap_output_remove_at(struct env *env, int folder, const char *name, bool is_folder)
{
    char room[PATH_BYTES], path[2 * PATH_BYTES];
    enum call kind = is_folder ? RMDIR : UNLINK;
    if (folder == AT_FDCWD)
        snprintf(path, sizeof path, "%s", name);
    else
        snprintf(path, sizeof path, "%s/%s", path_of(folder, room), name);
    int number = begin(kind, path);
    bool done = __real_output_remove_at(env, folder, name, is_folder);
    strike(kind, number, "after", path);
    return done;
}
