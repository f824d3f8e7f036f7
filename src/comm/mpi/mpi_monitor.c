/* mpi_monitor -- a thread a rank that speaks with the other ranks beside the calls: where are you,
 * I have left, the job ends, goodbye.
 *
 * It has its own communicator and looks for notices every few milliseconds, whatever the rest of
 * the rank does, so a rank that computes, hangs in a file system or waits elsewhere still answers;
 * one that is stopped or dead does not, and that is the answer. Notices are small and sent without
 * waiting from an outbox; those of one rank arrive in the order in which they were sent, and its
 * goodbye is the last.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "comm/mpi/mpi_impl.h"

enum { NOTICE_TAG = 1 };
static const double LOOK_EVERY = 5e-3, ANSWER_WITHIN = 3, LAST_WORDS_WITHIN = 3;
static const double LAST_NOTICE_WITHIN = 1;

/* --- sending -------------------------------------------------------------------------------- */

/* With the lock held: a place in the outbox that MPI does not need; NULL = all are under way. */
static struct outgoing *free_place(struct mpi_home *home)
{
    for (int i = 0; i < home->outbox_size; i++) {
        int done = 1;
        MPI_Status status;
        struct outgoing *place = &home->outbox[i];
        if (place->request != MPI_REQUEST_NULL)
            MPI_Test(&place->request, &done, &status);
        if (done)
            return place;
    }
    return NULL;
}

/* Is it worth while to wait on for others to take notices? Many ranks on few processors are slow at
 * it, and a notice that is lost ends a job that was well; when the job has failed it matters
 * little. */
static bool may_wait(struct mpi_home *home, double start)
{
    double limit = comm_home_failed(&home->base) ? LAST_NOTICE_WITHIN : home->base.timeout;
    return limit <= 0 || clock_seconds() - start < limit;
}

static void post(struct mpi_home *home, int to, const struct notice *notice)
{
    double start = clock_seconds();
    pthread_mutex_lock(&home->lock);
    struct outgoing *place = free_place(home);
    while (place == NULL && may_wait(home, start)) {
        pthread_mutex_unlock(&home->lock);
        mpi_nap(1e-3);
        pthread_mutex_lock(&home->lock);
        place = free_place(home);
    }
    if (place != NULL) { /* otherwise nobody takes notices any more */
        place->notice = *notice;
        MPI_Isend(&place->notice, (int)sizeof place->notice, MPI_BYTE, to, NOTICE_TAG, home->wire,
                  &place->request);
    }
    pthread_mutex_unlock(&home->lock);
}

static void post_to_all(struct mpi_home *home, const struct notice *notice)
{
    for (int i = 1; i < home->base.size; i++)
        post(home, (home->base.rank + i) % home->base.size, notice);
}

/* Until everything posted is under way; true = it is. */
static bool drain(struct mpi_home *home)
{
    double start = clock_seconds();
    for (;;) {
        bool busy = false;
        pthread_mutex_lock(&home->lock);
        for (int i = 0; i < home->outbox_size; i++) {
            int done = 1;
            MPI_Status status;
            if (home->outbox[i].request != MPI_REQUEST_NULL)
                MPI_Test(&home->outbox[i].request, &done, &status);
            busy = busy || !done;
        }
        pthread_mutex_unlock(&home->lock);
        if (!busy || !may_wait(home, start))
            return !busy;
        mpi_nap(1e-3);
    }
}

/* --- receiving ------------------------------------------------------------------------------ */

static void answer(struct mpi_home *home, int from, const struct notice *notice)
{
    struct notice reply = {.what = NOTICE_ANSWER, .id = notice->id, .number = notice->number};
    comm_home_place(&home->base, notice->id, &reply.place);
    post(home, from, &reply);
}

