/* bench_calls -- calls of the ops timed on all ranks at once, and the figures of ops_price.h that
 * come nearest to them.
 *
 * Ranks of one machine share its memory and more, so each call is made by all of them together,
 * with the threads that each would have. Given a run they are exactly the calls that its step
 * makes.
 */
#ifndef CLI_BENCH_CALLS_H
#define CLI_BENCH_CALLS_H
#include "cli/json_out.h"
#include "plan/machine.h"
#include "plan/plan.h"
#include "train/session.h"

struct bench_calls {
    const struct plan_request *request; /* NULL: calls of a usual step */
    double seconds;                     /* for each call */
    struct console *console;            /* where progress is shown; NULL: nowhere */
};

struct bench_calls_line {
    struct ops_measured measured; /* seconds: the median over the ranks */
    double flops, bytes;
};

struct bench_calls_result {
    struct bench_calls_line *lines;
    int count;
    struct ops_rate rates[OPS_KIND_COUNT];
    double errors[OPS_KIND_COUNT]; /* at the worst: 1.2 = 20 % */
    double copy_bytes_per_second;
};

/* Collective over the session's ranks (comm NULL: it is one). The same result on all, up to who
 * frees it: bench_calls_free. */
enum status bench_calls_run(struct session *session, const struct bench_calls *config,
                            struct bench_calls_result *result);
void bench_calls_free(struct env *env, struct bench_calls_result *result);
/* Its half of a profile. The caller frees profile. */
enum status bench_calls_profile(struct env *env, const struct bench_calls_result *result,
                                struct machine_profile *profile);

void bench_calls_table(struct console *console, const struct bench_calls_result *result);
void bench_calls_json(struct json_out *json, const struct bench_calls_result *result);

#endif
