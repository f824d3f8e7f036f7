/* sifr_job -- the ranks of a job: threads of this process, processes of a launcher, or one. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/placement.h"
#include "base/threads.h"
#include "comm/launcher.h"
#include "lib/lib_impl.h"

enum { DEFAULT_TIMEOUT = 600, MOST_RANKS = 1024 };
enum { JOB_LEAST = offsetof(struct sifr_job, user) + sizeof(void *) }; /* of the first version */

const char *sifr_version(void)
{
    return SIFR_VERSION;
}

bool copy_sized(void *to, size_t bytes, const void *from, size_t least)
{
    size_t given = *(const size_t *)from;
    if (given < least)
        return false;
    for (size_t i = bytes; i < given; i++) /* a newer program asks for what is not known here */
        if (((const char *)from)[i] != 0)
            return false;
    memset(to, 0, bytes);
    memcpy(to, from, given < bytes ? given : bytes);
    return true;
}

/* --- calls ---------------------------------------------------------------------------------- */

static int public_status(enum status st)
{
    switch (st) {
    case STATUS_OK: return SIFR_OK;
    case STATUS_IO: return SIFR_IO;
    case STATUS_FORMAT: return SIFR_FORMAT;
    case STATUS_MEMORY: return SIFR_MEMORY;
    case STATUS_DEVICE: return SIFR_DEVICE;
    case STATUS_COMM: return SIFR_COMM;
    case STATUS_CONFIG: return SIFR_CONFIG;
    case STATUS_STOPPED: return SIFR_CALLBACK;
    default: return SIFR_INTERNAL;
    }
}

enum status call_begin(struct sifr_context *context)
{
    if (context->calls++ > 0)
        return FAIL(&context->env, CONFIG,
                    "a unit or a hook has called a function that trains or moves state");
    log_error_clear(context->env.log);
    if (*context->ended)
        return FAIL(&context->env, COMM, "this rank has failed and cannot continue: %s",
                    context->ended);
    return STATUS_OK;
}

int call_end(struct sifr_context *context, enum status st)
{
    context->calls--;
    if (st != STATUS_OK && stream_failed(context->session.stream) && !*context->ended)
        snprintf(context->ended, sizeof context->ended, "%s", sifr_error(context));
    return public_status(st);
}

int call_end_collective(struct sifr_context *context, enum status st)
{
    bool nested = context->calls > 1; /* this call is refused; the outer one continues */
    if (st != STATUS_OK && context->session.comm && !*context->ended && !nested) {
        snprintf(context->ended, sizeof context->ended, "%s", sifr_error(context));
        comm_abort(context->session.comm, context->ended);
    }
    return call_end(context, st);
}

enum status call_agree(struct sifr_context *context, const char *what, int trainer, uint64_t value)
{
    struct call_facts mine = {.trainer = trainer, .value = value}, *all = context->facts;
    struct comm *comm = context->session.comm;
    if (!comm)
        return STATUS_OK;
    snprintf(mine.what, sizeof mine.what, "%s", what);
    TRY(comm_exchange(comm, &mine, sizeof mine, all));
    for (int r = 0; r < context->ranks; r++)
        if (memcmp(&all[r], &all[0], sizeof mine) != 0)
            return FAIL(&context->env, CONFIG,
                        "rank %d calls %s of trainer %d with other values than rank 0 (%s of "
                        "trainer %d); all ranks make the same calls with the same model, options "
                        "and learning rate",
                        r, all[r].what, (int)all[r].trainer, all[0].what, (int)all[0].trainer);
    return STATUS_OK;
}

const char *sifr_error(const struct sifr_context *context)
{
    return log_first_error(context->env.log);
}

int sifr_rank(const struct sifr_context *context)
{
    return context->rank;
}

int sifr_ranks(const struct sifr_context *context)
{
    return context->ranks;
}

/* --- one rank ------------------------------------------------------------------------------- */

static void forward_line(void *user, enum log_level level, const char *line)
{
    struct sifr_context *context = user;
    (void)level;
    if (context->log)
        context->log(context->user, context->rank, line);
}

void context_hold(struct sifr_context *context)
{
    context->holders++;
}

void context_release(struct sifr_context *context)
{
    if (--context->holders > 0)
        return;
    mem_free(&context->env, context->facts);
    session_destroy(&context->session);
    env_destroy(&context->env);
    free(context);
}

