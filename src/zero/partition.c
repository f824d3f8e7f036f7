/* partition -- the layout of pieces; arithmetic only. */
#include "zero/partition.h"

struct sharding sharding_of(int stage)
{
    return (struct sharding){.optim = stage >= 1, .grads = stage >= 2, .params = stage >= 3};
}

static int64_t round_up(int64_t count, int64_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

enum status partition_create(struct env *env, const struct unit_graph *graph, int owners,
                             struct partition *p)
{
    *p = (struct partition){.graph = graph, .owners = owners};
    enum status st;
    size_t params = (size_t)graph->param_count, pieces = (size_t)graph->piece_count;
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "partition", params, sizeof(int64_t), &p->param_offset));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "partition", pieces, sizeof(int64_t), &p->piece_count));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "partition", pieces, sizeof(int64_t), &p->piece_used));
    for (int i = 0; i < graph->piece_count; i++) {
        const struct unit_piece *piece = &graph->pieces[i];
        int64_t offset = 0;
        for (int q = piece->first_param; q < piece->first_param + piece->param_count; q++) {
            p->param_offset[q] = offset;
            offset += round_up(unit_param_room(graph, q), OPS_BLOCK);
        }
        p->piece_used[i] = offset;
        p->piece_count[i] = round_up(offset, (int64_t)OPS_BLOCK * owners);
    }
    return STATUS_OK;
undo:
    partition_free(env, p);
    return st;
}

void partition_free(struct env *env, struct partition *p)
{
    mem_free(env, p->param_offset);
    mem_free(env, p->piece_used);
    mem_free(env, p->piece_count);
    *p = (struct partition){0};
}

int64_t partition_reduce_shard(const struct partition *p, int piece)
{
    return p->piece_count[piece] / p->owners;
}

struct piece_range partition_tensor(const struct partition *p, int tensor)
{
    const struct unit_graph *graph = p->graph;
    int param = unit_param_of(graph, tensor);
    int64_t first = p->param_offset[param];
    for (int t = graph->params[param].first_tensor; t < tensor; t++)
        first += unit_tensor_count(&graph->tensors[t]);
    return (struct piece_range){graph->params[param].piece, first,
                                unit_tensor_count(&graph->tensors[tensor])};
}

struct piece_range partition_clip_part(const struct partition *p, struct piece_range range,
                                       int part, int parts)
{
    int64_t count = p->piece_count[range.piece] / parts, first = part * count;
    int64_t begin = range.first > first ? range.first : first;
    int64_t end = range.first + range.count;
    if (end > first + count)
        end = first + count;
    return (struct piece_range){range.piece, begin, end > begin ? end - begin : 0};
}

struct piece_range partition_clip(const struct partition *p, struct piece_range range, int owner)
{
    return partition_clip_part(p, range, owner, p->owners);
}
