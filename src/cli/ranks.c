/* ranks -- see the header. Only rank 0 talks: what another rank fails with is spread through the
 * communicator, and rank 0 says it. */
#include "cli/ranks.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/launch.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"

/* --- where they run ------------------------------------------------------------------------- */

/* Ranks on this machine, as the launcher says. */
static int joined_local_ranks(int size)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_STEP_TASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && atoi(text) > 0)
            return atoi(text);
    }
    return size;
}

/* A launcher that binds its ranks has itself more processors than each of them. */
static bool is_bound(void)
{
    cpu_set_t mine, parents;
    return sched_getaffinity(0, sizeof mine, &mine) == 0 &&
           sched_getaffinity(getppid(), sizeof parents, &parents) == 0 &&
           !CPU_EQUAL(&mine, &parents);
}

static int share(int cpus, int ranks)
{
    return cpus > ranks ? cpus / ranks : 1;
}

/* srun may start ranks and give them nothing to find each other by; some libraries end the process
 * with pages about it. */
static bool is_bare_srun(const struct launcher *launcher)
{
    static const char *const names[] = {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD",
                                        "PMI_PORT"};
    if (strcmp(launcher->name, "srun") != 0)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (getenv(names[i]))
            return false;
    }
    return true;
}

static enum status find_joined(struct env *env, int64_t wanted, const char *backend,
                               const struct launcher *launcher, struct ranks_plan *plan)
{
    int cpus = env_available_threads();
    if (wanted > 0 && wanted != launcher->size)
        return FAIL(
            env, USAGE, "-n %lld is not the %d rank%s that %s has started; leave -n away here",
            (long long)wanted, launcher->size, launcher->size == 1 ? "" : "s", launcher->name);
    bool alone = launcher->size == 1;
    int local = joined_local_ranks(launcher->size);
    bool joins = strcmp(backend, "self") != 0 && strcmp(backend, "threads") != 0;
    if (!alone && !joins)
        return FAIL(env, CONFIG, "comm.backend '%s' can't join the %d ranks that %s has started",
                    backend, launcher->size, launcher->name);
    if (!alone && is_bare_srun(launcher))
        return FAIL(
            env, CONFIG,
            "started by srun as one of %d ranks, but without PMI, so they can't find each "
            "other; use srun --mpi=pmix (--mpi=pmi2 with MPICH), or sifr train -n %d in the "
            "batch script",
            launcher->size, launcher->size);
    *plan = (struct ranks_plan){
        .way = alone ? RANKS_ONE : RANKS_JOIN,
        .size = launcher->size,
        .rank = launcher->rank,
        .local = local,
        .threads = is_bound() ? cpus : share(cpus, local),
    };
    return STATUS_OK;
}

enum status ranks_find(struct env *env, int64_t wanted, const char *backend,
                       struct ranks_plan *plan)
{
    struct launcher launcher;
    int size = wanted > 1 ? (int)wanted : 1;
    bool joined = launcher_find(&launcher);
    if (joined && launcher.size == 1 && strcmp(launcher.name, "srun") == 0)
        joined = false; /* a shell on a node: ranks may be started from it */
    if (joined)
        return find_joined(env, wanted, backend, &launcher, plan);
    if (size > 1 && strcmp(backend, "self") == 0)
        return FAIL(env, CONFIG,
                    "comm.backend 'self' has one rank; for -n %d use auto, mpi, nccl or threads",
                    size);
    bool threads = strcmp(backend, "threads") == 0;
    int local = threads ? size : launch_local_ranks(size);
    *plan = (struct ranks_plan){
        .way = size == 1 ? RANKS_ONE
               : threads ? RANKS_THREADS
                         : RANKS_LAUNCH,
        .size = size,
        .local = local,
        .threads = share(env_available_threads(), local),
    };
    return STATUS_OK;
}

/* --- a rank that is a process --------------------------------------------------------------- */

/* All ranks end this way together. */
static bool is_orderly(enum status st)
{
    return st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_SAVED || st == STATUS_DIVERGED;
}

