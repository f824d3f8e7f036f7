/* slots -- simulates one walk and gives every residency the best slot that is free by then. */
#include "zero/slots.h"

enum {
    STAY = 2
}; /* a piece stays in its slot when its next use is at most this many entries later; in a forward
      walk it stays in any case: a tied embedding that is used by the head is not gathered twice */

static bool is_backward(enum pass pass)
{
    return pass == PASS_REBUILD || pass == PASS_BACKWARD || pass == PASS_BACKWARD_INPUT;
}

int slot_entry(struct slot_walk walk, int u, enum pass pass)
{
    int last = walk.end - 1;
    if (walk.way == WALK_BACKWARD)
        return last - u;
    return walk.way == WALK_BOTH && is_backward(pass) ? 2 * last - walk.first - u : u - walk.first;
}

static int entry_unit(struct slot_walk walk, int entry)
{
    int last = walk.end - 1;
    if (walk.way == WALK_BACKWARD)
        return last - entry;
    return walk.first + entry <= last ? walk.first + entry : 2 * last - walk.first - entry;
}

/* Whether `pass` can run in this entry. The loss runs where the backward part begins. */
static bool entry_has(struct slot_walk walk, int entry, enum pass pass)
{
    switch (walk.way) {
    case WALK_FORWARD: return !is_backward(pass);
    case WALK_BACKWARD: return is_backward(pass) || (entry == 0 && pass == PASS_LOSS);
    default: return is_backward(pass) == (entry >= walk.end - walk.first);
    }
}

/* Whether the unit reads a param of `piece` in any pass of this entry. */
static bool entry_reads(const struct unit_graph *graph, struct slot_walk walk, int entry, int piece)
{
    int u = entry_unit(walk, entry);
    uint32_t uses = 0;
    for (int pass = 0; pass < PASS_COUNT; pass++)
        if (entry_has(walk, entry, pass))
            uses |= graph->units[u].type->reads[pass];
    return unit_uses_piece(graph, u, uses, piece);
}

static void add_use(struct slot_table *t, int piece, int entry, int prefetch)
{
    int before = t->latest[piece], issue = entry > prefetch ? entry - prefetch : 0;
    bool forward = t->walk.way == WALK_FORWARD;
    if (before >= 0 && (forward || entry - t->residencies[before].last <= STAY)) {
        t->residencies[before].last = entry;
        return;
    }
    t->latest[piece] = t->residency_count;
    t->residencies[t->residency_count++] = (struct residency){
        .piece = piece, .issue = issue, .first = entry, .last = entry, .before = before};
}

static void add_uses(const struct unit_graph *graph, struct slot_table *t, int prefetch)
{
    int pieces[UNIT_MAX_USES];
    for (int i = 0; i < graph->piece_count; i++)
        t->latest[i] = -1;
    for (int entry = 0; entry < t->entries; entry++) {
        int count = unit_pieces(graph, entry_unit(t->walk, entry), pieces);
        for (int i = 0; i < count; i++)
            if (entry_reads(graph, t->walk, entry, pieces[i]))
                add_use(t, pieces[i], entry, prefetch);
    }
}

/* A slot that is free at `issue`: the smallest that is large enough, else the largest; -1: none. */
static int choose_slot(const struct slot_table *t, const int *busy_until, int issue, int64_t count)
{
    int best = -1;
    for (int s = 0; s < t->slots; s++) {
        if (busy_until[s] >= issue)
            continue;
        if (best < 0)
            best = s;
        bool fits = t->slot_count[s] >= count, best_fits = t->slot_count[best] >= count;
        if (fits ? !best_fits || t->slot_count[s] < t->slot_count[best]
                 : !best_fits && t->slot_count[s] > t->slot_count[best])
            best = s;
    }
    return best;
}

static void assign_slots(const struct partition *p, struct slot_table *t, int *busy_until)
{
    for (int i = 0; i < t->residency_count; i++) {
        struct residency *r = &t->residencies[i];
        int64_t count = p->piece_count[r->piece];
        int s = choose_slot(t, busy_until, r->issue, count);
        if (s < 0)
            s = t->slots++;
        if (t->slot_count[s] < count)
            t->slot_count[s] = count;
        busy_until[s] = r->last;
        r->slot = s;
    }
}

enum status slot_table_create(struct env *env, const struct partition *partition,
                              struct slot_walk walk, int prefetch, struct slot_table *t)
{
    const struct unit_graph *graph = partition->graph;
    int units = walk.end - walk.first;
    int back = walk.way == WALK_BOTH ? walk.end - 1 - graph->backward_from : 0;
    *t = (struct slot_table){.walk = walk, .entries = units + back};
    size_t most = (size_t)t->entries * UNIT_MAX_USES;
    int *busy_until = NULL;
    enum status st;
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "slot table", most, sizeof *t->residencies,
                                 &t->residencies));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "slot table", most, sizeof *t->slot_count,
                                 &t->slot_count));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "slot table", most, sizeof *busy_until, &busy_until));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "slot table", (size_t)graph->piece_count,
                                 sizeof *t->latest, &t->latest));
    add_uses(graph, t, prefetch);
    assign_slots(partition, t, busy_until);
    mem_free(env, busy_until);
    return STATUS_OK;
undo:
    mem_free(env, busy_until);
    slot_table_free(env, t);
    return st;
}

void slot_table_free(struct env *env, struct slot_table *t)
{
    mem_free(env, t->residencies);
    mem_free(env, t->latest);
    mem_free(env, t->slot_count);
    *t = (struct slot_table){0};
}

int slot_find_residency(const struct slot_table *t, int piece, int entry)
{
    int i = t->latest[piece];
    while (i >= 0 && (entry < t->residencies[i].first || t->residencies[i].last < entry))
        i = t->residencies[i].before;
    return i;
}
