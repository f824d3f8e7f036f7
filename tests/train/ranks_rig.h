/* ranks_rig -- a training run on ranks that are threads, each with its own env. One rank joins no
 * others. */
#ifndef TESTS_TRAIN_RANKS_RIG_H
#define TESTS_TRAIN_RANKS_RIG_H
#include <stdatomic.h>
#include "run_rig.h"
#include "threads.h"

struct rank_run {
    const struct run_config *config;
    char folder[128];
    struct trainer_target place;
    struct trainer_callbacks callbacks;
    double timeout; /* seconds; 0 = 60 */
    struct session_ranks ranks;

    atomic_bool has_ended;
    enum status status; /* how the run ended */
    char error[512];
    struct trainer_summary summary;
    size_t peaks[MEM_CATEGORY_COUNT]; /* of this rank's memory */
};

static inline void *rank_run_main(void *argument)
{
    struct rank_run *run = argument;
    struct env env;
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    run->status = trainer_run(&env, run->config, run->ranks.hub ? &run->ranks : NULL, &run->place,
                              &run->callbacks, &run->summary);
    snprintf(run->error, sizeof run->error, "%s", log_first_error(env.log));
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        run->peaks[c] = mem_peak(env.mem, (enum mem_category)c);
    env_destroy(&env);
    atomic_store(&run->has_ended, true);
    return NULL;
}

/* Describe the runs of `count` ranks with the rig's configuration, in its folder `name`. */
static inline void rank_runs_fill(struct run_rig *rig, const char *name, struct rank_run *runs,
                                  int count)
{
    for (int r = 0; r < count; r++) {
        runs[r] = (struct rank_run){.config = &rig->config};
        snprintf(runs[r].folder, sizeof runs[r].folder, "%s/%s", rig->scratch.folder, name);
        runs[r].place = (struct trainer_target){.folder = runs[r].folder,
                                                .config_yaml = text_string(&rig->yaml)};
    }
}

/* Train on `count` ranks of one job. */
static inline void rank_runs(struct env *env, struct rank_run *runs, int count)
{
    struct comm_hub *hub = NULL;
    if (count > 1)
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
