/* ranks -- only rank 0 prints: the communicator spreads the failure of another rank, and rank 0
 * prints it. */
#include "cli/launch/ranks.h"
#include <string.h>
#include <unistd.h>
#include "base/placement.h"
#include "cli/launch/launch.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"

/* --- where the ranks run -------------------------------------------------------------------- */

static enum status find_joined(struct env *env, int64_t wanted, const char *backend,
                               const struct launcher *launcher, struct ranks_plan *plan)
{
    if (wanted > 0 && wanted != launcher->size)
        return FAIL(env, USAGE, "-n %lld conflicts with %s, which started %d rank%s; omit -n",
                    (long long)wanted, launcher->name, launcher->size,
                    launcher->size == 1 ? "" : "s");
    bool alone = launcher->size == 1;
    int local = launcher_local_ranks(launcher->size);
    bool joins = strcmp(backend, "self") != 0 && strcmp(backend, "threads") != 0;
    if (!alone && !joins)
        return FAIL(
            env, CONFIG,
            "comm.backend=%s cannot join the %d ranks that %s started; use auto, mpi or nccl",
            backend, launcher->size, launcher->name);
    if (!alone && launcher_is_bare_srun(launcher))
        return FAIL(env, CONFIG,
                    "srun started %d ranks without PMI, so they cannot find each other; use "
                    "srun --mpi=pmix (--mpi=pmi2 with MPICH), or sifr train -n %d in the "
                    "batch script",
                    launcher->size, launcher->size);
    bool bound = launcher_has_bound(launcher);
    *plan = (struct ranks_plan){
        .way = alone ? RANKS_ONE : RANKS_JOIN,
        .size = launcher->size,
        .rank = launcher->rank,
        .local = local,
        .local_rank = launcher->local_rank,
        .share = threads_default(local, bound),
        .bound = bound,
    };
    return STATUS_OK;
}

/* Should ranks that are started here be processes? A missing mpirun is an error only if the user
 * asked for processes; otherwise ranks become threads, and `why` has the reason. Threads cannot
 * span machines. */
static bool become_processes(int size, const char *backend, char *why, size_t bytes)
{
    struct mpi_launcher launcher;
    if (size == 1 || strcmp(backend, "threads") == 0)
        return false;
    if (strcmp(backend, "mpi") == 0 || launch_local_ranks(size) < size)
        return true;
    return mpi_launcher_look(&launcher, why, bytes) || launcher.named;
}

enum status ranks_find(struct env *env, int64_t wanted, const char *backend,
                       struct ranks_plan *plan)
{
    struct launcher launcher;
    int size = wanted > 1 ? (int)wanted : 1;
    bool joined = launcher_find(&launcher);
    if (joined && launcher.size == 1 && strcmp(launcher.name, "srun") == 0)
        joined = false; /* a shell on a node, from which ranks may be started */
    if (joined)
        return find_joined(env, wanted, backend, &launcher, plan);
    if (size > 1 && strcmp(backend, "self") == 0)
        return FAIL(env, CONFIG,
                    "comm.backend=self has one rank; for -n %d use auto, mpi, nccl or threads",
                    size);
    *plan = (struct ranks_plan){.size = size};
    bool processes = become_processes(size, backend, plan->why_threads, sizeof plan->why_threads);
    plan->way = size == 1 ? RANKS_ONE : processes ? RANKS_LAUNCH : RANKS_THREADS;
    plan->local = processes ? launch_local_ranks(size) : size;
    plan->share = threads_default(plan->local, false);
    return STATUS_OK;
}

void ranks_say_choice(struct env *env, const struct ranks_plan *plan)
{
    if (plan->way == RANKS_THREADS && *plan->why_threads)
        log_info(env, "launch: %d ranks as threads of one process: %s", plan->size,
                 plan->why_threads);
}

void ranks_bind(struct ranks_plan *plan, int threads, int bind, int device)
{
    bool gpu =
        device == RUN_DEVICE_CUDA || (device == RUN_DEVICE_AUTO && device_has_driver("cuda"));
    if (bind == RUN_BIND_NONE || plan->bound)
        return;
    plan->near_gpu = gpu && plan->local > 1;
    if (gpu)
        return;
    if (plan->way == RANKS_THREADS ||
        (plan->way == RANKS_JOIN && placement_bind(plan->local, threads, plan->local_rank)))
        plan->slice = threads;
}

/* --- a rank that is a process --------------------------------------------------------------- */

enum status ranks_leave(struct cli *cli, const struct ranks_plan *plan, enum status st, bool met)
{
    const char *error = log_first_error(cli->env->log);
    bool elsewhere = ranks_is_orderly(st) || st == STATUS_COMM || st == STATUS_CONFIG;
    console_flush(cli->console);
    rank_report_end(plan->rank, st, error, met);
    if (plan->rank > 0 && !elsewhere && !rank_report_wanted())
        console_rank_error(cli->console, error);
    /* A launcher kills the other ranks when one's exit code is not 0, even while they write. */
    return ranks_is_orderly(st) && rank_report_wanted() ? STATUS_OK : st;
}

void ranks_report_failure(int rank, enum status st, const char *error)
{
    rank_report_end(rank, st, error, true);
}
