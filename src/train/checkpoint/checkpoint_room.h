/* checkpoint_room -- room on the disk for checkpoints: how much one takes, whether there is enough when
 * a run starts, and which may go to make room for the last one.
 */
#ifndef TRAIN_CHECKPOINT_ROOM_H
#define TRAIN_CHECKPOINT_ROOM_H
#include "train/checkpoint/checkpoint.h"

/* Bytes that a checkpoint takes: its files, and a little for blocks, folders and small files. */
uint64_t checkpoint_room_bytes(const struct checkpoint_layout *layout);

struct checkpoint_room_need {
    const char *folder; /* RUN/checkpoints */
    bool empty;         /* nothing that may be in the folder now will be there */
    const struct checkpoint_config *config;
    uint64_t bytes;      /* of one */
    int64_t step, steps; /* where the run stands, and all of them */
};

/* When a run starts: refuse it (STATUS_IO) if the disk has no room for one more checkpoint, and neither
 * checkpoint.fallback has nor checkpoint.make_room could make it; warn if it has no room for as many
 * as there will be at once. */
enum status checkpoint_room_check(struct env *env, const struct checkpoint_room_need *need);

/* Remove the oldest checkpoint that may go: not the newest, nor a multiple of `major`. *made: there was
 * one. The newest is read first: if it is damaged, nothing is removed. */
enum status checkpoint_room_make(struct env *env, const char *folder, int64_t major, bool *made);

#endif
