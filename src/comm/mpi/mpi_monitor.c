/* mpi_monitor -- one thread per rank that exchanges notices with the other ranks during calls:
 * where are you, I have left, the job ends, goodbye.
 *
 * It has its own communicator and looks for notices every few milliseconds, whatever the rest of
 * the rank does. So a rank that computes, hangs in a file system or waits elsewhere still answers;
 * a rank that is stopped or dead does not, and that is the answer. Notices are small and sent from
 * an outbox without waiting; those of one rank arrive in the order in which they were sent, and its
 * goodbye is the last.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "comm/mpi/mpi_impl.h"

enum { NOTICE_TAG = 1 };
static const double LOOK_EVERY = 5e-3, ANSWER_WITHIN = 3, LAST_WORDS_WITHIN = 3;
static const double LAST_NOTICE_WITHIN = 1;

/* --- sending -------------------------------------------------------------------------------- */

/* Whether MPI no longer uses an entry of the outbox. Needs the lock. */
static bool is_sent(struct outgoing *entry)
{
    int done = 1;
    MPI_Status status;
    if (entry->request != MPI_REQUEST_NULL)
        MPI_Test(&entry->request, &done, &status);
    return done;
}

/* An entry that is free; NULL = all are in flight. Needs the lock. */
static struct outgoing *free_entry(struct mpi_job *job)
{
    for (int i = 0; i < job->outbox_size; i++)
        if (is_sent(&job->outbox[i]))
            return &job->outbox[i];
    return NULL;
}

/* May the caller keep waiting for other ranks to receive notices? Many ranks on few processors are
 * slow, and a lost notice would end a healthy job. When the job has failed it matters little. */
static bool may_wait(struct mpi_job *job, double start)
{
    double limit = comm_job_failed(&job->base) ? LAST_NOTICE_WITHIN : job->base.timeout;
    return limit <= 0 || clock_seconds() - start < limit;
}

static void post(struct mpi_job *job, int to, const struct notice *notice)
{
    double start = clock_seconds();
    pthread_mutex_lock(&job->lock);
    struct outgoing *entry = free_entry(job);
    while (entry == NULL && may_wait(job, start)) {
        pthread_mutex_unlock(&job->lock);
        clock_sleep(1e-3);
        pthread_mutex_lock(&job->lock);
        entry = free_entry(job);
    }
    if (entry != NULL) { /* otherwise no rank receives notices any more */
        entry->notice = *notice;
        MPI_Isend(&entry->notice, (int)sizeof entry->notice, MPI_BYTE, to, NOTICE_TAG, job->wire,
                  &entry->request);
    }
    pthread_mutex_unlock(&job->lock);
}

static void post_to_all(struct mpi_job *job, const struct notice *notice)
{
    for (int i = 1; i < job->base.size; i++)
        post(job, (job->base.rank + i) % job->base.size, notice);
}

/* Wait until everything posted has been sent; true = it has. */
static bool drain(struct mpi_job *job)
{
    double start = clock_seconds();
    for (;;) {
        bool busy = false;
        pthread_mutex_lock(&job->lock);
        for (int i = 0; i < job->outbox_size; i++)
            busy |= !is_sent(&job->outbox[i]);
        pthread_mutex_unlock(&job->lock);
        if (!busy || !may_wait(job, start))
            return !busy;
        clock_sleep(1e-3);
    }
}

/* --- receiving ------------------------------------------------------------------------------ */

static void answer(struct mpi_job *job, int from, const struct notice *notice)
{
    struct notice reply = {.what = NOTICE_ANSWER, .id = notice->id, .number = notice->number};
    comm_job_position(&job->base, notice->id, &reply.position);
    post(job, from, &reply);
}

static void note_departure(struct mpi_job *job, int from, const struct notice *notice)
{
    pthread_mutex_lock(&job->base.lock);
    for (struct comm *comm = job->base.comms; comm != NULL; comm = comm->next) {
        struct mpi_comm *mpi = (struct mpi_comm *)comm;
        for (int r = 0; comm->id == notice->id && r < comm->size; r++) {
            if (comm->job_ranks[r] != from)
                continue;
            mpi->departures[r] = (struct departure){true, notice->number, clock_seconds()};
            atomic_fetch_add(&mpi->departure_count, 1);
        }
    }
    pthread_mutex_unlock(&job->base.lock);
}

static void take_answer(struct mpi_job *job, const struct notice *notice)
{
    pthread_mutex_lock(&job->lock);
    for (struct question *q = job->questions; q != NULL; q = q->next) {
        if (q->number != notice->number)
            continue;
        q->position = notice->position;
        q->answered = true;
    }
    pthread_mutex_unlock(&job->lock);
}

static void take(struct mpi_job *job, int from, const struct notice *notice)
{
    switch (notice->what) {
    case NOTICE_ASK: answer(job, from, notice); break;
    case NOTICE_LEFT: note_departure(job, from, notice); break;
    case NOTICE_END: comm_job_fail(&job->base, notice->text); break;
    case NOTICE_ANSWER: take_answer(job, notice); break;
    case NOTICE_BYE:
        pthread_mutex_lock(&job->lock);
        job->bye_count++;
        job->all_clean = job->all_clean && notice->clean;
        pthread_mutex_unlock(&job->lock);
        break;
    }
}

