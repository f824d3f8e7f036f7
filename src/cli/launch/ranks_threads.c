/* ranks_threads -- all ranks of a job as threads of this process; the caller waits for them.
 *
 * Ranks that are processes have a supervisor, which kills a rank that hangs. A thread cannot be
 * killed by another: it may be inside a driver or a library that waits for another GPU. So if the
 * job has failed and a rank does not return in time, the whole process ends. */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/placement.h"
#include "cli/launch/ranks.h"

static const double END_SECONDS = 8; /* for the other ranks to return after the first failure */

struct crew;

struct thread_rank {
    struct crew *crew; /* borrowed */
    struct session_ranks member;
    struct env own, *env; /* `env` is &own, except for rank 0, which has the caller's */
    pthread_t thread;
    bool back; /* it has returned; both fields are guarded by the crew's lock */
    enum status status;
};

struct crew {
    struct cli *cli;
    ranks_main_fn *main;
    void *user;
    const struct ranks_plan *plan; /* borrowed */
    int size, started;
    pthread_mutex_t lock;
    pthread_cond_t news;       /* a rank has returned */
    struct thread_rank *first; /* the rank that failed first; NULL = none */
    double failed;             /* the time of that failure */
    struct thread_rank *ranks; /* (size) */
};

/* --- a rank --------------------------------------------------------------------------------- */

static void log_thread(void *user, enum log_level level, const char *line)
{
    const struct thread_rank *rank = user;
    (void)level; /* only used with --verbose, which prints all levels */
    fprintf(stderr, "sifr: rank %d: %s\n", rank->member.rank, line);
}

static enum status open_rank(struct cli *cli, struct thread_rank *rank)
{
    bool verbose = cli->console->verbose;
    rank->env = cli->env;
    if (rank->member.rank == 0)
        return STATUS_OK;
    if (env_create(&rank->own, verbose ? log_thread : NULL, rank, verbose ? LOG_DEBUG : LOG_ERROR,
                   cli->env->threads) != STATUS_OK)
        return FAIL(cli->env, MEMORY, "out of memory for rank %d", rank->member.rank);
    rank->env = &rank->own;
    rank->own.progress = cli->env->progress;
    return STATUS_OK;
}

static void come_back(struct thread_rank *rank, enum status st)
{
    struct crew *crew = rank->crew;
    pthread_mutex_lock(&crew->lock);
    rank->status = st;
    rank->back = true;
    if (!ranks_is_orderly(st) && crew->first == NULL) {
        crew->first = rank;
        crew->failed = clock_seconds();
    }
    pthread_cond_signal(&crew->news);
    pthread_mutex_unlock(&crew->lock);
}

static void *rank_main(void *arg)
{
    struct thread_rank *rank = arg;
    const struct ranks_plan *plan = rank->crew->plan;
    if (plan->slice > 0) /* before it starts threads, which inherit it */
        placement_bind(plan->local, plan->slice, rank->member.rank);
    enum status st = rank->crew->main(rank->crew->user, rank->env, &rank->member);
    if (!ranks_is_orderly(st)) { /* the rank may have failed before it joined the hub */
        const char *error = log_first_error(rank->env->log);
        comm_hub_abort(rank->member.hub, rank->member.rank, *error ? error : status_text(st));
    }
    come_back(rank, st);
    return NULL;
}

/* --- all ranks ------------------------------------------------------------------------------ */

static enum status start(struct crew *crew)
{
    struct env *env = crew->cli->env;
    int error = 0;
    while (crew->started < crew->size && error == 0) {
        struct thread_rank *rank = &crew->ranks[crew->started];
        error = pthread_create(&rank->thread, NULL, rank_main, rank);
        crew->started += error == 0;
    }
    if (error == 0)
        return STATUS_OK;
    enum status st = FAIL(env, IO, "cannot start the thread of rank %d: %s; see ulimit -u",
                          crew->started, strerror(error));
    comm_hub_abort(crew->ranks[0].member.hub, crew->started, log_first_error(env->log));
    return st;
}

/* A rank that has not returned; NULL = all have. The caller holds the lock. */
static struct thread_rank *find_absent(struct crew *crew)
{
    for (int r = 0; r < crew->started; r++) {
        if (!crew->ranks[r].back)
            return &crew->ranks[r];
    }
    return NULL;
}

/* Wait until all ranks have returned (true), or until END_SECONDS after a failure. */
static bool wait_for_all(struct crew *crew)
{
    bool late = false;
    pthread_mutex_lock(&crew->lock);
    while (find_absent(crew) != NULL && !late) {
        if (crew->first == NULL) {
            pthread_cond_wait(&crew->news, &crew->lock);
            continue;
        }
        double limit = crew->failed + END_SECONDS;
        struct timespec until = {(time_t)limit, (long)(1e9 * (limit - (double)(time_t)limit))};
        pthread_cond_timedwait(&crew->news, &crew->lock, &until);
        late = clock_seconds() >= limit;
    }
    bool all = find_absent(crew) == NULL;
    pthread_mutex_unlock(&crew->lock);
    return all;
}

/* End the process. If rank 0 has returned, it has already printed the error. */
static void give_up(struct crew *crew)
{
    struct env *env = crew->cli->env;
    pthread_mutex_lock(&crew->lock);
    const struct thread_rank *first = crew->first;
    int absent = find_absent(crew)->member.rank;
    bool said = crew->ranks[0].back;
    pthread_mutex_unlock(&crew->lock);
    log_debug(env, "rank %d does not come back, so the process ends", absent);
    if (!said && first->status == STATUS_COMM) /* such a message already names ranks */
        FAIL(env, COMM, "%s", log_first_error(first->env->log));
    else if (!said)
        log_fail(env->log, first->status, __FILE__, __LINE__, "rank %d: %s", first->member.rank,
                 log_first_error(first->env->log));
    crew->cli->quit(crew->cli, first->status);
}

/* The status of the rank that caused the failure, not of those that failed with it. */
static enum status outcome(const struct crew *crew)
{
    enum status st = crew->ranks[0].status;
    for (int r = 1; r < crew->started; r++) {
        enum status other = crew->ranks[r].status;
        if (st == STATUS_OK || (st == STATUS_COMM && !ranks_is_orderly(other)))
            st = other;
    }
    return st;
}

static enum status run_all(struct crew *crew)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&crew->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&crew->lock, NULL);
    enum status st = start(crew);
    if (!wait_for_all(crew))
        give_up(crew);
    for (int r = 0; r < crew->started; r++)
        pthread_join(crew->ranks[r].thread, NULL);
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->news);
    return st == STATUS_OK ? outcome(crew) : st;
}

enum status ranks_run_threads(struct cli *cli, const struct ranks_plan *plan,
                              const struct session_ranks *member, ranks_main_fn *main, void *user)
{
    enum status st;
    int size = plan->size;
    struct comm_hub *hub;
    struct thread_rank *ranks;
    TRY(comm_hub_create(cli->env, size, &hub));
    TRY_OR(undo_hub,
           mem_alloc_array(cli->env, MEM_OTHER, "ranks", (size_t)size, sizeof *ranks, &ranks));
    struct crew crew = {
        .cli = cli, .main = main, .user = user, .plan = plan, .size = size, .ranks = ranks};
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct thread_rank){.crew = &crew, .member = *member};
        ranks[r].member.hub = hub;
        ranks[r].member.rank = r;
        TRY_OR(undo_ranks, open_rank(cli, &ranks[r]));
    }
    st = run_all(&crew);
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
