/* start -- before the libraries that the command is linked to are set up: is there memory for them?
 *
 * When it is loaded, OpenBLAS starts a thread for each processor or takes a buffer for itself, and what
 * finds no memory tries for ever: the command would hang before main, or when it ends. Functions of
 * .preinit_array run before all that, and libc is not set up either: only system calls here. Where
 * memory is short the command starts itself again without those threads, which it does not use;
 * where there is too little even for one buffer it says so and ends.
 */
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/status.h"
#include "ops/ops_info.h"

#define ALONE "OPENBLAS_NUM_THREADS=1"

enum { MOST_VARIABLES = 4096 };

static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int find_own(char *const *environment, bool *alone)
{
    int count = 0;
    for (*alone = false; environment[count] != NULL; count++)
        *alone = *alone || strcmp(environment[count], ALONE) == 0;
    return count;
}

/* Returns when it cannot: nothing is worse than before. */
static void start_again(char *const *argv, char *const *environment, int count)
{
    char *longer[MOST_VARIABLES];
    if (count + 2 > MOST_VARIABLES)
        return;
    longer[0] = ALONE; /* of two the first counts */
    memcpy(longer + 1, environment, ((size_t)count + 1) * sizeof *longer);
    execve("/proc/self/exe", argv, longer);
}

static void check_memory(int argc, char *const *argv, char *const *environment)
{
    static const char words[] =
        "sifr: error: out of memory: the BLAS library needs a buffer of up to 128 "
        "MiB and the system refuses; raise the limit of memory (ulimit -v, "
        "vm.overcommit_memory)\n";
    bool alone;
    int count = find_own(environment, &alone);
    (void)argc;
    if (mem_is_there((size_t)processors() * OPS_BLAS_BUFFER_BYTES))
        return;
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
