/* comm_watch -- one thread per rank that watches calls in flight on GPUs.
 *
 * A call on a channel is enqueued, and its thread continues. A thread that waits for the stream
 * then waits inside the driver, where it cannot learn that a rank has died. So a thread checks
 * every channel a few times a second:
 *
 *   - the library reports an error: the job ends, and the other ranks learn why;
 *   - the job has ended: streams with calls in flight fail, and the channels are aborted, so that
 *     kernels that wait for other GPUs return;
 *   - no call has finished for the timeout: the ranks of the oldest call are asked where they are,
 *     and a rank that has not reached it is named (comm_late.c).
 *
 * A call is in flight from the moment its thread reaches it, because the library may also block
 * that thread until other ranks come, until the GPU has passed its mark. At most COMM_WATCHED calls
 * of a communicator are recorded: the oldest ones, and a call that hangs is always among them.
 */
#include <string.h>
#include "base/clock.h"
#include "base/thread.h"
#include "comm/comm_impl.h"

static const double LOOK_EVERY = 0.02;
static const double LONGEST_END = 5.0; /* seconds for an aborted channel to become quiet */

/* --- calls in flight ------------------------------------------------------------------------ */

/* Remove the calls that the GPU has passed; returns the number left. Needs the communicator's
 * lock. */
static int64_t retire(struct comm *comm)
{
    struct comm_flight *flight = &comm->flight;
    while (flight->passed < flight->begun) {
        int slot = (int)(flight->passed % COMM_WATCHED);
        if (!flight->marked[slot] || !comm->job->transport->passed(comm->channel, slot))
            break;
        flight->marked[slot] = false;
        flight->passed++;
        flight->since = clock_seconds();
        flight->asked = 0;
    }
    return flight->begun - flight->passed;
}

int comm_flight_begin(struct comm *comm, const struct comm_position *position,
                      struct stream *stream)
{
    struct comm_flight *flight = &comm->flight;
    int slot = -1;
    pthread_mutex_lock(&comm->lock);
    int64_t count = retire(comm);
    if (count == 0) {
        flight->since = clock_seconds();
        flight->asked = 0;
    }
    if (count < COMM_WATCHED) {
        slot = (int)(flight->begun++ % COMM_WATCHED);
        flight->calls[slot] = *position;
        flight->streams[slot] = stream;
    }
    pthread_mutex_unlock(&comm->lock);
    return slot;
}

void comm_flight_mark(struct comm *comm, int slot, struct stream *stream)
{
    comm->job->transport->mark(comm->channel, slot, stream);
    pthread_mutex_lock(&comm->lock);
    comm->flight.marked[slot] = true;
    pthread_mutex_unlock(&comm->lock);
}

void comm_flight_wait(struct comm *comm)
{
    double limit = 0;
    for (int64_t left = 1; left > 0;) {
        pthread_mutex_lock(&comm->lock);
        left = retire(comm);
        pthread_mutex_unlock(&comm->lock);
        if (comm_job_failed(comm->job)) {
            limit = limit > 0 ? limit : clock_seconds() + LONGEST_END;
            if (clock_seconds() > limit)
                return;
        }
        if (left > 0)
            clock_sleep(50e-6);
    }
}

/* --- the thread ----------------------------------------------------------------------------- */

/* Fail the streams of calls that will never finish, so that threads that wait for them get an
 * error. */
static void fail_streams(struct comm *comm)
{
    struct comm_flight *flight = &comm->flight;
    enum status st = comm_job_ended(comm->job);
    pthread_mutex_lock(&comm->lock);
    retire(comm);
    for (int64_t i = flight->passed; i < flight->begun; i++)
        stream_fail(flight->streams[i % COMM_WATCHED], st);
    pthread_mutex_unlock(&comm->lock);
}

static void *ender_main(void *arg)
{
    struct comm *comm = arg;
    comm->job->transport->abort(comm->channel);
    return NULL;
}

