/* comm_price -- what calls between ranks take on a cluster, so that a step can be timed without
 * running it.
 *
 * A call is messages to some ranks of the own node and to some of others (ranks are neighbours:
 * node r / node has rank r). Both go at once, each at its rate:
 *
 *     latency + max over both of (messages * message + bytes / bytes_per_second)
 *
 * A reduce-scatter is that and the sum of what has come, an all-reduce that and a gather of as
 * much; a broadcast goes down its tree, a message after the other.
 */
#ifndef COMM_COMM_PRICE_H
#define COMM_COMM_PRICE_H
#include "comm/comm.h"

struct comm_wire {
    double latency;          /* seconds until the first byte of a call is there */
    double message;          /* seconds that each message of a call takes beside its bytes */
    double bytes_per_second; /* that a rank sends, while it receives as many */
};

struct comm_prices {
    struct comm_wire inside, between; /* of a node, and from one to another */
    int node;                         /* ranks of a node; 0: all are on one */
    double exchange;                  /* seconds of comm_exchange for each doubling of the ranks */
    double theft; /* seconds of compute that each second of a call beside it takes: 0 where other
                        hardware moves the bytes, 1 where the same cores do */
    double sum_bytes_per_second; /* read, of sums in rank order inside a call */
};

/* Seconds of a call of `kind` by rank `rank` of the communicator's `size`, of which job_ranks
 * (size, ascending) are the numbers in the job. `bytes`: what this rank sends to the others in all,
 * or receives, if that is more; of a broadcast the data; of a pair's call its message, to or from
 * rank `peer`, which others do not look at. */
double comm_price(const struct comm_prices *prices, enum comm_kind kind, int size, int rank,
                  int peer, const int *job_ranks, double bytes);

/* From now on calls of a dry communicator take time on its device, which keeps it: those on streams
 * their price, those of the host `exchange`. So do those of all other communicators of its rank.
 * `prices` is borrowed; NULL: none. */
void comm_set_prices(struct comm *comm, const struct comm_prices *prices);

#endif
