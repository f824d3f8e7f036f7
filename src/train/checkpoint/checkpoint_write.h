/* checkpoint_write -- one save: the walk of all ranks from nothing to a folder under its name. */
#ifndef TRAIN_CHECKPOINT_WRITE_H
#define TRAIN_CHECKPOINT_WRITE_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint.h"

struct checkpoint_job {
    struct env *env; /* borrowed: with a log of its own, whose first error is that of this save */
    const struct checkpoint_setup *setup;   /* borrowed */
    const struct checkpoint_layout *layout; /* borrowed */
    struct comm *comm;                      /* borrowed; NULL: one rank */
    bool from_snapshot;                     /* the store's copy is read, not the store */
    struct checkpoint_progress progress;
    double stood; /* for how long this rank's run stood still before */
    void *room; /* checkpoint_write_room bytes, taken before: nobody fails alone at an agreement */
};

size_t checkpoint_write_room(int ranks);
/* What a rank takes for pieces while it writes, and gives back. */
size_t checkpoint_write_bytes(void);

/* Collective. What came of it is in *result, the same on every rank but for `note`,
 * `bytes` and the seconds other than `stood`. */
void checkpoint_write(const struct checkpoint_job *job, struct checkpoint_result *result);

#endif
