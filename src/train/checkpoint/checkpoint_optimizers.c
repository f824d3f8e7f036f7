/* checkpoint_optimizers -- lists the optimizers of a store, and compares them with a checkpoint's.
 */
#include "train/checkpoint/checkpoint_optimizers.h"
#include <stdlib.h>
#include <string.h>

/* --- the optimizers of a store -------------------------------------------------------------- */

static enum optimizer_state kind_here(const struct zero *zero, int tensor)
{
    return optimizer_state(zero_optimizer(zero, tensor));
}

/* The kind of most tensors. Frozen ones have no optimizer. */
static enum optimizer_state usual_kind(const struct unit_graph *graph, const struct zero *zero)
{
    int counts[OPTIMIZER_STATES] = {0}, usual = 0;
    for (int t = 0; t < graph->tensor_count; t++)
        counts[kind_here(zero, t)] += !zero_tensor_is_frozen(zero, t);
    for (int kind = 1; kind < OPTIMIZER_STATES; kind++)
        usual = counts[kind] > counts[usual] ? kind : usual;
    return (enum optimizer_state)usual;
}

enum status checkpoint_optimizers_of(struct env *env, const struct unit_graph *graph,
                                     const struct zero *zero,
                                     struct checkpoint_optimizers *optimizers)
{
    enum optimizer_state usual = usual_kind(graph, zero);
    *optimizers = (struct checkpoint_optimizers){.kind = usual};
    TRY(mem_alloc_array(env, MEM_OTHER, "optimizers", (size_t)graph->tensor_count,
                        sizeof *optimizers->others, &optimizers->others));
    for (int kind = 0; kind < OPTIMIZER_STATES; kind++)
        for (int t = 0; kind != (int)usual && t < graph->tensor_count; t++) {
            struct checkpoint_other *other = &optimizers->others[optimizers->other_count];
            if ((int)kind_here(zero, t) != kind || zero_tensor_is_frozen(zero, t))
                continue;
            other->kind = (enum optimizer_state)kind;
            TRY(mem_strdup(env, graph->tensors[t].name, &other->tensor));
            optimizers->other_count++;
        }
    return STATUS_OK;
}

void checkpoint_optimizers_free(struct env *env, struct checkpoint_optimizers *optimizers)
{
    for (int i = 0; i < optimizers->other_count; i++)
        mem_free(env, optimizers->others[i].tensor);
    mem_free(env, optimizers->others);
    *optimizers = (struct checkpoint_optimizers){0};
}

bool checkpoint_optimizers_are_adamw(const struct checkpoint_optimizers *optimizers)
{
    return optimizers->kind == (enum optimizer_state)OPTIMIZER_ADAMW &&
           optimizers->other_count == 0;
}

/* --- comparing ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    const struct checkpoint_other *const *x = a, *const *y = b;
    return strcmp((*x)->tensor, (*y)->tensor);
}

/* The kind of a tensor; `sorted` are the others by name. */
static enum optimizer_state kind_there(const struct checkpoint_optimizers *there,
                                       const struct checkpoint_other **sorted, const char *tensor)
{
    const struct checkpoint_other wanted = {.tensor = (char *)tensor}, *key = &wanted;
    const struct checkpoint_other **found =
        bsearch(&key, sorted, (size_t)there->other_count, sizeof *sorted, by_name);
    return found ? (*found)->kind : there->kind;
}

static enum status compare_tensor(struct env *env, const char *tensor, int there, int here,
                                  struct checkpoint_conversion *conversion)
{
    conversion->codes += there == OPTIMIZER_ADAMW8BIT && here == there;
    if (there == here)
        return STATUS_OK;
    conversion->to_codes += there == OPTIMIZER_ADAMW && here == OPTIMIZER_ADAMW8BIT;
    conversion->from_codes += there == OPTIMIZER_ADAMW8BIT && here == OPTIMIZER_ADAMW;
    if ((there == OPTIMIZER_ADAMW || there == OPTIMIZER_ADAMW8BIT) &&
        (here == OPTIMIZER_ADAMW || here == OPTIMIZER_ADAMW8BIT))
        return STATUS_OK;
    return FAIL(
        env, CONFIG,
        "the checkpoint has the state of %s for tensor '%s', and the run now uses %s, which "
        "cannot continue from it; set the optimizer.* keys back, or start a new run from "
        "the weights: another --out, and model.path = this checkpoint",
        optimizer_state_word((enum optimizer_state)there), tensor,
        optimizer_state_word((enum optimizer_state)here));
}

enum status checkpoint_optimizers_compare(struct env *env,
                                          const struct checkpoint_optimizers *there,
                                          const struct unit_graph *graph, const struct zero *zero,
                                          struct checkpoint_conversion *conversion)
{
    const struct checkpoint_other **sorted;
    enum status st = STATUS_OK;
    *conversion = (struct checkpoint_conversion){0};
    TRY(mem_alloc_array(env, MEM_OTHER, "optimizers", (size_t)there->other_count, sizeof *sorted,
                        &sorted));
    for (int i = 0; i < there->other_count; i++)
        sorted[i] = &there->others[i];
    qsort(sorted, (size_t)there->other_count, sizeof *sorted, by_name);
    for (int t = 0; st == STATUS_OK && t < graph->tensor_count; t++) {
        const char *name = graph->tensors[t].name;
        if (zero_tensor_is_frozen(zero, t))
            continue;
        st = compare_tensor(env, name, (int)kind_there(there, sorted, name),
                            (int)kind_here(zero, t), conversion);
    }
    mem_free(env, sorted);
    return st;
}
