/* train_end -- what `sifr train` prints at the end of a run. */
#ifndef CLI_TRAIN_END_H
#define CLI_TRAIN_END_H
#include "cli/train/train_view.h"

/* The loss curve, figures, the checkpoint and the next command; with --json one object. After a
 * failure people see only its message, as the last line. */
void train_end_show(struct train_view *view, const struct trainer_summary *summary,
                    const char *folder);

#endif
