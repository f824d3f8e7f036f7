/* plan_activations -- what a rank keeps of a micro-batch from forward to backward, for every mode
 * of recomputation: in total, and for one block, which formula_activations predicts.
 */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

/* One TP group: one copy of the model without a pipeline, one micro-batch per step. */
static struct plan_request one_tp_group(struct plan_request request)
{
    const struct parallel_config *parallel = &request.parallel;
    request.ranks = plan_tp(&request);
    request.parallel = (struct parallel_config){.pp = 1,
                                                .tp = parallel->tp,
                                                .sequence = parallel->sequence,
                                                .regather = parallel->regather};
    request.zero.servers = request.zero.shard_group = 0;
    request.engine.micro_batches = 1;
    return request;
}

struct block_line { /* one line of a memory account */
    char name[UNIT_NAME];
    size_t bytes;
};

/* The first unit that is neither the first nor the last of the model; without one the name stays
 * empty. */
static enum status name_block(void *user, struct env *env, const struct unit_graph *graph)
{
    struct block_line *line = user;
    (void)env;
    if (graph->unit_count > 2)
        snprintf(line->name, sizeof line->name, "%s", graph->units[1].name);
    return STATUS_OK;
}

static void find_block(void *user, const struct mem_line *line)
{
    struct block_line *block = user;
    if (line->category == MEM_ACTIVATIONS && strcmp(line->name, block->name) == 0)
        block->bytes += line->bytes;
}

/* Activations depend on no other ranks except the PP stages and the TP group. */
enum status plan_activations_make(struct env *env, const struct plan_request *wanted,
                                  struct plan *plan)
{
    struct plan_request request = *wanted;
    int pp = plan_pp_stages(&request), tp = plan_tp(&request);
    struct plan_request tp_group = one_tp_group(request);
    struct block_line block = {0};
    TRY(plan_look(env, &request, name_block, &block));
    for (int r = 0; r < PLAN_RECOMPUTES; r++) {
        size_t *most = &plan->activation_bytes[r];
        struct plan_rank rank;
        request.engine.recompute = tp_group.engine.recompute = r;
        block.bytes = 0;
        TRY(plan_rank_memory(env, &tp_group, 0, find_block, &block, &rank));
        plan->block_bytes[r] = block.bytes;
        if (pp == 1)
            *most = rank.bytes[MEM_ACTIVATIONS];
        for (int p = 0; pp > 1 && p < pp; p++) {
            TRY(plan_rank_memory(env, &request, p * tp, NULL, NULL, &rank));
            *most = rank.bytes[MEM_ACTIVATIONS] > *most ? rank.bytes[MEM_ACTIVATIONS] : *most;
        }
    }
    return STATUS_OK;
}
