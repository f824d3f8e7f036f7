/* bench_ranks -- a measurement on several ranks at once. Ranks are threads, processes started here,
 * or processes started by a launcher. */
#ifndef CLI_BENCH_RANKS_H
#define CLI_BENCH_RANKS_H
#include "cli/launch/ranks.h"

struct bench_ranks {
    const char *backend; /* comm.backend */
    double timeout;
    bool quiet; /* print no line about the launch */
    struct ranks_plan plan;
};

/* Choose the ranks from -n (0 = not given), and set env->threads to the threads of a rank, or to
 * `threads` if it is not 0. */
enum status bench_ranks_find(struct cli *cli, int64_t n, int64_t threads,
                             struct bench_ranks *ranks);
/* Choose the device. Called once in every process with ranks, before they join. */
typedef enum status bench_prepare_fn(void *user, struct compute_config *place);
/* The work of a rank that has joined the others (session->comm; NULL = it is the only one) and has
 * its device, ops and stream. */
typedef enum status bench_work_fn(void *user, struct session *session);
enum status bench_ranks_run(struct cli *cli, const struct bench_ranks *ranks,
                            bench_prepare_fn *prepare, bench_work_fn *work, void *user);

#endif
