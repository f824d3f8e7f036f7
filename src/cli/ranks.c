/* ranks -- see the header. Only rank 0 talks: whatever another rank fails with is spread by
 * comm_abort, and rank 0 says it. What can't be spread, because there is no communicator yet or all
 * have agreed to end, is said by the first rank that it happened to. */
#include "cli/ranks.h"
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "cli/rank_report.h"
#include "comm/launcher.h"

/* --- where they run ------------------------------------------------------------------------- */

static enum status find_joined(struct env *env, int64_t wanted, const char *backend,
                               const struct launcher *launcher, struct ranks_plan *plan)
{
    if (wanted > 0 && wanted != launcher->size)
        return FAIL(env, USAGE,
                    "-n %lld is not the %d rank%s that %s has started; leave -n away here",
                    (long long)wanted, launcher->size, launcher->size == 1 ? "" : "s",
                    launcher->name);
    bool alone = launcher->size == 1;
    if (!alone && strcmp(backend, "auto") != 0 && strcmp(backend, "mpi") != 0)
        return FAIL(env, CONFIG, "comm.backend '%s' can't join the %d ranks that %s has started",
                    backend, launcher->size, launcher->name);
    *plan = (struct ranks_plan){alone ? RANKS_ONE : RANKS_JOIN, launcher->size, launcher->rank};
    return STATUS_OK;
}

enum status ranks_find(struct env *env, int64_t wanted, const char *backend,
                       struct ranks_plan *plan)
{
    struct launcher launcher;
    int size = wanted > 1 ? (int)wanted : 1;
    if (launcher_find(&launcher))
        return find_joined(env, wanted, backend, &launcher, plan);
    if (size > 1 && strcmp(backend, "self") == 0)
        return FAIL(env, CONFIG,
                    "comm.backend 'self' has one rank; for -n %d use auto, mpi or threads", size);
    *plan = (struct ranks_plan){
        .way = size == 1                        ? RANKS_ONE
               : strcmp(backend, "threads") == 0 ? RANKS_THREADS
                                                 : RANKS_LAUNCH,
        .size = size,
    };
    return STATUS_OK;
}

/* --- a rank that is a process --------------------------------------------------------------- */

/* The words of a rank that is not the first. Its supervisor, if it has one, says them. */
static void speak(struct cli *cli, const struct rank_seat *seat)
{
    if (seat->rank > 0 && !rank_report_wanted())
        console_rank_error(cli->console, log_first_error(cli->env->log));
}

enum status rank_sit(struct cli *cli, const struct comm_config *config, int rank,
                     struct rank_seat *seat)
{
    *seat = (struct rank_seat){.rank = rank};
    rank_report_start(rank);
    enum status st = device_create(cli->env, "cpu", 0, &seat->device);
    if (st == STATUS_OK)
        st = comm_create(config, seat->device, &seat->comm);
    if (st != STATUS_OK && st != STATUS_CONFIG) /* a wrong configuration is rank 0's too */
        speak(cli, seat);
    return st;
}

struct rank_place {
    char host[64];
    cpu_set_t mask;
};

enum status rank_threads(struct rank_seat *seat, int *threads)
{
    struct env *env = device_env(seat->device);
    struct rank_place mine = {{0}, {{0}}}, *all;
    int size = comm_size(seat->comm), sharers = 0;
    gethostname(mine.host, sizeof mine.host - 1);
    sched_getaffinity(0, sizeof mine.mask, &mine.mask);
    TRY(mem_alloc_array(env, MEM_OTHER, "places", (size_t)size, sizeof *all, &all));
    enum status st = comm_exchange(seat->comm, &mine, sizeof mine, all);
    for (int r = 0; r < size; r++)
        sharers += memcmp(&all[r], &mine, sizeof mine) == 0;
    mem_free(env, all);
    if (st == STATUS_OK)
        *threads = env_available_threads() > sharers ? env_available_threads() / sharers : 1;
    return st;
}

enum status rank_agree(struct cli *cli, struct rank_seat *seat, enum status mine)
{
    int *all, first = -1, size = comm_size(seat->comm), code = (int)mine;
    TRY(mem_alloc_array(cli->env, MEM_OTHER, "agreement", (size_t)size, sizeof *all, &all));
    enum status st = comm_exchange(seat->comm, &code, sizeof code, all);
    for (int r = 0; st == STATUS_OK && r < size && first < 0; r++)
        first = all[r] != STATUS_OK ? r : -1;
    mem_free(cli->env, all);
    if (st != STATUS_OK || first < 0)
        return mine != STATUS_OK ? mine : st;
    seat->agreed = true;
    if (seat->rank == first)
        speak(cli, seat);
    return mine != STATUS_OK ? mine : STATUS_COMM;
}

