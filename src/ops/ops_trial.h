/* ops_trial -- one case with its tensors in device memory, ready to run and to read back.
 *
 * Every tensor has an image on the host: its contents before the call. Inputs are drawn from the
 * seed and the tensor's name (so every back end and compute type gets the same values), or come
 * from a run of the forward op. Outputs, scratch and what lies between rows are NaN (0x5a bytes for
 * integers). A guard follows each tensor. Reset copies the images to the device again.
 */
#ifndef OPS_OPS_TRIAL_H
#define OPS_OPS_TRIAL_H
#include "ops/ops_cases.h"

struct ops_trial;

/* `ops`, `stream` and the strings of `c` are borrowed. The tensors are as after ops_trial_reset. */
enum status ops_trial_create(struct ops *ops, struct stream *stream, const struct ops_case *c,
                             uint64_t seed, struct ops_trial **trial);
void ops_trial_destroy(struct ops_trial *trial); /* NULL is fine */

const struct ops_op *ops_trial_op(const struct ops_trial *trial);
const struct ops_call *ops_trial_call(const struct ops_trial *trial);

void ops_trial_reset(struct ops_trial *trial);
void ops_trial_run(struct ops_trial *trial); /* enqueues */
/* The same, with the output of index `tensor` written over the input of that name. */
void ops_trial_run_aliased(struct ops_trial *trial, int tensor, const char *input);

/* Synchronize and copy a tensor to the host. The result is valid until the next read. */
const void *ops_trial_read(struct ops_trial *trial, int tensor);
/* The tensor's image, to read or change. Changes take effect with the next reset. */
void *ops_trial_image(struct ops_trial *trial, int tensor);

/* Copy the inputs of another trial of the same case, converted to this trial's types, and reset.
 * With it the reference computes from the rounded inputs of a 16-bit back end. */
void ops_trial_take(struct ops_trial *trial, const struct ops_trial *from);

/* After a run: whether every output was written completely, and no input or guard and nothing
 * between rows was changed. If not, `why` (OPS_CASE_NAME bytes) names the problem. */
bool ops_trial_is_sound(struct ops_trial *trial, char *why);

/* --- timing, for `sifr bench` (ops_bench.c) ------------------------------------------------- */

/* Cases with the shapes of training steps. */
struct ops_bench_case {
    const char *name; /* "matmul 2048" */
    struct ops_case shape;
};

extern const struct ops_bench_case ops_bench_cases[];
extern const int ops_bench_case_count;

struct ops_bench_result {
    double seconds; /* of one call: the median */
    double gflops;
    double gbytes_per_second; /* inputs read once and outputs written once */
    int64_t calls;            /* number of timed calls */
};

/* Time a case for about `min_seconds` after one call that is not counted. The calls cycle through
 * up to `copies` copies of the tensors, fewer if these are large. With one copy a call finds its
 * inputs in the caches as far as they fit; with several, about as in a step, where other calls come
 * between. */
enum { OPS_BENCH_LOCATIONS = 8 };
enum status ops_bench_run(struct ops *ops, const struct ops_case *c, int copies, double min_seconds,
                          struct ops_bench_result *result);

#endif