static void note_departure(struct mpi_home *home, int from, const struct notice *notice)
{
    pthread_mutex_lock(&home->base.lock);
    for (struct comm *comm = home->base.comms; comm != NULL; comm = comm->next) {
        struct mpi_comm *mpi = (struct mpi_comm *)comm;
        for (int r = 0; comm->id == notice->id && r < comm->size; r++) {
            if (comm->job_ranks[r] != from)
                continue;
            mpi->departures[r] = (struct departure){true, notice->number, clock_seconds()};
            atomic_fetch_add(&mpi->departure_count, 1);
        }
    }
    pthread_mutex_unlock(&home->base.lock);
}

static void take_answer(struct mpi_home *home, const struct notice *notice)
{
    pthread_mutex_lock(&home->lock);
    for (struct question *q = home->questions; q != NULL; q = q->next) {
        if (q->number != notice->number)
            continue;
        q->place = notice->place;
        q->answered = true;
    }
    pthread_mutex_unlock(&home->lock);
}

static void take(struct mpi_home *home, int from, const struct notice *notice)
{
    switch (notice->what) {
    case NOTICE_ASK: answer(home, from, notice); break;
    case NOTICE_LEFT: note_departure(home, from, notice); break;
    case NOTICE_END: comm_home_fail(&home->base, notice->text); break;
    case NOTICE_ANSWER: take_answer(home, notice); break;
    case NOTICE_BYE:
        pthread_mutex_lock(&home->lock);
        home->bye_count++;
        home->all_clean = home->all_clean && notice->clean;
        pthread_mutex_unlock(&home->lock);
        break;
    }
}

static void *monitor_main(void *arg)
{
    struct mpi_home *home = arg;
    while (!atomic_load(&home->monitor_stops)) {
        struct notice notice;
        MPI_Status status;
        int there = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_TAG, home->wire, &there, &status);
        if (!there) {
            mpi_nap(LOOK_EVERY);
        } else if (MPI_Recv(&notice, (int)sizeof notice, MPI_BYTE, status.MPI_SOURCE, NOTICE_TAG,
                            home->wire, &status) == MPI_SUCCESS) {
            take(home, status.MPI_SOURCE, &notice);
        }
    }
    return NULL;
}

/* --- its life ------------------------------------------------------------------------------- */

static int start_thread(struct mpi_home *home)
{
    int error = thread_start(&home->monitor, monitor_main, home);
    if (error == 0)
        pthread_setname_np(home->monitor, "monitor");
    return error;
}

enum status mpi_monitor_start(struct mpi_home *home)
{
    enum status st;
    struct env *env = home->base.env;
    int error;
    home->all_clean = true;
    pthread_mutex_init(&home->lock, NULL);
    if (home->base.size == 1)
        return STATUS_OK;
    home->outbox_size = 2 * home->base.size + 8;
    TRY_OR(undo_lock, mem_alloc_array(env, MEM_OTHER, "monitor", (size_t)home->outbox_size,
                                      sizeof *home->outbox, &home->outbox));
    for (int i = 0; i < home->outbox_size; i++)
        home->outbox[i].request = MPI_REQUEST_NULL;
    st = STATUS_COMM;
    if ((error = MPI_Comm_dup(MPI_COMM_WORLD, &home->wire)) != MPI_SUCCESS) {
        mpi_failed(env, "MPI_Comm_dup", error);
        goto undo_outbox;
    }
    MPI_Comm_set_errhandler(home->wire, MPI_ERRORS_RETURN);
    if ((error = start_thread(home)) != 0) {
        FAIL(env, COMM, "cannot start the monitor's thread: %s; see ulimit -u", strerror(error));
        goto undo_wire;
    }
    return STATUS_OK;
undo_wire:
    MPI_Comm_free(&home->wire);
undo_outbox:
    mem_free(env, home->outbox);
undo_lock:
    pthread_mutex_destroy(&home->lock);
    return st;
}

static int bye_count(struct mpi_home *home)
{
    pthread_mutex_lock(&home->lock);
    int count = home->bye_count;
    pthread_mutex_unlock(&home->lock);
    return count;
}