static bool is_orderly(enum status st)
{
    return st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_DIVERGED;
}

void rank_leave(struct cli *cli, struct rank_seat *seat, enum status st)
{
    const char *error = log_first_error(cli->env->log);
    if (seat->comm && !is_orderly(st) && !seat->agreed)
        comm_abort(seat->comm, *error ? error : status_text(st));
    console_flush(cli->console);
    rank_report_end(seat->rank, st, error); /* before any rank can have left in good order */
    comm_destroy(seat->comm);
    device_destroy(seat->device);
    *seat = (struct rank_seat){0};
}

/* --- ranks that are threads ----------------------------------------------------------------- */

struct thread_rank {
    struct cli *cli;
    struct comm_hub *hub; /* borrowed */
    struct comm_config config;
    int rank;
    ranks_main_fn *main;
    void *user;
    struct env own, *env; /* `env` is &own but for rank 0 */
    struct device *device;
    pthread_t thread;
    enum status status;
};

static void log_thread(void *user, enum log_level level, const char *line)
{
    const struct thread_rank *rank = user;
    (void)level; /* whoever is asked to say more hears the others too */
    fprintf(stderr, "sifr: rank %d: %s\n", rank->rank, line);
}

static void no_log(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static enum status open_rank(struct cli *cli, bool verbose, struct thread_rank *rank)
{
    rank->env = cli->env;
    if (rank->rank > 0) {
        if (env_create(&rank->own, verbose ? log_thread : no_log, rank,
                       verbose ? LOG_DEBUG : LOG_ERROR, cli->env->threads) != STATUS_OK)
            return FAIL(cli->env, MEMORY, "out of memory for rank %d", rank->rank);
        rank->env = &rank->own;
    }
    return device_create(rank->env, "cpu", 0, &rank->device);
}

static void close_rank(struct thread_rank *rank)
{
    device_destroy(rank->device);
    if (rank->own.log)
        env_destroy(&rank->own);
}

static void *rank_main(void *arg)
{
    struct thread_rank *rank = arg;
    struct comm *comm = NULL;
    rank->status = comm_join(rank->hub, rank->rank, &rank->config, rank->device, &comm);
    if (rank->status != STATUS_OK)
        return NULL;
    rank->status = rank->main(rank->user, rank->env, comm);
    if (!is_orderly(rank->status)) {
        const char *error = log_first_error(rank->env->log);
        comm_abort(comm, *error ? error : status_text(rank->status));
    }
    comm_destroy(comm);
    return NULL;
}

/* A rank whose thread can't be made joins in our own thread, to tell the others not to wait. */
static void give_up(struct thread_rank *rank, int error)
{
    struct comm *comm;
    rank->status = FAIL(rank->cli->env, IO, "cannot start the thread of rank %d: %s; see ulimit -u",
                        rank->rank, strerror(error));
    if (comm_join(rank->hub, rank->rank, &rank->config, rank->device, &comm) == STATUS_OK) {
        comm_abort(comm, "its thread could not be started");
        comm_destroy(comm);
    }
}

static enum status run_all(struct thread_rank *ranks, int size)
{
    int started = 1, error = 0;
    while (started < size && error == 0) {
        error = pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]);
        started += error == 0;
    }
    if (error == 0)
        rank_main(&ranks[0]);
    else
        give_up(&ranks[started], error);
    for (int r = 1; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
    enum status st = ranks[0].status;
    for (int r = 0; r < size; r++) {
        if (st == STATUS_OK || (st == STATUS_COMM && ranks[r].status != STATUS_OK))
            st = ranks[r].status;
    }
    return st;
}

enum status ranks_run_threads(struct cli *cli, int size, double timeout, ranks_main_fn *main,
                              void *user)
{
    enum status st;
    struct comm_hub *hub;
    struct thread_rank *ranks;
    TRY(comm_hub_create(cli->env, size, &hub));
    TRY_OR(undo_hub, mem_alloc_array(cli->env, MEM_OTHER, "ranks", (size_t)size, sizeof *ranks,
                                     &ranks));
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct thread_rank){.cli = cli,
                                        .hub = hub,
                                        .config = {"threads", timeout},
                                        .rank = r,
                                        .main = main,
                                        .user = user};
        TRY_OR(undo_ranks, open_rank(cli, cli->console->verbose, &ranks[r]));
    }
    st = run_all(ranks, size);
undo_ranks:
    for (int r = 0; r < size; r++)
        close_rank(&ranks[r]);
    mem_free(cli->env, ranks);
undo_hub:
    comm_hub_destroy(hub);
    return st;
}
