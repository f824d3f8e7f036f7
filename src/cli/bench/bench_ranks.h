/* bench_ranks -- a measurement on several ranks at once: as threads, as processes that are started
 * here, or as those that a launcher has started. */
#ifndef CLI_BENCH_RANKS_H
#define CLI_BENCH_RANKS_H
#include "cli/launch/ranks.h"

struct bench_ranks {
    const char *backend; /* comm.backend */
    double timeout;
    bool quiet; /* no line about the launch */
    struct ranks_plan plan;
};

/* From -n (0: not given); env->threads becomes those of a rank, unless `threads` says how many. */
enum status bench_ranks_find(struct cli *cli, int64_t n, int64_t threads,
                             struct bench_ranks *ranks);
/* Where to compute: asked once in every process that has ranks, before they meet. */
typedef enum status bench_prepare_fn(void *user, struct compute_config *place);
/* A rank that has joined the others (session->comm; NULL: it is the only one) and has its device,
 * ops and stream. */
typedef enum status bench_work_fn(void *user, struct session *session);
enum status bench_ranks_run(struct cli *cli, const struct bench_ranks *ranks,
                            bench_prepare_fn *prepare, bench_work_fn *work, void *user);

#endif