/* The others end too, sooner or later; when the job has failed, nobody waits long for them. */
static bool wait_for_byes(struct mpi_home *home)
{
    double start = clock_seconds(), nap = 1e-4;
    while (bye_count(home) < home->base.size - 1) {
        bool failed = comm_home_failed(&home->base);
        double limit = failed ? LAST_WORDS_WITHIN : home->base.timeout;
        if (limit > 0 && clock_seconds() - start > limit) {
            if (!failed)
                log_warn(home->base.env, "%d of %d other ranks have not ended within %.3g s",
                         home->base.size - 1 - bye_count(home), home->base.size - 1, limit);
            return false;
        }
        mpi_nap(nap);
        nap = nap < LOOK_EVERY ? nap * 1.5 : LOOK_EVERY;
    }
    return true;
}

bool mpi_monitor_stop(struct mpi_home *home)
{
    bool clean = true;
    if (home->base.size > 1) {
        struct notice bye = {.what = NOTICE_BYE, .clean = !atomic_load(&home->unclean)};
        post_to_all(home, &bye);
        clean = wait_for_byes(home) && home->all_clean && bye.clean;
        atomic_store(&home->monitor_stops, true);
        pthread_join(home->monitor, NULL);
        bool drained = drain(home);
        clean = drained && clean;
        if (clean)
            MPI_Comm_free(&home->wire);
        if (!drained) /* MPI still reads the outbox */
            mem_keep_freed(home->base.env->mem);
        mem_free(home->base.env, home->outbox);
    }
    pthread_mutex_destroy(&home->lock);
    return clean;
}

/* --- for the back end's table --------------------------------------------------------------- */

static void open_question(struct mpi_home *home, struct question *question)
{
    pthread_mutex_lock(&home->lock);
    *question = (struct question){.next = home->questions, .number = ++home->question_count};
    home->questions = question;
    pthread_mutex_unlock(&home->lock);
}

static bool close_question(struct mpi_home *home, struct question *question)
{
    pthread_mutex_lock(&home->lock);
    struct question **link = &home->questions;
    while (*link != question)
        link = &(*link)->next;
    *link = question->next;
    bool answered = question->answered;
    pthread_mutex_unlock(&home->lock);
    return answered;
}

static bool is_answered(struct mpi_home *home, const struct question *question)
{
    pthread_mutex_lock(&home->lock);
    bool answered = question->answered;
    pthread_mutex_unlock(&home->lock);
    return answered;
}

bool mpi_monitor_ask(struct comm *comm, int peer, struct comm_place *place)
{
    struct mpi_home *home = (struct mpi_home *)comm->home;
    struct question question;
    double limit = clock_seconds() + ANSWER_WITHIN;
    open_question(home, &question);
    post(home, comm->job_ranks[peer],
         &(struct notice){.what = NOTICE_ASK, .id = comm->id, .number = question.number});
    do
        mpi_nap(1e-3);
    while (!is_answered(home, &question) && clock_seconds() < limit);
    if (!close_question(home, &question))
        return false;
    *place = question.place;
    return true;
}

void mpi_monitor_spread(struct comm_home *base, const char *text)
{
    struct mpi_home *home = (struct mpi_home *)base;
    struct notice end = {.what = NOTICE_END};
    if (!comm_home_fail(base, text) || base->size == 1)
        return;
    memcpy(end.text, base->failure, sizeof end.text);
    post_to_all(home, &end);
    drain(home);
}

void mpi_monitor_left(struct comm *comm)
{
    struct mpi_home *home = (struct mpi_home *)comm->home;
    struct notice left = {.what = NOTICE_LEFT, .id = comm->id, .number = comm->place.number};
    for (int i = 1; i < comm->size; i++)
        post(home, comm->job_ranks[(comm->rank + i) % comm->size], &left);
}
