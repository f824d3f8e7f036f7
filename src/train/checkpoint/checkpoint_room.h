/* checkpoint_room -- disk space for checkpoints: how much one needs, whether there is enough when a
 * run starts, and which old ones may be removed to make room for the last one.
 */
#ifndef TRAIN_CHECKPOINT_ROOM_H
#define TRAIN_CHECKPOINT_ROOM_H
#include "train/checkpoint/checkpoint.h"

/* Disk space that a checkpoint needs: its tensor files plus a margin for file-system blocks,
 * folders and small files. */
uint64_t checkpoint_room_bytes(const struct checkpoint_layout *layout);

struct checkpoint_room_need {
    const char *folder; /* RUN/checkpoints */
    bool empty;         /* ignore what is in the folder now: it will be moved away */
    const struct checkpoint_config *config;
    uint64_t bytes;      /* of one checkpoint */
    int64_t step, steps; /* steps done, and steps of the whole run */
};

/* Called when a run starts. Fails with STATUS_IO if the disk has no room for one more checkpoint
 * and neither checkpoint.fallback nor checkpoint.make_room can help. Warns if there is no room for
 * the largest number of checkpoints that will exist at once. */
enum status checkpoint_room_check(struct env *env, const struct checkpoint_room_need *need);

/* Remove the oldest checkpoint that is neither the newest nor a multiple of `major`. *made tells
 * whether there was one. The newest is verified first: if it is damaged, nothing is removed. */
enum status checkpoint_room_make(struct env *env, const char *folder, int64_t major, bool *made);

#endif
