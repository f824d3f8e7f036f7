/* unit_merge -- finds who uses each piece and how, then joins pieces in one walk over them. */
#include "unit/unit_merge.h"

#include <stdio.h>

#include "base/env.h"

enum { NONE = -1, SEVERAL = -2 };

/* Who uses a piece, or several that are joined. */
struct user {
    int unit;               /* the last one, NONE or SEVERAL */
    int units;              /* how many */
    uint32_t reads, writes; /* bit p: pass p does */
    int64_t elements;
};

static void find_users(const struct unit_graph *graph, struct user *users)
{
    int pieces[UNIT_MAX_USES];
    for (int i = 0; i < graph->piece_count; i++)
        users[i] = (struct user){
            .unit = NONE, .units = 1, .elements = OPS_BLOCK * unit_piece_blocks(graph, i)};
    for (int u = 0; u < graph->unit_count; u++)
        for (int k = unit_pieces(graph, u, pieces) - 1; k >= 0; k--) {
            struct user *user = &users[pieces[k]];
            user->unit = user->unit == NONE ? u : SEVERAL;
            user->reads = unit_reading_passes(graph, u, pieces[k]);
            user->writes = unit_writing_passes(graph, u, pieces[k]);
        }
}

/* Whether a piece can be joined to those before it. */
static bool joins(const struct user *before, const struct user *next,
                  const struct unit_merge *merge, const int *part_of)
{
    int more = next->unit - before->unit; /* units */
    if (before->unit < 0 || next->unit < 0 || more < 0 || more > 1)
        return false;
    if (before->reads != next->reads || before->writes != next->writes)
        return false;
    if (part_of && part_of[before->unit] != part_of[next->unit])
        return false;
    return (merge->units > 1 && before->units + more <= merge->units) ||
           before->elements + next->elements <= merge->elements;
}

/* Append the params of `piece` to the last piece of the merged graph. */
static void join(const struct unit_graph *graph, int piece, const char *first,
                 struct unit_merged *merged)
{
    struct unit_piece *to = &merged->pieces[merged->graph.piece_count - 1];
    to->param_count += graph->pieces[piece].param_count;
    snprintf(to->name, sizeof to->name, "%.40s to %.40s", first, graph->pieces[piece].name);
}

static void fill(const struct unit_graph *graph, struct user *users, const struct unit_merge *merge,
                 const int *part_of, struct unit_merged *merged)
{
    struct user *group = users;
    const char *name = NULL; /* of the group's first piece */
    merged->graph = *graph;
    merged->graph.pieces = merged->pieces;
    merged->graph.params = merged->params;
    merged->graph.piece_count = 0;
    for (int i = 0; i < graph->piece_count; i++) {
        const struct unit_piece *piece = &graph->pieces[i];
        if (i > 0 && joins(group, &users[i], merge, part_of)) {
            group->units += users[i].unit - group->unit;
            group->unit = users[i].unit;
            group->elements += users[i].elements;
            join(graph, i, name, merged);
        } else {
            group = &users[i];
            name = piece->name;
            merged->pieces[merged->graph.piece_count++] = *piece;
        }
        for (int p = piece->first_param; p < piece->first_param + piece->param_count; p++) {
            merged->params[p] = graph->params[p];
            merged->params[p].piece = merged->graph.piece_count - 1;
        }
    }
}

enum status unit_merge_pieces(struct env *env, const struct unit_graph *graph,
                              const struct unit_merge *merge, const int *part_of,
                              struct unit_merged *merged)
{
    size_t pieces = (size_t)graph->piece_count, params = (size_t)graph->param_count;
    struct user *users = NULL;
    enum status st;
    *merged = (struct unit_merged){0};
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "merged pieces", pieces, sizeof *merged->pieces,
                                 &merged->pieces));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "merged pieces", params, sizeof *merged->params,
                                 &merged->params));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "merged pieces", pieces, sizeof *users, &users));
    find_users(graph, users);
    fill(graph, users, merge, part_of, merged);
    mem_free(env, users);
    return STATUS_OK;
undo:
    unit_merged_free(env, merged);
    return st;
}

void unit_merged_free(struct env *env, struct unit_merged *merged)
{
    mem_free(env, merged->pieces);
    mem_free(env, merged->params);
    *merged = (struct unit_merged){0};
}
