/* slots -- which slot holds which piece, and when, during a walk over a sharded model. The tables
 * are built once, at start-up.
 *
 * A walk runs over consecutive units forward, backward, or forward and then backward. It has one
 * entry for each unit it visits. With n units:
 *
 *     forward    entry    0   1  ..  n-1            backward   entry    0    1  ..  n-1
 *                unit     0   1  ..  n-1                       unit    n-1  n-2 ..   0
 *
 *     both       entry    0   1  ..  n-2   n-1   n  ..  2n-2
 *                unit     0   1  ..  n-2   n-1   n-2 ..  0
 *
 * Where the first units have no backward pass (unit_graph.backward_from), `both` ends before them.
 * In every walk the loss belongs to the entry of the last unit. A residency is the time that a
 * piece stays in a slot, from its first entry to its last. The piece is gathered `prefetch` entries
 * before the first. If it is needed again within two entries, it stays: the last block of the
 * forward pass is the first of the backward pass. In a forward walk a piece that is needed again
 * always stays. A table depends only on the graph, the walk and `prefetch`, so all ranks gather in
 * the same order, and a step does no searching.
 */
#ifndef ZERO_SLOTS_H
#define ZERO_SLOTS_H
#include "zero/partition.h"

struct slot_walk { /* units first .. end-1 */
    int first, end;
    enum walk_way way;
};

struct residency {
    int piece, slot;
    int issue, first, last; /* as entries; the gather is issued at `issue` */
    int before;             /* the piece's previous residency; -1 = none */
};

struct slot_table {
    struct slot_walk walk;
    struct residency *residencies; /* in gather order */
    int residency_count;
    int *latest;         /* (pieces) the piece's last residency; -1 = none */
    int64_t *slot_count; /* (slots) their sizes in elements */
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

#endif