enum status ranks_leave(struct cli *cli, const struct ranks_plan *plan, enum status st, bool met)
{
    const char *error = log_first_error(cli->env->log);
    bool elsewhere = is_orderly(st) || st == STATUS_COMM || st == STATUS_CONFIG;
    console_flush(cli->console);
    rank_report_end(plan->rank, st, error, met);
    if (plan->rank > 0 && !elsewhere && !rank_report_wanted())
        console_rank_error(cli->console, error);
    /* A launcher ends the others when one rank's exit code is not 0, also while they write. */
    return is_orderly(st) && rank_report_wanted() ? STATUS_OK : st;
}

/* --- ranks that are threads ----------------------------------------------------------------- */

struct thread_rank {
    struct session_ranks seat;
    ranks_main_fn *main;
    void *user;
    struct env own, *env; /* `env` is &own but for rank 0 */
    pthread_t thread;
    enum status status;
};

static void log_thread(void *user, enum log_level level, const char *line)
{
    const struct thread_rank *rank = user;
    (void)level; /* whoever is asked to say more hears the others too */
    fprintf(stderr, "sifr: rank %d: %s\n", rank->seat.rank, line);
}

static enum status open_rank(struct cli *cli, struct thread_rank *rank)
{
    bool verbose = cli->console->verbose;
    rank->env = cli->env;
    if (rank->seat.rank == 0)
        return STATUS_OK;
    if (env_create(&rank->own, verbose ? log_thread : NULL, rank, verbose ? LOG_DEBUG : LOG_ERROR,
                   cli->env->threads) != STATUS_OK)
        return FAIL(cli->env, MEMORY, "out of memory for rank %d", rank->seat.rank);
    rank->env = &rank->own;
    return STATUS_OK;
}

static void *rank_main(void *arg)
{
    struct thread_rank *rank = arg;
    rank->status = rank->main(rank->user, rank->env, &rank->seat);
    if (!is_orderly(rank->status)) { /* it may have failed before it joined */
        const char *error = log_first_error(rank->env->log);
        comm_hub_abort(rank->seat.hub, rank->seat.rank, *error ? error : status_text(rank->status));
    }
    return NULL;
}

static enum status run_all(struct env *env, struct thread_rank *ranks, int size)
{
    int started = 1, error = 0;
    while (started < size && error == 0) {
        error = pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]);
        started += error == 0;
    }
    if (error) {
        ranks[0].status = FAIL(env, IO, "cannot start the thread of rank %d: %s; see ulimit -u",
                               started, strerror(error));
        comm_hub_abort(ranks[0].seat.hub, 0, log_first_error(env->log));
    } else {
        rank_main(&ranks[0]);
    }
    for (int r = 1; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
    enum status st = ranks[0].status;
    for (int r = 1; r < started; r++) { /* the cause rather than its effect */
        if (st == STATUS_OK || (st == STATUS_COMM && !is_orderly(ranks[r].status)))
            st = ranks[r].status;
    }
    return st;
}

enum status ranks_run_threads(struct cli *cli, int size, const struct session_ranks *seat,
                              ranks_main_fn *main, void *user)
{
    enum status st;
    struct comm_hub *hub;
    struct thread_rank *ranks;
    TRY(comm_hub_create(cli->env, size, &hub));
    TRY_OR(undo_hub,
           mem_alloc_array(cli->env, MEM_OTHER, "ranks", (size_t)size, sizeof *ranks, &ranks));
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct thread_rank){.seat = *seat, .main = main, .user = user};
        ranks[r].seat.hub = hub;
        ranks[r].seat.rank = r;
        TRY_OR(undo_ranks, open_rank(cli, &ranks[r]));
    }
    st = run_all(cli->env, ranks, size);
undo_ranks:
    for (int r = 0; r < size; r++) {
        if (ranks[r].own.log)
            env_destroy(&ranks[r].own);
    }
    mem_free(cli->env, ranks);
undo_hub:
    comm_hub_destroy(hub);
    return st;
}
