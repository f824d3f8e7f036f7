/* slots -- which piece lies where and when, while a sharded model is walked: tables made at
 * start-up.
 *
 * A walk goes over neighbouring units forward, backward, or forward and back again; it has one
 * entry for each unit that it meets. Of n units:
 *
 *     forward    entry    0   1  ..  n-1            backward   entry    0    1  ..  n-1
 *                unit     0   1  ..  n-1                       unit    n-1  n-2 ..   0
 *
 *     both       entry    0   1  ..  n-2   n-1   n  ..  2n-2
 *                unit     0   1  ..  n-2   n-1   n-2 ..  0
 *
 * The loss is the last unit's entry in any of them. A residency is a piece in a slot from its first
 * entry to its last. It is gathered `prefetch` entries ahead of the first; a piece that is wanted
 * again within two entries stays (the last block of the forward pass is the first of the backward
 * pass). A table depends on the graph, the walk and `prefetch` alone, so that all ranks gather in
 * the same order and nothing is searched for in a step.
 */
#ifndef ZERO_SLOTS_H
#define ZERO_SLOTS_H
#include "zero/partition.h"

struct slot_walk { /* over units first .. end-1 */
    int first, end;
    enum walk_way way;
};

struct residency {
    int piece, slot;
    int issue, first, last; /* entries */
    int before;             /* the piece's residency before this one; -1 = none */
};

struct slot_table {
    struct slot_walk walk;
    struct residency *residencies; /* in the order of their gathers */
    int residency_count;
    int *latest;         /* (pieces) its last residency; -1 = none */
    int64_t *slot_count; /* (slots) elements */
    int slots;
    int entries;
};

enum status slot_table_create(struct env *env, const struct partition *partition,
                              struct slot_walk walk, int prefetch, struct slot_table *table);
void slot_table_free(struct env *env, struct slot_table *table);

/* The entry in which `pass` of unit u runs. */
int slot_entry(struct slot_walk walk, int u, enum pass pass);
/* The residency of `piece` in `entry`; -1 = none. */
int slot_find_residency(const struct slot_table *table, int piece, int entry);
/* The same; it must be there. */
int slot_residency(const struct slot_table *table, int piece, int entry);
int64_t slot_table_total(const struct slot_table *table); /* elements of all slots */

#endif
