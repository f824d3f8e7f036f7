/* ranks_rig -- a training run on ranks that are threads, each with its own env. */
#ifndef TESTS_TRAIN_RANKS_RIG_H
#define TESTS_TRAIN_RANKS_RIG_H
#include <stdatomic.h>
#include "run_rig.h"
#include "threads.h"

enum { RIG_MOST_RANKS = 4 };

struct rank_run {
    const struct run_config *config;
    struct trainer_target place;
    struct trainer_callbacks callbacks;
    double timeout; /* seconds; 0 = 60 */
    struct session_ranks ranks;

    atomic_bool has_ended;
    enum status status; /* how the run ended */
    char error[512];
    struct trainer_summary summary;
};

static inline void *rank_run_main(void *argument)
{
    struct rank_run *run = argument;
    struct env env;
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    run->status =
        trainer_run(&env, run->config, &run->ranks, &run->place, &run->callbacks, &run->summary);
    snprintf(run->error, sizeof run->error, "%s", log_first_error(env.log));
    env_destroy(&env);
    atomic_store(&run->has_ended, true);
    return NULL;
}

/* Train on `count` ranks of one job. The caller has set config and place of each run. */
static inline void rank_runs(struct env *env, struct rank_run *runs, int count)
{
    struct comm_hub *hub;
    assert_int_equal(comm_hub_create(env, count, &hub), STATUS_OK);
    for (int r = 0; r < count; r++)
        runs[r].ranks = (struct session_ranks){
            .comm = {.backend = "threads", .timeout = runs[r].timeout > 0 ? runs[r].timeout : 60.0},
            .hub = hub,
            .rank = r};
    threads_run(rank_run_main, runs, count, sizeof *runs);
    comm_hub_destroy(hub);
}

#endif
