/* ops_trial -- a case made real on one ops: its tensors in device memory, drawn, run and read
 * back.
 *
 * Every tensor has an image on the host of what it is before the call: inputs are drawn from the
 * seed and the tensor's name (so every back end and compute type gets the same values), or come
 * from a run of the forward op; outputs and scratch are NaN (0x5a bytes for integers); a guard
 * follows each. Reset puts the images back.
 */
#ifndef OPS_OPS_TRIAL_H
#define OPS_OPS_TRIAL_H
#include "ops/ops_cases.h"

struct ops_trial;

/* `ops`, `stream` and what `c` points to are borrowed. The tensors are as after ops_trial_reset. */
enum status ops_trial_create(struct ops *ops, struct stream *stream, const struct ops_case *c,
                             uint64_t seed, struct ops_trial **trial);
void ops_trial_destroy(struct ops_trial *trial); /* NULL is fine */

const struct ops_op *ops_trial_op(const struct ops_trial *trial);
const struct ops_call *ops_trial_call(const struct ops_trial *trial);

void ops_trial_reset(struct ops_trial *trial);
void ops_trial_run(struct ops_trial *trial); /* enqueues */
/* The same with the output `tensor` (an index) in the place of the input named `place`. */
void ops_trial_run_aliased(struct ops_trial *trial, int tensor, const char *place);

/* Wait, and copy a tensor to the host; it lives until the next read. */
const void *ops_trial_read(struct ops_trial *trial, int tensor);
/* The tensor's image, to read or change: it is there after the next reset. */
void *ops_trial_image(struct ops_trial *trial, int tensor);

/* Give a trial the inputs of another one of the same case, converted to its types, and reset it: the
 * reference then judges what a 16-bit back end made of its own rounded inputs. */
void ops_trial_take(struct ops_trial *trial, const struct ops_trial *from);

/* After a run: whether every output was written whole, every input left alone and every guard too.
 * If not, `why` (OPS_CASE_NAME bytes) says what. */
bool ops_trial_is_sound(struct ops_trial *trial, char *why);

#endif
