/* comm_price -- the time of a call by latency, messages and bytes; and spending it on a dry
 * device. */
#include "comm/comm_price.h"
#include <math.h>
#include "comm/comm_impl.h"

/* --- prices --------------------------------------------------------------------------------- */

static int node_of(const struct comm_prices *prices, int job_rank)
{
    return prices->node > 0 ? job_rank / prices->node : 0;
}

/* Other ranks on the node of `rank`: adjacent ones, because the ranks of a communicator are in
 * order. */
static int near_count(const struct comm_prices *prices, int size, int rank, const int *job_ranks)
{
    int node = node_of(prices, job_ranks[rank]), first = rank, end = rank + 1;
    if (prices->node <= 0)
        return size - 1;
    while (first > 0 && node_of(prices, job_ranks[first - 1]) == node)
        first--;
    while (end < size && node_of(prices, job_ranks[end]) == node)
        end++;
    return end - first - 1;
}

static double on_wire(const struct comm_wire *wire, double messages, double bytes)
{
    double move = wire->bytes_per_second > 0 ? bytes / wire->bytes_per_second : 0.0;
    return messages * wire->message + move;
}

/* A message to and from each of the other ranks. */
static double swap_price(const struct comm_prices *prices, int near, int far, double bytes)
{
    double each = bytes / (near + far), latency = 0.0, seconds = 0.0;
    if (near > 0) {
        latency = prices->inside.latency;
        seconds = on_wire(&prices->inside, near, near * each);
    }
    if (far > 0) {
        latency = fmax(latency, prices->between.latency);
        seconds = fmax(seconds, on_wire(&prices->between, far, far * each));
    }
    return latency + seconds;
}

static double sum_price(const struct comm_prices *prices, double bytes)
{
    return prices->sum_bytes_per_second > 0 ? bytes / prices->sum_bytes_per_second : 0.0;
}

static int doublings(int size)
{
    int count = 0;
    while (1 << count < size)
        count++;
    return count;
}

double comm_price(const struct comm_prices *prices, enum comm_kind kind, int size, int rank,
                  int peer, const int *job_ranks, double bytes)
{
    int near, far;
    double
        full; /* bytes that the sum reads, when the other ranks' parts are added to this rank's */
    if (size == 1)
        return 0.0;
    if (kind == COMM_CONTROL)
        return prices->exchange * doublings(size);
    if (kind == COMM_SEND || kind == COMM_RECV) {
        bool inside = node_of(prices, job_ranks[rank]) == node_of(prices, job_ranks[peer]);
        return swap_price(prices, inside, !inside, bytes);
    }
    near = near_count(prices, size, rank, job_ranks);
    far = size - 1 - near;
    full = bytes * size / (size - 1);
    switch (kind) {
    case COMM_REDUCE_SCATTER: return swap_price(prices, near, far, bytes) + sum_price(prices, full);
    case COMM_ALL_REDUCE:
        return 2 * swap_price(prices, near, far, bytes / 2) + sum_price(prices, full / 2);
    case COMM_BROADCAST: return doublings(size) * swap_price(prices, far == 0, far > 0, bytes);
    default: return swap_price(prices, near, far, bytes);
    }
}

/* --- dry calls ------------------------------------------------------------------------------ */

void comm_set_prices(struct comm *comm, const struct comm_prices *prices)
{
    CHECK(device_is_dry(comm->device));
    comm->job->prices = prices;
}

/* The `bytes` of comm_price. */
static double bytes_of(const struct comm_call *call)
{
    const struct comm *comm = call->comm;
    double out = (double)call->bytes_out, in = 0.0;
    double element = (double)dtype_bytes(call->type);
    if (call->kind == COMM_RECV || call->kind == COMM_BROADCAST)
        return (double)call->count * element;
    for (int r = 0; call->parts.recv_counts != NULL && r < comm->size; r++)
        in += r != comm->rank ? (double)call->parts.recv_counts[r] * element : 0.0;
    return in > out ? in : out;
}

double comm_spend(const struct comm_call *call, struct stream *stream)
{
    struct comm *comm = call->comm;
    const struct comm_prices *prices = comm->job->prices;
    if (prices == NULL)
        return 0.0;
    double seconds = comm_price(prices, call->kind, comm->size, comm->rank, call->peer,
                                comm->job_ranks, bytes_of(call));
    if (stream == NULL) {
        device_wait_until(comm->device, comm->idle_at);
        device_spend(comm->device, seconds);
        return seconds;
    }
    stream_spend(stream, seconds);
    comm->idle_at = fmax(comm->idle_at, stream_clock(stream));
    return seconds;
}
