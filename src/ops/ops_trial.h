/* ops_trial -- one case with its tensors in device memory, ready to run and to read back.
 *
 * Every tensor has an image on the host: its contents before the call. Inputs are drawn from the
 * seed and the tensor's name (so every back end and compute type gets the same values), or come
 * from a run of the forward op. Outputs and scratch are NaN (0x5a bytes for integers). A guard
 * follows each tensor. Reset copies the images to the device again.
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

/* After a run: whether every output was written completely, and no input or guard was changed. If
 * not, `why` (OPS_CASE_NAME bytes) names the problem. */
bool ops_trial_is_sound(struct ops_trial *trial, char *why);

#endif