static enum status join(struct sifr_context *context, const struct sifr_job *job,
                        struct comm_hub *hub)
{
    const struct compute_config compute = {.backend = "cpu", .type = DTYPE_F32};
    struct launcher launcher;
    bool launched = !hub && launcher_find(&launcher) && launcher.size > 1;
    if (launched && launcher_is_bare_srun(&launcher))
        return FAIL(&context->env, COMM,
                    "srun has started %d ranks that cannot find each other; use srun --mpi=pmix, "
                    "or mpirun",
                    launcher.size);
    const struct session_ranks ranks = {
        .comm = {.backend = hub ? "threads" : "mpi",
                 .timeout = job->timeout > 0 ? job->timeout : DEFAULT_TIMEOUT},
        .hub = hub,
        .rank = context->rank};
    TRY(session_join(&context->env, compute, hub || launched ? &ranks : NULL, &context->session));
    mem_limit(context->env.mem, device_memory(context->session.device), job->device_memory,
              "sifr_job.device_memory");
    if (!context->session.comm)
        return STATUS_OK;
    context->rank = comm_rank(context->session.comm);
    context->ranks = comm_size(context->session.comm);
    return mem_alloc_array(&context->env, MEM_OTHER, "facts", (size_t)context->ranks,
                           sizeof *context->facts, &context->facts);
}

static int open_context(const struct sifr_job *job, struct comm_hub *hub, int rank, int threads,
                        struct sifr_context **context)
{
    struct sifr_context *c = calloc(1, sizeof *c); /* there is no env yet to count it */
    if (!c)
        return SIFR_MEMORY;
    *c = (struct sifr_context){
        .rank = rank, .ranks = 1, .log = job->log, .user = job->user, .holders = 1};
    enum status st = env_create(&c->env, forward_line, c, LOG_INFO, threads);
    if (st != STATUS_OK) {
        free(c);
        return public_status(st);
    }
    st = join(c, job, hub);
    if (st != STATUS_OK) {
        if (hub)
            comm_hub_abort(hub, rank, sifr_error(c));
        context_release(c);
        return public_status(st);
    }
    *context = c;
    return SIFR_OK;
}

/* There is no context yet, so the message goes to the log only. */
static int refuse(const struct sifr_job *job, const char *message)
{
    if (job->log)
        job->log(job->user, 0, message);
    return SIFR_CONFIG;
}

static int read_job(const struct sifr_job *job, struct sifr_job *copy)
{
    struct launcher launcher;
    *copy = (struct sifr_job){.size = sizeof *copy};
    if (job && !copy_sized(copy, sizeof *copy, job, JOB_LEAST))
        return refuse(copy, "sifr_job: wrong size, or a field that this version does not know");
    if (copy->ranks < 0 || copy->ranks > MOST_RANKS || copy->threads < 0 || !(copy->timeout >= 0))
        return refuse(copy, "sifr_job: ranks must be 0 to 1024, threads and timeout at least 0");
    if (copy->bind != 0 && copy->bind != 1)
        return refuse(copy, "sifr_job: bind must be 0 or 1");
    if (copy->bind)
        placement_prepare();
    if (launcher_find(&launcher) && launcher.size > 1) {
        if (copy->ranks > 1 && copy->ranks != launcher.size)
            return refuse(copy, "sifr_job: a launcher has started another number of ranks; set "
                                "ranks = 0");
        copy->ranks = 0;
    }
    return SIFR_OK;
}

int sifr_join(const struct sifr_job *job, struct sifr_context **context)
{
    struct sifr_job copy;
    struct launcher launcher;
    *context = NULL;
    int status = read_job(job, &copy);
    if (status == SIFR_OK && copy.ranks > 1)
        status = refuse(&copy, "sifr_join: ranks as threads need sifr_run");
    if (status != SIFR_OK)
        return status;
    bool launched = launcher_find(&launcher), bound = launched && launcher_has_bound(&launcher);
    int local = launched ? launcher_local_ranks(launcher.size) : 1;
    int threads = copy.threads > 0 ? copy.threads : threads_default(local, bound).count;
    if (copy.bind && launched && !bound)
        placement_bind(local, threads, launcher.local_rank);
    return open_context(&copy, NULL, 0, threads, context);
}

