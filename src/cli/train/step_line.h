/* step_line -- the one line a person reads while a model trains:
 *
 *   step   120/2000   6.0% | loss 3.2841 | gnorm 0.83 | lr 3.00e-04 | 412 ms | 79.5k tok/s |
 *   mfu 41.2% | mem 23.1 GiB | eta 12m54s                             (all of it one line)
 *
 * and on a GPU that tells, "| 1755 MHz, 640 W" after mfu.
 */
#ifndef CLI_STEP_LINE_H
#define CLI_STEP_LINE_H
#include "train/trainer.h"

enum { STEP_LINE_BYTES = 320 };

/* Into `out` (STEP_LINE_BYTES); what is not known (mfu, eta) is left out. Returns out. */
char *step_line(char *out, const struct trainer_step *step);

#endif
