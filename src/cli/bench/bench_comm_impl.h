/* bench_comm_impl -- what the files of bench_comm share: a group of ranks with memory for its
 * calls, and how one is timed. */
#ifndef CLI_BENCH_COMM_IMPL_H
#define CLI_BENCH_COMM_IMPL_H
#include "cli/bench/bench_comm.h"

enum {
    BENCH_COMM_SMALLEST = 1024, /* bytes */
    BENCH_COMM_GROWTH = 4,      /* from size to size */
    BENCH_COMM_BLOCK = 8192     /* elements that are summed at once, as in comm_sums.c */
};

/* One rank's place in a group, and the memory that its calls work on. */
struct bench_rig {
    struct comm *comm;
    struct stream *stream;
    float *a, *b, *scratch; /* `most` bytes each */
    size_t most;
    double *said; /* (size) what each rank says */
    double budget;
};

typedef void bench_call_fn(const struct bench_rig *rig, int64_t count);

/* Collective over the group, which has two ranks at least. */
enum status bench_rig_open(struct session *session, struct comm *comm,
                           const struct bench_comm_config *config, struct bench_rig *rig);
void bench_rig_close(struct session *session, struct bench_rig *rig);

/* The largest of what the ranks say. */
enum status bench_agree(const struct bench_rig *rig, double *value);
/* The median of as many calls as the budget has room for, on the slowest rank. */
enum status bench_time_call(const struct bench_rig *rig, bench_call_fn *call, int64_t count,
                            double *seconds);
/* Every kind and size: adds lines. */
enum status bench_time_group(struct bench_rig *rig, const struct bench_comm_config *config,
                             bool between, struct bench_comm_result *result);
/* A gather in which each sends `bytes`. */
int64_t bench_gather_count(int size, double bytes);
bench_call_fn bench_call_gather;

/* Seconds of compute that each second of gathers beside it takes, where `node` ranks share a
 * machine: bench_comm_overlap.c. */
enum status bench_time_theft(struct session *session, const struct bench_rig *rig, int node,
                             double *theft);
/* Bytes a second that are read by sums in rank order, as calls make them. */
enum status bench_time_sums(const struct bench_rig *rig, double *rate);

#endif
