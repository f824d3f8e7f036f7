/* comm_late -- how a job ends early: a rank is late, has left, makes other calls, or gives up.
 *
 * The first reason is recorded in the comm_job of every rank and ends every wait of the job, so all
 * ranks report the same. A rank that has waited too long asks the rank it waits for where that is.
 * If it is in the same call, its data is on its way; if it is still in an earlier one, it waits for
 * a third rank, which it will name itself.
 *
 * The same holds for a rank that is held up in another communicator: along a pipeline every rank
 * waits for its neighbour, and only the last of them for the missing rank. Calls that are posted
 * long before they are needed hold up nobody. A rank counts as held up when its compute stream
 * waits, when it is in a call on that stream or on the host, or when a thread of it waits for the
 * stream of a call. Work on a GPU cannot be seen from here.
 */
#include <stdio.h>
#include <string.h>
#include "comm/comm_impl.h"

/* --- jobs ----------------------------------------------------------------------------------- */

bool comm_job_fail(struct comm_job *job, const char *text)
{
    pthread_mutex_lock(&job->lock);
    bool first = !atomic_load(&job->failed);
    if (first) {
        snprintf(job->failure, sizeof job->failure, "%s", text);
        atomic_store_explicit(&job->failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&job->lock);
    return first;
}

void comm_job_end(struct comm_job *job, const char *text)
{
    if (job->backend->spread != NULL)
        job->backend->spread(job, text);
    else
        comm_job_fail(job, text);
}

enum status comm_job_ended(struct comm_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool first = !job->logged;
    job->logged = true;
    pthread_mutex_unlock(&job->lock);
    return first ? FAIL(job->env, COMM, "%s", job->failure) : STATUS_COMM;
}

void comm_set_compute_stream(struct comm *comm, const struct stream *stream)
{
    pthread_mutex_lock(&comm->job->lock);
    comm->job->compute = stream;
    pthread_mutex_unlock(&comm->job->lock);
}

/* Does this rank wait for others, in a communicator other than `id`? Needs the job's lock. */
static bool is_held_up_elsewhere(const struct comm_job *job, uint64_t id)
{
    if (job->compute == NULL)
        return false;
    bool waits = stream_is_waiting(job->compute);
    for (const struct comm *comm = job->comms; comm != NULL; comm = comm->next) {
        const struct stream *stream = comm->call_stream;
        if (comm->position.inside && comm->id != id &&
            (waits || stream == NULL || stream == job->compute || stream_is_awaited(stream)))
            return true;
    }
    return false;
}

void comm_job_position(struct comm_job *job, uint64_t id, struct comm_position *position)
{
    *position = (struct comm_position){.here = false};
    pthread_mutex_lock(&job->lock);
    for (const struct comm *comm = job->comms; comm != NULL; comm = comm->next) {
        if (comm->id == id)
            *position = comm->position;
    }
    memcpy(position->note, job->note, sizeof position->note);
    position->held_up = is_held_up_elsewhere(job, id);
    pthread_mutex_unlock(&job->lock);
}

void comm_note(struct comm *comm, const char *what)
{
    struct comm_job *job = comm->job;
    pthread_mutex_lock(&job->lock);
    snprintf(job->note, sizeof job->note, "%s", what);
    pthread_mutex_unlock(&job->lock);
}

enum status comm_status(const struct comm *comm)
{
    enum status st = (enum status)atomic_load(&comm->error);
    return st == STATUS_OK && comm_job_failed(comm->job) ? comm_job_ended(comm->job) : st;
}

void comm_abort(struct comm *comm, const char *reason)
{
    struct comm_job *job = comm->job;
    char text[COMM_FAILURE_BYTES];
    snprintf(text, sizeof text, "rank %d: %s", job->rank, reason);
    pthread_mutex_lock(&job->lock);
    job->logged = true; /* this rank knows the reason */
    pthread_mutex_unlock(&job->lock);
    comm_job_end(job, text);
}

/* Timeouts that a rank may take whose data is on its way: slow networks need long. */
enum { PATIENCE = 10 };

const char *comm_kind_word(enum comm_kind kind)
{
    static const char *const words[] = {
#define X(name, word) [COMM_##name] = word,
        COMM_KINDS(X)
#undef X
    };
    CHECK_LT((unsigned)kind, COMM_KIND_COUNT);
    return words[kind];
}

/* --- naming the late rank ------------------------------------------------------------------- */

/* Name a call of this rank: `all_gather 1841 ("gather")`. Its newest call is at comm->position,
 * which this thread wrote. */
static void name_call(const struct comm *comm, const struct comm_position *position, char *out,
                      size_t bytes)
{
    snprintf(out, bytes, "%s %lld (\"%s\")", comm_kind_word(position->kind),
             (long long)position->call, comm->name);
}

static bool is_on_its_way(const struct comm *comm, const struct comm_position *mine,
                          const struct comm_position *theirs)
{
    bool there = theirs->inside || mine->on_gpu; /* its thread has left a call that is on a GPU */
    if (comm_is_pair(mine->kind))
        return there && theirs->peer == comm->rank &&
               theirs->kind == (mine->kind == COMM_SEND ? COMM_RECV : COMM_SEND);
    return theirs->number > mine->number ||
           (there && theirs->number == mine->number && theirs->kind == mine->kind);
}

/* It is held up in a call that this rank has finished, or in another communicator: by a third rank,
 * which it names itself. */
static bool is_held_up(const struct comm_position *mine, const struct comm_position *theirs)
{
    bool pair = comm_is_pair(mine->kind);
    return theirs->held_up || (!pair && theirs->inside && theirs->number < mine->number);
}

/* What follows "rank 2 has not arrived at ... for 30 s; ". */
static void tell_position(const struct comm_position *position, char *out, size_t bytes)
{
    char call[64] = "";
    if (!position->here) {
        snprintf(out, bytes, "it has left, or has not joined yet");
        return;
    }
    if (position->inside)
        snprintf(call, sizeof call, "%s %lld", comm_kind_word(position->kind),
                 (long long)position->call);
    if (position->note[0] == '\0')
        snprintf(out, bytes, "it is in %s", position->inside ? call : "no call");
    else
        snprintf(out, bytes, "it is in \"%s\"%s%s", position->note, position->inside ? ", " : "",
                 call);
}

/* A rank that does not answer cannot say where it is, but it is near the rank that waits for it. */
static void tell_own_position(struct comm_job *job, char *out, size_t bytes)
{
    out[0] = '\0';
    pthread_mutex_lock(&job->lock);
    if (job->note[0] != '\0')
        snprintf(out, bytes, ", in \"%s\",", job->note);
    pthread_mutex_unlock(&job->lock);
}

static enum status end_job(struct comm *comm, const char *text)
{
    comm_job_end(comm->job, text);
    return comm_job_ended(comm->job);
}

enum status comm_late(struct comm *comm, int peer, double seconds)
{
    return comm_late_at(comm, &comm->position, peer, seconds);
}

enum status comm_late_at(struct comm *comm, const struct comm_position *mine, int peer,
                         double seconds)
{
    struct comm_position position;
    char call[96], where[192], text[COMM_FAILURE_BYTES];
    int who = comm->job_ranks[peer];
    name_call(comm, mine, call, sizeof call);
    if (!comm->backend->ask(comm, peer, &position)) {
        tell_own_position(comm->job, where, sizeof where);
        snprintf(text, sizeof text,
                 "rank %d does not answer; rank %d%s has waited for it in %s for %.3g s", who,
                 comm->job->rank, where, call, seconds);
    } else if (position.here && comm->patient) {
        return STATUS_OK;
    } else if (position.here && is_on_its_way(comm, mine, &position)) {
        if (seconds < PATIENCE * comm->job->timeout)
            return STATUS_OK;
        snprintf(text, sizeof text, "rank %d is also in %s, but has sent nothing for %.3g s", who,
                 call, seconds);
    } else if (position.here && is_held_up(mine, &position) &&
               seconds < PATIENCE * comm->job->timeout) {
        return STATUS_OK;
    } else {
        tell_position(&position, where, sizeof where);
        snprintf(text, sizeof text, "rank %d has not arrived at %s for %.3g s; %s", who, call,
                 seconds, where);
    }
    return end_job(comm, text);
}

void comm_set_patient(struct comm *comm, bool patient)
{
    comm->patient = patient;
}

enum status comm_gone(struct comm *comm, int peer)
{
    char call[96], text[COMM_FAILURE_BYTES];
    name_call(comm, &comm->position, call, sizeof call);
    snprintf(text, sizeof text, "rank %d has left; %s waits for it", comm->job_ranks[peer], call);
    return end_job(comm, text);
}

enum status comm_mismatch(struct comm *comm, int peer, const char *what)
{
    char call[96], text[COMM_FAILURE_BYTES];
    name_call(comm, &comm->position, call, sizeof call);
    snprintf(text, sizeof text,
             "rank %d %s in %s; all ranks must make the same calls in the same order",
             comm->job_ranks[peer], what, call);
    return end_job(comm, text);
}
