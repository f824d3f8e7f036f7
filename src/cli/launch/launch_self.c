/* launch_self -- ranks that are processes run this program with the arguments of the user, and with
 * flags that the supervisor adds. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "cli/launch/launch.h"

enum { PATH_BYTES = 4096 };

/* The added flags come after the user's, because the last of several equal flags wins, and before a
 * "--", which ends the flags. */
static void fill(const struct cli *cli, char *program, const char *const *added, char **argv)
{
    size_t used = 0;
    int flags = 1; /* arguments before a "--" */
    while (flags < cli->argc && strcmp(cli->argv[flags], "--") != 0)
        flags++;
    argv[used++] = program;
    for (int i = 0; i < flags; i++)
        argv[used++] = cli->argv[i];
    for (int i = 0; added[i]; i++)
        argv[used++] = (char *)added[i];
    for (int i = flags; i < cli->argc; i++)
        argv[used++] = cli->argv[i];
}

enum status launch_self(struct cli *cli, const struct launch_order *order, const char *const *added,
                        struct launch_end *end)
{
    struct launch_order whole = *order;
    char program[PATH_BYTES], threads[32], **argv;
    const char *all[LAUNCH_ADDED + 2] = {NULL};
    int count = 0;
    *end = (struct launch_end){0};
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes < 0)
        return FAIL(cli->env, IO, "cannot find the executable of sifr: %s", strerror(errno));
    program[bytes] = 0;
    if (!order->alone && !order->own_threads) {
        snprintf(threads, sizeof threads, "--threads=%d", order->threads);
        all[count++] = threads;
    }
    for (int i = 0; added && added[i]; i++) {
        CHECK(i < LAUNCH_ADDED);
        all[count++] = added[i];
    }
    TRY(mem_alloc_array(cli->env, MEM_OTHER, "arguments", (size_t)(cli->argc + count) + 2,
                        sizeof *argv, &argv));
    fill(cli, program, all, argv);
    whole.argv = argv;
    enum status st = launch_run(cli, &whole, end);
    mem_free(cli->env, argv);
    return st;
}
