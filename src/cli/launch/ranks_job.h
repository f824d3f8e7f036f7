/* ranks_job -- work that all ranks of a command do together, wherever they run: in this process, as
 * threads of it, or in processes that it starts. */
#ifndef CLI_RANKS_JOB_H
#define CLI_RANKS_JOB_H
#include "cli/launch/ranks.h"
#include "train/config/config.h"

/* Called once in every process that has ranks, before they join. */
typedef enum status ranks_prepare_fn(void *user);

struct ranks_job {
    struct ranks_plan plan; /* from ranks_find */
    int threads;            /* of a rank */
    int bind, device;       /* run.bind, run.device */
    const char *backend;    /* comm.backend */
    double timeout, delay;  /* comm.timeout, comm.delay */
    bool quiet;             /* print no line about the launch */
    bool stops;             /* a signal asks the ranks to stop; else it kills them */
    int input;              /* descriptor that rank 0 reads as its standard input, where ranks are
                               processes that are started here; 0 = none */
    ranks_prepare_fn *prepare;
    ranks_main_fn *main; /* the work of a rank; only rank 0 prints */
    void *user;
};

enum status ranks_job_run(struct cli *cli, const struct ranks_job *job);

#endif
