/* train_end -- what `sifr train` shows when a run has ended: the curve, figures, where things are, what to
 * do next; or all of it as one JSON object. When it is shown is train_view.c's business. */
#ifndef CLI_TRAIN_END_H
#define CLI_TRAIN_END_H
#include "cli/train/train_view.h"

void train_end_json(struct train_view *view, const struct trainer_summary *s, const char *folder);
void train_end_print(struct train_view *view, const struct trainer_summary *s, const char *folder);
/* Of the memory that a rank computes in. */
const struct footprint *train_end_held(const struct footprint_worst *held);

#endif
