/* checkpoint_write -- writes one checkpoint, and lists its chunks. For checkpoint_*.c only. */
#ifndef TRAIN_CHECKPOINT_WRITE_H
#define TRAIN_CHECKPOINT_WRITE_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint.h"

struct checkpoint_job {
    struct env *env; /* borrowed; has its own log, whose first error belongs to this save */
    const struct checkpoint_setup *setup;   /* borrowed */
    const struct checkpoint_layout *layout; /* borrowed */
    struct comm *comm;                      /* borrowed; NULL = one rank */
    struct checkpoint_progress progress;
    struct progress_task *task; /* bytes of the checkpoint, by all ranks together */
    double stood;               /* seconds that this rank's run was blocked before the call */
    void *room; /* checkpoint_write_room bytes, allocated in advance: an agreement must not fail
                     on one rank only */
};

size_t checkpoint_write_room(int ranks);

/* Collective. *result is the same on every rank, except `note`, `bytes` and the seconds other than
 * `stood`. */
void checkpoint_write(const struct checkpoint_job *job, struct checkpoint_result *result);

/* --- the list of chunks --------------------------------------------------------------------- */

/* All chunks of a checkpoint that was just written, with their hashes. Every rank knows which chunks
 * the others have written, and in which order, so only the hashes are sent. */
struct checkpoint_listed;
struct checkpoint_list { /* open; checkpoint_list_free it, also after a failed create */
    struct env *env;     /* borrowed */
    const struct checkpoint_layout *layout; /* borrowed */
    int ranks;
    struct checkpoint_listed *items; /* grouped by rank; sorted by file after gather */
    int64_t *first;                  /* (ranks + 1): the first item of each rank */
    int64_t count;
};

enum status checkpoint_list_create(struct env *env, const struct checkpoint_layout *layout,
                                   const struct zero *zero, int ranks,
                                   struct checkpoint_list *list);
void checkpoint_list_free(struct checkpoint_list *list);

/* Fill in the hashes of all ranks. `hashes` are those of this rank's parts; `room` is a buffer of
 * checkpoint_list_room bytes. Collective; `comm` is NULL for one rank. */
enum status checkpoint_list_gather(struct checkpoint_list *list, struct comm *comm,
                                   const uint64_t *hashes, int64_t hash_count, void *room);
size_t checkpoint_list_room(int ranks);

/* Fill in state->entries: the tensor files, and the plain files found in `folder`, which are read
 * and hashed. */
enum status checkpoint_list_entries(const struct checkpoint_list *list, const char *folder,
                                    struct checkpoint_state *state);
/* Is this the name of a plain file, one without tensors? */
bool checkpoint_list_is_plain(const char *name);

#endif
