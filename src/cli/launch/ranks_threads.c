/* ranks_threads -- all ranks of a job as threads of this process; the calling thread waits for them.
 *
 * Ranks that are processes have a supervisor, which ends one that hangs. A thread cannot be ended by
 * another, so when the job has failed and a rank does not come back in time, it is the process that
 * ends: the rank may be inside a driver or a library that waits for another card. */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "cli/launch/ranks.h"

static const double END_SECONDS = 8; /* for the others to end after the first failure */

struct team;

struct thread_rank {
    struct team *team; /* borrowed */
    struct session_ranks seat;
    struct env own, *env; /* `env` is &own but for rank 0 */
    pthread_t thread;
    bool back; /* under the team's lock, as is the status until then */
    enum status status;
};

struct team {
    struct cli *cli;
    ranks_main_fn *main;
    void *user;
    int size, started;
    pthread_mutex_t lock;
    pthread_cond_t news;       /* somebody is back */
    struct thread_rank *first; /* who failed first; NULL = nobody */
    double failed;             /* ... and when */
    struct thread_rank *ranks; /* (size) */
};

/* --- a rank --------------------------------------------------------------------------------- */

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
    rank->own.progress = cli->env->progress;
    return STATUS_OK;
}

static void come_back(struct thread_rank *rank, enum status st)
{
    struct team *team = rank->team;
    pthread_mutex_lock(&team->lock);
    rank->status = st;
    rank->back = true;
    if (!ranks_is_orderly(st) && team->first == NULL) {
        team->first = rank;
        team->failed = clock_seconds();
    }
    pthread_cond_signal(&team->news);
    pthread_mutex_unlock(&team->lock);
}

static void *rank_main(void *arg)
{
    struct thread_rank *rank = arg;
    enum status st = rank->team->main(rank->team->user, rank->env, &rank->seat);
    if (!ranks_is_orderly(st)) { /* it may have failed before it joined */
        const char *error = log_first_error(rank->env->log);
        comm_hub_abort(rank->seat.hub, rank->seat.rank, *error ? error : status_text(st));
    }
    come_back(rank, st);
    return NULL;
}

/* --- all of them ---------------------------------------------------------------------------- */

static enum status start(struct team *team)
{
    struct env *env = team->cli->env;
    int error = 0;
    while (team->started < team->size && error == 0) {
        struct thread_rank *rank = &team->ranks[team->started];
        error = pthread_create(&rank->thread, NULL, rank_main, rank);
        team->started += error == 0;
    }
    if (error == 0)
        return STATUS_OK;
    enum status st = FAIL(env, IO, "cannot start the thread of rank %d: %s; see ulimit -u",
                          team->started, strerror(error));
    comm_hub_abort(team->ranks[0].seat.hub, team->started, log_first_error(env->log));
    return st;
}

/* One that is not back, with the lock held; NULL = all are. */
static struct thread_rank *find_absent(struct team *team)
{
    for (int r = 0; r < team->started; r++) {
        if (!team->ranks[r].back)
            return &team->ranks[r];
    }
    return NULL;
}

/* Until all are back, or some are not in time after a failure. */
static bool wait_for_all(struct team *team)
{
    bool late = false;
    pthread_mutex_lock(&team->lock);
    while (find_absent(team) != NULL && !late) {
        if (team->first == NULL) {
            pthread_cond_wait(&team->news, &team->lock);
            continue;
        }
        double limit = team->failed + END_SECONDS;
        struct timespec until = {(time_t)limit, (long)(1e9 * (limit - (double)(time_t)limit))};
        pthread_cond_timedwait(&team->news, &team->lock, &until);
        late = clock_seconds() >= limit;
    }
    bool all = find_absent(team) == NULL;
    pthread_mutex_unlock(&team->lock);
    return all;
}

/* What rank 0 knows it has said. */
static void give_up(struct team *team)
{
    struct env *env = team->cli->env;
    pthread_mutex_lock(&team->lock);
    const struct thread_rank *first = team->first;
    int absent = find_absent(team)->seat.rank;
    bool said = team->ranks[0].back;
    pthread_mutex_unlock(&team->lock);
    log_debug(env, "rank %d does not come back, so the process ends", absent);
    if (!said && first->status == STATUS_COMM) /* it speaks of ranks by their numbers */
        FAIL(env, COMM, "%s", log_first_error(first->env->log));
    else if (!said)
        log_fail(env->log, first->status, __FILE__, __LINE__, "rank %d: %s", first->seat.rank,
                 log_first_error(first->env->log));
    team->cli->quit(team->cli, first->status);
}

/* The cause rather than its effect. */
static enum status outcome(const struct team *team)
{
    enum status st = team->ranks[0].status;
    for (int r = 1; r < team->started; r++) {
        enum status other = team->ranks[r].status;
        if (st == STATUS_OK || (st == STATUS_COMM && !ranks_is_orderly(other)))
            st = other;
    }
    return st;
}

static void open_team(struct team *team)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&team->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&team->lock, NULL);
}

static void close_team(struct team *team)
{
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->news);
}

static enum status run_all(struct team *team)
{
    open_team(team);
    enum status st = start(team);
    if (!wait_for_all(team))
        give_up(team);
    for (int r = 0; r < team->started; r++)
        pthread_join(team->ranks[r].thread, NULL);
    close_team(team);
    return st == STATUS_OK ? outcome(team) : st;
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
    struct team team = {.cli = cli, .main = main, .user = user, .size = size, .ranks = ranks};
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct thread_rank){.team = &team, .seat = *seat};
        ranks[r].seat.hub = hub;
        ranks[r].seat.rank = r;
        TRY_OR(undo_ranks, open_rank(cli, &ranks[r]));
    }
    st = run_all(&team);
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
