/* checkpoint_list -- lists all chunks of a checkpoint that was just written, with their hashes.
 *
 * Every rank knows which chunks the others have written, and in which order, so only the hashes are
 * sent. */
#ifndef TRAIN_CHECKPOINT_LIST_H
#define TRAIN_CHECKPOINT_LIST_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint_state.h"

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
