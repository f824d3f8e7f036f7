/* tickets -- the host side of an event: counters behind a condition variable. */
#include "base/clock.h"
#include "base/trace.h"
#include "device/device_impl.h"

void tickets_open(struct tickets *tickets)
{
    pthread_mutex_init(&tickets->lock, NULL);
    pthread_cond_init(&tickets->changed, NULL);
}

void tickets_close(struct tickets *tickets)
{
    pthread_mutex_lock(&tickets->lock);
    while (tickets->users > 0)
        pthread_cond_wait(&tickets->changed, &tickets->lock);
    pthread_mutex_unlock(&tickets->lock);
    pthread_cond_destroy(&tickets->changed);
    pthread_mutex_destroy(&tickets->lock);
}

static int64_t enter(struct tickets *tickets, int64_t new_tickets)
{
    pthread_mutex_lock(&tickets->lock);
    int64_t ticket = tickets->recorded += new_tickets;
    tickets->users++;
    pthread_mutex_unlock(&tickets->lock);
    return ticket;
}

int64_t tickets_record(struct tickets *tickets)
{
    return enter(tickets, 1);
}

int64_t tickets_newest(struct tickets *tickets)
{
    return enter(tickets, 0);
}

void tickets_pass(struct tickets *tickets, int64_t ticket)
{
    pthread_mutex_lock(&tickets->lock);
    if (tickets->passed < ticket)
        tickets->passed = ticket;
    tickets->users--;
    pthread_cond_broadcast(&tickets->changed);
    pthread_mutex_unlock(&tickets->lock);
}

void tickets_leave(struct tickets *tickets)
{
    tickets_pass(tickets, 0);
}

/* Only waits of compute are traced: a worker has nothing else to do. */
void tickets_await(struct tickets *tickets, int64_t ticket, struct stream *stream)
{
    pthread_mutex_lock(&tickets->lock);
    if (tickets->passed < ticket && !stream_failed(stream)) {
        struct trace *trace = stream->worker ? NULL : stream->device->env->trace;
        double start = clock_seconds(), traced = trace_begin(trace);
        atomic_store_explicit(&stream->waiting, true, memory_order_relaxed);
        while (tickets->passed < ticket)
            pthread_cond_wait(&tickets->changed, &tickets->lock);
        atomic_store_explicit(&stream->waiting, false, memory_order_relaxed);
        atomic_fetch_add_explicit(&stream->waited_ns, (int64_t)(1e9 * (clock_seconds() - start)),
                                  memory_order_relaxed);
        stream_trace_wait(stream, traced);
    }
    pthread_mutex_unlock(&tickets->lock);
}
