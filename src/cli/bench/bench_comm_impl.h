/* bench_comm_impl -- shared by the files of bench_comm: a group of ranks with buffers, and the
 * timing of one call. */
#ifndef CLI_BENCH_COMM_IMPL_H
#define CLI_BENCH_COMM_IMPL_H
#include "cli/bench/bench.h"

enum {
    BENCH_COMM_SMALLEST = 1024, /* bytes */
    BENCH_COMM_GROWTH = 4,      /* factor from one size to the next */
    BENCH_COMM_BLOCK = 8192     /* elements summed at once, as in comm_sums.c */
};

/* A rank as a member of a group, with the buffers of its calls. */
struct bench_rig {
    struct comm *comm;
    struct stream *stream;
    float *a, *b, *scratch; /* `most` bytes each */
    size_t most;
    double *said;  /* (size) one value from each rank */
    double budget; /* seconds for each kind and size */
};

typedef void bench_call_fn(const struct bench_rig *rig, int64_t count);

/* Collective over the group, which has at least two ranks. */
enum status bench_rig_open(struct session *session, struct comm *comm,
                           const struct bench_comm_config *config, struct bench_rig *rig);
void bench_rig_close(struct session *session, struct bench_rig *rig);

/* Replace *value by the largest value of all ranks. Collective. */
enum status bench_agree(const struct bench_rig *rig, double *value);
/* The median of as many calls as fit in the budget, on the slowest rank. Collective. */
enum status bench_time_call(const struct bench_rig *rig, bench_call_fn *call, int64_t count,
                            double *seconds);
/* Time every kind and size, and add a line for each. */
enum status bench_time_group(struct bench_rig *rig, const struct bench_comm_config *config,
                             bool between, struct bench_comm_result *result);
/* Elements of a gather in which each rank sends about `bytes`. */
int64_t bench_gather_count(int size, double bytes);
bench_call_fn bench_call_gather;

/* --- bench_comm_overlap.c --- */
/* Seconds of compute lost for each second of concurrent gathers, where `node` ranks share a
 * machine. */
enum status bench_time_theft(struct session *session, const struct bench_rig *rig, int node,
                             double *theft);
/* Bytes per second read by sums in rank order, as collectives make them. */
enum status bench_time_sums(const struct bench_rig *rig, double *rate);

#endif