static void *monitor_main(void *arg)
{
    struct mpi_job *job = arg;
    while (!atomic_load(&job->monitor_stops)) {
        struct notice notice;
        MPI_Status status;
        int there = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_TAG, job->wire, &there, &status);
        if (!there) {
            clock_sleep(LOOK_EVERY);
        } else if (MPI_Recv(&notice, (int)sizeof notice, MPI_BYTE, status.MPI_SOURCE, NOTICE_TAG,
                            job->wire, &status) == MPI_SUCCESS) {
            take(job, status.MPI_SOURCE, &notice);
        }
    }
    return NULL;
}

/* --- starting and stopping ------------------------------------------------------------------ */

enum status mpi_monitor_start(struct mpi_job *job)
{
    enum status st;
    struct env *env = job->base.env;
    int error;
    job->all_clean = true;
    pthread_mutex_init(&job->lock, NULL);
    if (job->base.size == 1)
        return STATUS_OK;
    job->outbox_size = 2 * job->base.size + 8;
    TRY_OR(undo_lock, mem_alloc_array(env, MEM_OTHER, "monitor", (size_t)job->outbox_size,
                                      sizeof *job->outbox, &job->outbox));
    for (int i = 0; i < job->outbox_size; i++)
        job->outbox[i].request = MPI_REQUEST_NULL;
    st = STATUS_COMM;
    if ((error = MPI_Comm_dup(MPI_COMM_WORLD, &job->wire)) != MPI_SUCCESS) {
        mpi_failed(env, "MPI_Comm_dup", error);
        goto undo_outbox;
    }
    MPI_Comm_set_errhandler(job->wire, MPI_ERRORS_RETURN);
    if ((error = thread_start(&job->monitor, monitor_main, job)) != 0) {
        FAIL(env, COMM, "cannot start the monitor thread: %s; check ulimit -u", strerror(error));
        goto undo_wire;
    }
    pthread_setname_np(job->monitor, "monitor");
    return STATUS_OK;
undo_wire:
    MPI_Comm_free(&job->wire);
undo_outbox:
    mem_free(env, job->outbox);
undo_lock:
    pthread_mutex_destroy(&job->lock);
    return st;
}

static int bye_count(struct mpi_job *job)
{
    pthread_mutex_lock(&job->lock);
    int count = job->bye_count;
    pthread_mutex_unlock(&job->lock);
    return count;
}

/* The other ranks end, too, sooner or later. When the job has failed, do not wait long for them. */
static bool wait_for_byes(struct mpi_job *job)
{
    double start = clock_seconds(), nap = 1e-4;
    while (bye_count(job) < job->base.size - 1) {
        bool failed = comm_job_failed(&job->base);
        double limit = failed ? LAST_WORDS_WITHIN : job->base.timeout;
        if (limit > 0 && clock_seconds() - start > limit) {
            if (!failed)
                log_warn(job->base.env, "%d of %d other ranks have not ended within %.3g s",
                         job->base.size - 1 - bye_count(job), job->base.size - 1, limit);
            return false;
        }
        clock_sleep(nap);
        nap = nap < LOOK_EVERY ? nap * 1.5 : LOOK_EVERY;
    }
    return true;
}

bool mpi_monitor_stop(struct mpi_job *job)
{
    bool clean = true;
    if (job->base.size > 1) {
        struct notice bye = {.what = NOTICE_BYE, .clean = !atomic_load(&job->unclean)};
        post_to_all(job, &bye);
        clean = wait_for_byes(job) && job->all_clean && bye.clean;
        atomic_store(&job->monitor_stops, true);
        pthread_join(job->monitor, NULL);
        bool drained = drain(job);
        clean = drained && clean;
        if (clean)
            MPI_Comm_free(&job->wire);
        if (!drained) /* MPI still reads the outbox */
            mem_keep_freed(job->base.env->mem);
        mem_free(job->base.env, job->outbox);
    }
    pthread_mutex_destroy(&job->lock);
    return clean;
}

/* --- entries of the back end's table -------------------------------------------------------- */

bool mpi_monitor_ask(struct comm *comm, int peer, struct comm_position *position)
{
    struct mpi_job *job = (struct mpi_job *)comm->job;
    struct question question, **at = &job->questions;
    bool answered;
    double limit = clock_seconds() + ANSWER_WITHIN;
    pthread_mutex_lock(&job->lock);
    question = (struct question){.next = job->questions, .number = ++job->question_count};
    job->questions = &question;
    pthread_mutex_unlock(&job->lock);
    post(job, comm->job_ranks[peer],
         &(struct notice){.what = NOTICE_ASK, .id = comm->id, .number = question.number});
    do {
        clock_sleep(1e-3);
        pthread_mutex_lock(&job->lock);
        answered = question.answered;
        pthread_mutex_unlock(&job->lock);
    } while (!answered && clock_seconds() < limit);
    pthread_mutex_lock(&job->lock);
    while (*at != &question)
        at = &(*at)->next;
    *at = question.next;
    pthread_mutex_unlock(&job->lock);
    if (question.answered)
        *position = question.position;
    return question.answered;
}

void mpi_monitor_spread(struct comm_job *base, const char *text)
{
    struct mpi_job *job = (struct mpi_job *)base;
    struct notice end = {.what = NOTICE_END};
    if (!comm_job_fail(base, text) || base->size == 1)
        return;
    memcpy(end.text, base->failure, sizeof end.text);
    post_to_all(job, &end);
    drain(job);
}

void mpi_monitor_left(struct comm *comm)
{
    struct mpi_job *job = (struct mpi_job *)comm->job;
    struct notice left = {.what = NOTICE_LEFT, .id = comm->id, .number = comm->position.number};
    for (int i = 1; i < comm->size; i++)
        post(job, comm->job_ranks[(comm->rank + i) % comm->size], &left);
}
