/* unit_cut -- builds the tables of the chosen units in three passes over the whole graph: its
 * units, to find which stages use which piece; its pieces; its units again.
 */
#include "unit/unit_cut.h"

#include "base/env.h"

/* The stages that use a piece: its owner and another one (UNIT_NO_STAGE: none). */
struct users {
    int owner, other;
    bool learned; /* some unit writes its gradient */
};

static void find_users(const struct unit_graph *graph, const int *pp_stage_of, struct users *users)
{
    int pieces[UNIT_MAX_USES];
    for (int i = 0; i < graph->piece_count; i++)
        users[i] = (struct users){.owner = UNIT_NO_STAGE, .other = UNIT_NO_STAGE};
    for (int u = 0; u < graph->unit_count; u++)
        for (int k = unit_pieces(graph, u, pieces) - 1; k >= 0; k--) {
            struct users *of = &users[pieces[k]];
            of->learned = of->learned || unit_writes_piece(graph, u, pieces[k]);
            if (of->owner == UNIT_NO_STAGE)
                of->owner = pp_stage_of[u];
            if (of->owner == pp_stage_of[u])
                continue;
            CHECK(of->other == UNIT_NO_STAGE || of->other == pp_stage_of[u]);
            of->other = pp_stage_of[u];
        }
}

static enum status alloc_tables(struct env *env, const struct unit_graph *whole,
                                struct unit_cut *cut)
{
    size_t units = (size_t)whole->unit_count, pieces = (size_t)whole->piece_count;
    size_t params = (size_t)whole->param_count, tensors = (size_t)whole->tensor_count;
    const char *name = "stage";
    TRY(mem_alloc_array(env, MEM_OTHER, name, units, sizeof *cut->units, &cut->units));
    TRY(mem_alloc_array(env, MEM_OTHER, name, pieces, sizeof *cut->pieces, &cut->pieces));
    TRY(mem_alloc_array(env, MEM_OTHER, name, pieces, sizeof *cut->first_block, &cut->first_block));
    TRY(mem_alloc_array(env, MEM_OTHER, name, pieces, sizeof *cut->lent_to, &cut->lent_to));
    TRY(mem_alloc_array(env, MEM_OTHER, name, pieces, sizeof *cut->borrowed_from,
                        &cut->borrowed_from));
    TRY(mem_alloc_array(env, MEM_OTHER, name, params, sizeof *cut->params, &cut->params));
    TRY(mem_alloc_array(env, MEM_OTHER, name, tensors, sizeof *cut->tensors, &cut->tensors));
    TRY(mem_alloc_array(env, MEM_OTHER, name, tensors, sizeof *cut->whole_tensor,
                        &cut->whole_tensor));
    TRY(mem_alloc_array(env, MEM_OTHER, name, tensors, sizeof *cut->own_tensor, &cut->own_tensor));
    return mem_alloc_array(env, MEM_OTHER, name, tensors, sizeof *cut->owner, &cut->owner);
}

static void take_piece(const struct unit_graph *whole, int piece, struct unit_cut *cut)
{
    struct unit_graph *g = &cut->graph;
    const struct unit_piece *from = &whole->pieces[piece];
    cut->pieces[g->piece_count] = *from;
    cut->pieces[g->piece_count].first_param = g->param_count;
    for (int p = from->first_param; p < from->first_param + from->param_count; p++) {
        const struct unit_param *param = &whole->params[p];
        cut->params[g->param_count++] =
            (struct unit_param){g->tensor_count, param->tensor_count, g->piece_count};
        for (int t = param->first_tensor; t < param->first_tensor + param->tensor_count; t++) {
            cut->whole_tensor[g->tensor_count] = t;
            cut->own_tensor[t] = g->tensor_count;
            cut->tensors[g->tensor_count++] = whole->tensors[t];
        }
    }
    g->piece_count++;
}

static void take_pieces(const struct unit_graph *whole, const struct users *users,
                        struct unit_cut *cut)
{
    int64_t block = 0;
    for (int i = 0; i < whole->piece_count; i++) {
        bool owner = users[i].owner == cut->pp_stage;
        int at = cut->graph.piece_count;
        if (owner || users[i].other == cut->pp_stage) {
            cut->first_block[at] = block;
            cut->lent_to[at] = owner ? users[i].other : UNIT_NO_STAGE;
            cut->borrowed_from[at] = owner ? UNIT_NO_STAGE : users[i].owner;
            take_piece(whole, i, cut);
        }
        block += users[i].learned ? unit_piece_blocks(whole, i) : 0;
    }
}

static void take_units(const struct unit_graph *whole, const int *pp_stage_of, struct unit_cut *cut)
{
    struct unit_graph *g = &cut->graph;
    for (int u = 0; u < whole->unit_count; u++) {
        if (pp_stage_of[u] != cut->pp_stage)
            continue;
        struct unit *unit = &cut->units[g->unit_count];
        *unit = whole->units[u];
        for (int use = 0; use < unit->use_count; use++) {
            int tensor = cut->own_tensor[whole->params[unit->uses[use]].first_tensor];
            unit->uses[use] = unit_param_of(g, tensor);
            CHECK(tensor >= 0 && g->params[unit->uses[use]].first_tensor == tensor);
        }
        g->unit_count++;
    }
}

static void fill(const struct unit_graph *whole, const int *pp_stage_of, const struct users *users,
                 struct unit_cut *cut)
{
    cut->graph = (struct unit_graph){.tensors = cut->tensors,
                                     .params = cut->params,
                                     .pieces = cut->pieces,
                                     .units = cut->units,
                                     .part = true, /* and so backward_from is 0 */
                                     .stream_width = whole->stream_width,
                                     .sequence = whole->sequence,
                                     .vocab = whole->vocab,
                                     .context = whole->context,
                                     .short_text = whole->short_text,
                                     .inputs = whole->inputs,
                                     .input_count = whole->input_count,
                                     .count = whole->count,
                                     .self = whole->self,
                                     .statistics = whole->statistics,
                                     .carry = whole->carry};
    for (int p = 0; p < whole->param_count; p++) {
        int owner = users[whole->params[p].piece].owner;
        const struct unit_param *param = &whole->params[p];
        for (int t = param->first_tensor; t < param->first_tensor + param->tensor_count; t++)
            cut->owner[t] = owner, cut->own_tensor[t] = -1;
    }
    take_pieces(whole, users, cut);
    take_units(whole, pp_stage_of, cut);
}

enum status unit_cut_create(struct env *env, const struct unit_graph *whole, const int *pp_stage_of,
                            int pp_stage, struct unit_cut *cut)
{
    struct users *users;
    *cut = (struct unit_cut){.whole = whole, .pp_stage = pp_stage};
    TRY(mem_alloc_array(env, MEM_OTHER, "stage", (size_t)whole->piece_count, sizeof *users,
                        &users));
    find_users(whole, pp_stage_of, users);
    enum status st = alloc_tables(env, whole, cut);
    if (st == STATUS_OK)
        fill(whole, pp_stage_of, users, cut);
    else
        unit_cut_free(env, cut);
    mem_free(env, users);
    return st;
}

void unit_cut_free(struct env *env, struct unit_cut *cut)
{
    mem_free(env, cut->units);
    mem_free(env, cut->pieces);
    mem_free(env, cut->first_block);
    mem_free(env, cut->lent_to);
    mem_free(env, cut->borrowed_from);
    mem_free(env, cut->params);
    mem_free(env, cut->tensors);
    mem_free(env, cut->whole_tensor);
    mem_free(env, cut->own_tensor);
    mem_free(env, cut->owner);
    *cut = (struct unit_cut){0};
}
