/* bench_comm -- the speed of communication: every kind of call, from the size of a vote to the size
 * of a gradient, and the prices of comm_price.h fitted to them.
 *
 * Each call is compared with a plain copy of as many bytes, made on all ranks at once in the same
 * run: the upper bound that memory sets.
 */
#ifndef CLI_BENCH_COMM_H
#define CLI_BENCH_COMM_H
#include "cli/json_out.h"
#include "plan/machine_fit.h"
#include "train/session.h"

struct bench_comm_config {
    int64_t largest; /* most bytes that a rank sends in a call */
    double seconds;  /* time for each kind and size */
    int64_t node;    /* ranks per node; 0 = a node is a host */
};

enum { BENCH_COMM_SIZES = 16, BENCH_COMM_KINDS = 6 };

struct bench_comm_line {
    const char *what; /* "all_gather" */
    bool between;     /* between nodes; otherwise within a node */
    int messages;     /* number of ranks that a rank sends to */
    double bytes;     /* sent by a rank */
    double seconds;   /* median over calls, of the slowest rank */
    double copy_rate; /* bytes per second of a plain copy of as many bytes; 0 = not measured */
};

struct bench_comm_result {
    struct bench_comm_line lines[2 * BENCH_COMM_KINDS * BENCH_COMM_SIZES + 1];
    int count;
    struct comm_prices prices;
    double inside_error, between_error; /* of the worst fitted call: 1.2 = off by 20 % */
    int ranks, node;
};

/* Collective over the ranks of the session, at least two. All ranks get the same result. */
enum status bench_comm_run(struct session *session, const struct bench_comm_config *config,
                           struct bench_comm_result *result);

void bench_comm_table(struct console *console, const struct bench_comm_result *result);
void bench_comm_json(struct json_out *json, const struct bench_comm_result *result);

#endif
