/* checkpoint_write -- writes one checkpoint. */
#ifndef TRAIN_CHECKPOINT_WRITE_H
#define TRAIN_CHECKPOINT_WRITE_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint.h"

struct checkpoint_job {
    struct env *env; /* borrowed; has its own log, whose first error belongs to this save */
    const struct checkpoint_setup *setup;   /* borrowed */
    const struct checkpoint_layout *layout; /* borrowed */
    struct comm *comm;                      /* borrowed; NULL = one rank */
    bool from_snapshot;                     /* read the store's snapshot, not the store */
    struct checkpoint_progress progress;
    double stood; /* seconds that this rank's run was blocked before the call */
    void *room;   /* checkpoint_write_room bytes, allocated in advance: an agreement must not fail
                     on one rank only */
};

size_t checkpoint_write_room(int ranks);
/* Bytes that a rank allocates for chunks while it writes. */
size_t checkpoint_write_bytes(void);

/* Collective. *result is the same on every rank, except `note`, `bytes` and the seconds other than
 * `stood`. */
void checkpoint_write(const struct checkpoint_job *job, struct checkpoint_result *result);

#endif