void sifr_leave(struct sifr_context *context)
{
    if (!context)
        return;
    if (context->holders > 1)
        log_warn(&context->env,
                 "sifr_leave was called before %d of the trainers were destroyed: the rank stays "
                 "in the job until they are",
                 context->holders - 1);
    context_release(context);
}

/* --- all ranks of this process -------------------------------------------------------------- */

struct thread_rank {
    const struct sifr_job *job;
    struct comm_hub *hub;
    int rank, threads;
    int (*rank_main)(struct sifr_context *context, void *user);
    void *user;
    int status;
};

/* Run the program's function; if it fails, the other ranks learn of it. */
static int run_rank(struct sifr_context *context, int (*rank_main)(struct sifr_context *, void *),
                    void *user)
{
    char message[64];
    int status = rank_main(context, user);
    if (status != 0 && context->session.comm) {
        snprintf(message, sizeof message, "rank %d returned %d", context->rank, status);
        comm_abort(context->session.comm, *sifr_error(context) ? sifr_error(context) : message);
    }
    for (int forgotten = 0; context->trainers; forgotten++) {
        if (forgotten == 0)
            log_warn(&context->env,
                     "the function of rank %d has returned without destroying its "
                     "trainers; they are destroyed now",
                     context->rank);
        sifr_trainer_destroy(context->trainers);
    }
    sifr_leave(context);
    return status;
}

static void *thread_main(void *argument)
{
    struct thread_rank *rank = argument;
    struct sifr_context *context = NULL;
    if (rank->job->bind)
        placement_bind(rank->job->ranks, rank->threads, rank->rank);
    rank->status = open_context(rank->job, rank->hub, rank->rank, rank->threads, &context);
    if (rank->status == 0)
        rank->status = run_rank(context, rank->rank_main, rank->user);
    return NULL;
}

/* A rank that failed because of another one is not the cause. */
static int first_failure(const struct thread_rank *ranks, int count)
{
    int status = 0;
    for (int r = 0; r < count; r++)
        if (status == 0 || (status == SIFR_COMM && ranks[r].status != 0))
            status = ranks[r].status;
    return status;
}

static int run_threads(const struct sifr_job *job, struct comm_hub *hub, struct thread_rank *ranks,
                       pthread_t *threads)
{
    int started = 0;
    while (started < job->ranks &&
           pthread_create(&threads[started], NULL, thread_main, &ranks[started]) == 0)
        started++;
    if (started < job->ranks)
        comm_hub_abort(hub, started, "a thread could not be started; see ulimit -u");
    for (int r = 0; r < started; r++)
        pthread_join(threads[r], NULL);
    int status = first_failure(ranks, started);
    return status == 0 && started < job->ranks ? SIFR_IO : status;
}

static int run_in_threads(const struct sifr_job *job,
                          int (*rank_main)(struct sifr_context *, void *), void *user)
{
    struct env env;
    struct comm_hub *hub = NULL;
    size_t count = (size_t)job->ranks;
    struct thread_rank *ranks = calloc(count, sizeof *ranks);
    pthread_t *threads = calloc(count, sizeof *threads);
    enum status st = env_create(&env, NULL, NULL, LOG_ERROR, 1);
    int status = st == STATUS_OK && ranks && threads ? SIFR_OK : SIFR_MEMORY;
    if (status == SIFR_OK)
        status = public_status(comm_hub_create(&env, job->ranks, &hub));
    if (status == SIFR_OK) {
        int each = job->threads > 0 ? job->threads : threads_default(job->ranks, false).count;
        for (int r = 0; r < job->ranks; r++)
            ranks[r] = (struct thread_rank){job, hub, r, each, rank_main, user, 0};
        status = run_threads(job, hub, ranks, threads);
    }
    comm_hub_destroy(hub);
    if (st == STATUS_OK)
        env_destroy(&env);
    free(threads);
    free(ranks);
    return status;
}

int sifr_run(const struct sifr_job *job, int (*rank_main)(struct sifr_context *, void *),
             void *user)
{
    struct sifr_job copy;
    struct sifr_context *context;
    int status = read_job(job, &copy);
    if (status == SIFR_OK && !rank_main)
        status = refuse(&copy, "sifr_run: there is no function to run");
    if (status == SIFR_OK && copy.ranks > 1)
        return run_in_threads(&copy, rank_main, user);
    if (status == SIFR_OK)
        status = sifr_join(&copy, &context);
    return status == SIFR_OK ? run_rank(context, rank_main, user) : status;
}
