/* comm_price -- the time of calls between ranks on a cluster, to time a step without running it.
 *
 * A call consists of messages to some ranks of the same node and to some ranks of other nodes
 * (ranks are placed in order: rank r is on node r / node). Both kinds proceed at the same time,
 * each at its own rate:
 *
 *     latency + max over both kinds of (messages * message + bytes / bytes_per_second)
 *
 * A reduce-scatter adds the time to sum what has arrived; an all-reduce is a reduce-scatter and a
 * gather of the same size; a broadcast goes down its tree, one message after the other.
 */
#ifndef COMM_COMM_PRICE_H
#define COMM_COMM_PRICE_H
#include "comm/comm.h"

struct comm_wire {
    double latency;          /* seconds until the first byte of a call arrives */
    double message;          /* seconds per message, in addition to its bytes */
    double bytes_per_second; /* sent by a rank while it receives as many */
};

struct comm_prices {
    struct comm_wire inside, between; /* within a node, and between nodes */
    int node;                         /* ranks per node; 0 = all on one */
    double exchange;                  /* seconds of comm_exchange per doubling of the ranks */
    double theft; /* seconds of compute lost per second of an overlapping call: 0 where other
                     hardware moves the bytes, 1 where the same cores do */
    double sum_bytes_per_second; /* read by sums in rank order */
};

/* Seconds of a call of `kind` by rank `rank` of a communicator of `size` ranks, whose ranks in the
 * job are job_ranks (size, ascending). `bytes`: what this rank sends to all others, or receives,
 * whichever is more; for a broadcast the data; for a send or receive the message, to or from rank
 * `peer`, which other calls ignore. */
double comm_price(const struct comm_prices *prices, enum comm_kind kind, int size, int rank,
                  int peer, const int *job_ranks, double bytes);

/* From now on calls of a dry communicator take time on its device: calls on streams their price,
 * calls of the host `exchange`. This applies to all communicators of its rank. `prices` is
 * borrowed; NULL: calls take no time. */
void comm_set_prices(struct comm *comm, const struct comm_prices *prices);

#endif
