/* checkpoint_list -- every piece of every file of a checkpoint that has been written, with its hash,
 * at the first rank.
 *
 * Which parts a rank writes, and in which order, everybody knows; so only the hashes are sent. */
#ifndef TRAIN_CHECKPOINT_LIST_H
#define TRAIN_CHECKPOINT_LIST_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint_state.h"

struct checkpoint_listed;
struct checkpoint_list { /* open; checkpoint_list_free it, also when create has failed */
    struct env *env;     /* borrowed */
    const struct checkpoint_layout *layout; /* borrowed */
    int ranks;
    struct checkpoint_listed *items; /* those of a rank lie together */
    int64_t *first;                  /* (ranks + 1) */
    int64_t count;
};

enum status checkpoint_list_create(struct env *env, const struct checkpoint_layout *layout,
                                   const struct zero *zero, int ranks,
                                   struct checkpoint_list *list);
void checkpoint_list_free(struct checkpoint_list *list);

/* The hashes of all ranks' parts into the list; `room` has checkpoint_list_room bytes. Collective;
 * `comm` NULL: one rank. */
enum status checkpoint_list_gather(struct checkpoint_list *list, struct comm *comm,
                                   const uint64_t *hashes, int64_t hash_count, void *room);
size_t checkpoint_list_room(int ranks);

/* The files of the layout, and those beside them in `folder`, which are read for it. */
enum status checkpoint_list_entries(const struct checkpoint_list *list, const char *folder,
                                    struct checkpoint_state *state);
bool checkpoint_list_is_plain(const char *name); /* Is it the name of one of those? */

#endif
