/* bench_calls -- ops timed on all ranks at once, and the prices of ops_price.h fitted to them.
 *
 * Ranks of one machine compete for its memory, so all of them make each call at the same time, with
 * the threads that each would have in a run. With the configuration of a run, the calls are exactly
 * those of its step.
 */
#ifndef CLI_BENCH_CALLS_H
#define CLI_BENCH_CALLS_H
#include "cli/json_out.h"
#include "plan/machine.h"
#include "plan/plan.h"
#include "train/session.h"

struct bench_calls {
    const struct plan_request *request; /* NULL = the calls of a typical step */
    double seconds;                     /* time for each call */
    struct console *console;            /* for the live line; NULL = none */
};

struct bench_calls_line {
    struct ops_measured measured; /* seconds: the median over the ranks */
    double flops, bytes;
};

struct bench_calls_result {
    struct bench_calls_line *lines;
    int count;
    struct ops_rate rates[OPS_KIND_COUNT];
    double errors[OPS_KIND_COUNT]; /* of the worst call: 1.2 = off by 20 % */
    double copy_bytes_per_second;
};

/* Collective over the ranks of the session (comm NULL = a single rank). All ranks get the same
 * result and free it with bench_calls_free. */
enum status bench_calls_run(struct session *session, const struct bench_calls *config,
                            struct bench_calls_result *result);
void bench_calls_free(struct env *env, struct bench_calls_result *result);
/* Fill the ops half of a profile. The caller frees the profile. */
enum status bench_calls_profile(struct env *env, const struct bench_calls_result *result,
                                struct machine_profile *profile);

void bench_calls_table(struct console *console, const struct bench_calls_result *result);
void bench_calls_json(struct json_out *json, const struct bench_calls_result *result);

#endif
