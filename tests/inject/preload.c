/* preload -- a library for LD_PRELOAD that does for tests/inject/run what strace cannot.
 *
 * Short transfers: the kernel may transfer fewer bytes than asked for, and the caller must then ask
 * for the rest. strace can only replace a call, and the bytes would be missing from the file, which
 * no kernel does. This library makes the call with half of the bytes.
 *
 *     SHORT_TRANSFER="CALL N"   the N-th CALL (read, pread64, write, pwrite64) of the process on a
 *                               file in the folder below, counted over all threads
 *     SHORT_FOLDER=FOLDER       an absolute path
 *     SHORT_RECORD=FILE         created when the call was shortened
 *
 * Counting from main() on: strace counts the calls of each thread, and those of the first thread
 * begin with hundreds of calls of the dynamic loader, which must not fail. So strace attaches when
 * everything is loaded, and main() runs in a child, whose count begins at zero.
 *
 *     INJECT_TRACER="strace ..."   a command for sh, to which -p PID is appended; it must follow
 *                                  forks (-f)
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- counting from main() on ---------------------------------------------------------------- */

static bool is_traced(void)
{
    char line[256];
    int tracer = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "TracerPid: %d", &tracer) == 1)
            break;
    if (file)
        fclose(file);
    return tracer != 0;
}

static pid_t start_tracer(const char *tracer)
{
    char command[8192];
    snprintf(command, sizeof command, "exec %s -p %d", tracer, (int)getpid());
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for Yama: a child may trace its parent */
    pid_t child = fork();
    if (child != 0)
        return child;
    unsetenv("LD_PRELOAD");
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(126);
}

__attribute__((constructor)) static void run_main_in_a_child(void)
{
    const char *tracer = getenv("INJECT_TRACER");
    int how = 0;
    if (!tracer)
        return;
    pid_t strace = start_tracer(tracer);
    unsetenv("INJECT_TRACER"); /* not for processes that the command starts */
    while (!is_traced()) {
        if (strace < 0 || waitpid(strace, NULL, WNOHANG) != 0)
            _exit(126);
        usleep(1000);
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
    waitpid(child, &how, 0);
    kill(strace, SIGTERM); /* strace detaches, and its output is complete */
    waitpid(strace, NULL, 0);
    _exit(WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how));
}

/* --- short transfers ------------------------------------------------------------------------ */

enum call { READ, PREAD, WRITE, PWRITE, CALLS };
static const char *const words[CALLS] = {"read", "pread64", "write", "pwrite64"};

typedef ssize_t (*read_fn)(int, void *, size_t);
typedef ssize_t (*pread_fn)(int, void *, size_t, off_t);
typedef ssize_t (*write_fn)(int, const void *, size_t);
typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);

static bool is_in_folder(int fd)
{
    const char *folder = getenv("SHORT_FOLDER");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    path[bytes > 0 ? bytes : 0] = 0;
    size_t length = folder ? strlen(folder) : 0;
    return folder && strncmp(path, folder, length) == 0 && path[length] == '/';
}

static void record(void)
{
    const char *path = getenv("SHORT_RECORD");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0)
        close(fd);
}

/* How many of `count` bytes this call transfers. */
static size_t part_of(enum call call, int fd, size_t count)
{
    static atomic_int made;
    const char *order = getenv("SHORT_TRANSFER");
    char word[16];
    int number;
    if (!order || sscanf(order, "%15s %d", word, &number) != 2 || strcmp(word, words[call]) != 0 ||
        count < 2 || !is_in_folder(fd) || atomic_fetch_add(&made, 1) + 1 != number)
        return count;
    record();
    size_t half = count / 2;
    /* O_DIRECT transfers whole blocks */
    return count % 512 == 0 && half >= 512 ? half - half % 512 : half;
}

/* dlsym returns an object pointer, which ISO C can turn into a function pointer only by copying its
 * bytes. */
#define FIND(type, variable, name)               \
    type variable;                               \
    do {                                         \
        void *found = dlsym(RTLD_NEXT, name);    \
        memcpy(&variable, &found, sizeof(type)); \
    } while (0)

#define VISIBLE __attribute__((visibility("default")))

VISIBLE ssize_t read(int fd, void *data, size_t count)
{
    FIND(read_fn, next, "read");
    return next(fd, data, part_of(READ, fd, count));
}

VISIBLE ssize_t pread(int fd, void *data, size_t count, off_t at)
{
    FIND(pread_fn, next, "pread");
    return next(fd, data, part_of(PREAD, fd, count), at);
}

VISIBLE ssize_t write(int fd, const void *data, size_t count)
{
    FIND(write_fn, next, "write");
    return next(fd, data, part_of(WRITE, fd, count));
}

VISIBLE ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
    FIND(pwrite_fn, next, "pwrite");
    return next(fd, data, part_of(PWRITE, fd, count), at);
}
