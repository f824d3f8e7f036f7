/* start -- checks that there is memory for OpenBLAS before it is initialized.
 *
 * When it is loaded, OpenBLAS starts a thread for each processor, or allocates a buffer for itself,
 * and retries for ever when memory is short: the command would hang before main, or at exit.
 * Functions in .preinit_array run before the constructors of libraries. libc is not initialized
 * yet, so only system calls are allowed here. When memory is short, or the size of the process is
 * limited, the command executes itself again with one OpenBLAS thread; it does not use the others,
 * and their buffers would count towards the limit. When there is not enough memory even for one
 * buffer, it reports that and exits.
 */
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/status.h"
#include "ops/ops.h"

#define ALONE "OPENBLAS_NUM_THREADS=1"

enum { MOST_VARIABLES = 4096 };

/* Returns when execve fails; the command then continues as it is. */
static void start_again(char *const *argv, char *const *environment, int count)
{
    char *longer[MOST_VARIABLES];
    if (count + 2 > MOST_VARIABLES)
        return;
    longer[0] = ALONE; /* of two settings of a variable the first one counts */
    memcpy(longer + 1, environment, ((size_t)count + 1) * sizeof *longer);
    /* by its path if it still has one: the kernel would name the process `exe` */
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0) {
        path[length] = '\0';
        execve(path, argv, longer);
    }
    execve("/proc/self/exe", argv, longer);
}

static bool is_limited(void)
{
    struct rlimit space = {.rlim_cur = RLIM_INFINITY}, data = space;
    getrlimit(RLIMIT_AS, &space);
    getrlimit(RLIMIT_DATA, &data);
    return space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY;
}

static void check_memory(int argc, char *const *argv, char *const *environment)
{
    static const char words[] =
        "sifr: error: out of memory: the BLAS library needs a buffer of up to 128 "
        "MiB and the system refuses it; raise the memory limit (ulimit -v, "
        "vm.overcommit_memory)\n";
    cpu_set_t set;
    int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    bool alone = false;
    int count = 0;
    (void)argc;
    if (!is_limited() && mem_is_there((size_t)processors * OPS_BLAS_BUFFER_BYTES))
        return;
    for (; environment[count] != NULL; count++)
        alone = alone || strcmp(environment[count], ALONE) == 0;
    if (!alone)
        start_again(argv, environment, count);
    if (mem_is_there(OPS_BLAS_BUFFER_BYTES))
        return;
    ssize_t said = write(STDERR_FILENO, words, sizeof words - 1);
    (void)said;
    _exit(status_exit_code(STATUS_MEMORY));
}

__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char *const *,
                                                            char *const *) = check_memory;
