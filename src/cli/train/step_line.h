/* step_line -- the line of a step:
 *
 *   step   120/2000   6.0% | loss 3.2841 | gnorm 0.83 | lr 3.00e-04 | 412 ms | 79.5k tok/s |
 *   mfu 41.2% | mem 23.1 GiB | eta 12m54s                             (in one line)
 *
 * If the GPU reports them, "| 1755 MHz, 640 W" follows mfu.
 */
#ifndef CLI_STEP_LINE_H
#define CLI_STEP_LINE_H
#include "train/trainer.h"

enum { STEP_LINE_BYTES = 320 };

/* Format a step into `out` (STEP_LINE_BYTES), without figures that are not known (mfu, eta).
 * Returns out. */
char *step_line(char *out, const struct trainer_step *step);

#endif