/* The job has ended: abort all channels. Each has a thread of its own, because an abort waits for
 * the GPU, and so for the other channels. */
static void end_channels(struct comm *first)
{
    for (struct comm *comm = first; comm != NULL; comm = comm->next_watched) {
        if (comm->flight.ended)
            continue;
        fail_streams(comm);
        if (pthread_create(&comm->flight.ender, NULL, ender_main, comm) != 0) {
            log_warn(comm->env, "cannot start a thread to abort \"%s\"", comm->name);
            continue;
        }
        comm->flight.ended = true;
    }
}

/* Ask every rank that takes part in the oldest call. The first that has not reached it ends the
 * job. */
static void ask(struct comm *comm, const struct comm_position *position, double seconds)
{
    bool pair = comm_is_pair(position->kind);
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank || (pair && r != position->peer))
            continue;
        if (comm_late_at(comm, position, r, seconds) != STATUS_OK)
            return;
    }
}

static void look_at(struct comm *comm)
{
    struct comm_job *job = comm->job;
    struct comm_flight *flight = &comm->flight;
    char why[256];
    if (job->transport->failed(comm->channel, why, sizeof why)) {
        FAIL(comm->env, COMM, "%s", why);
        comm_abort(comm, why);
        return;
    }
    pthread_mutex_lock(&comm->lock);
    int64_t count = retire(comm);
    struct comm_position oldest = flight->calls[flight->passed % COMM_WATCHED];
    double waited = clock_seconds() - flight->since;
    bool late = count > 0 && job->timeout > 0 && waited >= job->timeout * (flight->asked + 1);
    flight->asked += late;
    pthread_mutex_unlock(&comm->lock);
    if (late)
        ask(comm, &oldest, waited);
}

static void *watch_main(void *arg)
{
    struct comm_job *job = arg;
    struct comm_watch *watch = &job->watch;
    while (!atomic_load(&watch->stops)) {
        pthread_mutex_lock(&watch->lock);
        for (struct comm *comm = watch->comms; comm != NULL; comm = comm->next_watched) {
            if (!comm_job_failed(job))
                look_at(comm);
        }
        if (comm_job_failed(job))
            end_channels(watch->comms);
        pthread_mutex_unlock(&watch->lock);
        clock_sleep(LOOK_EVERY);
    }
    return NULL;
}

enum status comm_watch_start(struct comm_job *job)
{
    struct comm_watch *watch = &job->watch;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_mutex_init(&job->issue_lock, NULL);
    atomic_init(&watch->stops, false);
    int error = thread_start(&watch->thread, watch_main, job);
    watch->running = error == 0;
    if (watch->running)
        return STATUS_OK;
    pthread_mutex_destroy(&job->issue_lock);
    pthread_mutex_destroy(&watch->lock);
    return FAIL(job->env, COMM, "cannot start the watch thread: %s; check ulimit -u",
                strerror(error));
}

void comm_watch_stop(struct comm_job *job)
{
    struct comm_watch *watch = &job->watch;
    if (!watch->running)
        return;
    CHECK(watch->comms == NULL);
    atomic_store(&watch->stops, true);
    pthread_join(watch->thread, NULL);
    pthread_mutex_destroy(&job->issue_lock);
    pthread_mutex_destroy(&watch->lock);
}

void comm_watch_add(struct comm *comm)
{
    struct comm_watch *watch = &comm->job->watch;
    pthread_mutex_lock(&watch->lock);
    comm->next_watched = watch->comms;
    watch->comms = comm;
    pthread_mutex_unlock(&watch->lock);
}

void comm_watch_remove(struct comm *comm)
{
    struct comm_watch *watch = &comm->job->watch;
    pthread_mutex_lock(&watch->lock);
    struct comm **at = &watch->comms;
    while (*at != comm)
        at = &(*at)->next_watched;
    *at = comm->next_watched;
    pthread_mutex_unlock(&watch->lock);
    if (comm->flight.ended)
        pthread_join(comm->flight.ender, NULL);
}
