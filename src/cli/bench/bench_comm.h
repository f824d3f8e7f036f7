/* bench_comm -- how fast ranks talk: every kind of call at sizes of gradients and of votes, and the
 * figures of comm_price.h that come nearest to them.
 *
 * Beside each stands a plain copy of as many bytes, made on all ranks at once in the same run: what
 * a machine can do at best with its memory.
 */
#ifndef CLI_BENCH_COMM_H
#define CLI_BENCH_COMM_H
#include "cli/json_out.h"
#include "plan/machine_fit.h"
#include "train/session.h"

struct bench_comm_config {
    int64_t largest; /* bytes that a rank sends in a call, at most */
    double seconds;  /* for each kind and size */
    int64_t node;    /* ranks of a node; 0 = those on one host */
};

enum { BENCH_COMM_SIZES = 16, BENCH_COMM_KINDS = 6 };

struct bench_comm_line {
    const char *what; /* "all_gather" */
    bool between;     /* nodes; else inside one */
    int messages;     /* to so many ranks */
    double bytes;     /* that a rank sends */
    double seconds;   /* median over calls, of the slowest rank */
    double copy_rate; /* bytes a second of a plain copy of as many; 0: not measured */
};

struct bench_comm_result {
    struct bench_comm_line lines[2 * BENCH_COMM_KINDS * BENCH_COMM_SIZES + 1];
    int count;
    struct comm_prices prices;
    double inside_error, between_error; /* at the worst, of calls that move bytes: 1.2 = 20 % */
    int ranks, node;
};

/* Collective over the session's ranks, of which there are two at least. The same result on all. */
enum status bench_comm_run(struct session *session, const struct bench_comm_config *config,
                           struct bench_comm_result *result);

void bench_comm_table(struct console *console, const struct bench_comm_result *result);
void bench_comm_json(struct json_out *json, const struct bench_comm_result *result);

#endif
