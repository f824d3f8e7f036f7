/* zero_update -- the end of a step: the uses of a tied piece are added, the norm is formed, AdamW
 * moves the parameters.
 *
 * The norm is a sum over blocks of 64 elements in a fixed binary tree over their global number
 * (norm_tree.h), so it has the same bits however the blocks are shared out. Padding is not in it.
 */
#include "zero/zero_impl.h"

#include <fnmatch.h>
#include <math.h>

#include "zero/norm_tree.h"

/* --- segments ------------------------------------------------------------------------------- */

static struct zero_group group_of(const struct zero_config *config, const char *tensor)
{
    struct zero_group chosen = {.lr_mul = 1.0, .wd_mul = 1.0};
    for (int g = 0; g < config->group_count; g++)
        if (fnmatch(config->groups[g].match, tensor, 0) == 0)
            chosen = config->groups[g];
    return chosen;
}

static bool is_learned(const struct zero *zero, int piece)
{
    return zero->pieces[piece].use_count > 0;
}

static struct adamw_segment segment_of(const struct zero *zero, int t, struct place mine)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    const struct zero_piece *piece = &zero->pieces[mine.piece];
    struct zero_group group = group_of(&zero->config, tensor->name);
    return (struct adamw_segment){
        .count = mine.count,
        .param = piece->params + mine.first,
        .grad = piece->uses[0].sum + mine.first,
        .m = piece->m + mine.first,
        .v = piece->v + mine.first,
        .lr_mul = (float)group.lr_mul,
        .decay = tensor->decay ? (float)(zero->config.weight_decay * group.wd_mul) : 0.0f,
    };
}

/* A group that matches nothing is a mistake in the configuration. */
static enum status check_groups(const struct zero *zero)
{
    for (int g = 0; g < zero->config.group_count; g++) {
        const char *match = zero->config.groups[g].match;
        int matched = 0;
        for (int t = 0; t < zero->graph->tensor_count; t++)
            matched += fnmatch(match, zero->graph->tensors[t].name, 0) == 0;
        if (matched == 0)
            return FAIL(zero->env, CONFIG,
                        "optimizer.groups: '%s' matches no parameter; names look like '%s'", match,
                        zero->graph->tensors[zero->graph->tensor_count - 1].name);
    }
    return STATUS_OK;
}

enum status zero_segments_create(struct zero *zero)
{
    struct device *device = zero->ops->device;
    size_t most = (size_t)zero->graph->tensor_count;
    TRY(check_groups(zero));
    TRY(device_alloc(device, MEM_OTHER, "optimizer segments", most * sizeof *zero->segments,
                     &zero->segments));
    if (device_is_dry(device))
        return STATUS_OK;
    struct adamw_segment *list;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "segments", most, sizeof *list, &list));
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        struct place mine =
            partition_clip(&zero->partition, partition_tensor(&zero->partition, t), 0);
        if (mine.count > 0 && is_learned(zero, mine.piece))
            list[zero->segment_count++] = segment_of(zero, t, mine);
    }
    device_copy(zero->stream, zero->segments, list, most * sizeof *list);
    enum status st = stream_sync(zero->stream);
    mem_free(zero->env, list);
    return st;
}

/* --- the verdict ---------------------------------------------------------------------------- */

static void add_uses(struct zero *zero)
{
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        for (int k = 1; k < piece->use_count; k++)
            device_accumulate(zero->stream, piece->uses[0].sum, DTYPE_F32, piece->uses[k].sum,
                              DTYPE_F32, partition_slice(&zero->partition, i));
    }
}

/* Put the blocks of one param into the tree, a chunk at a time. */
static enum status add_param_squares(struct zero *zero, int param, struct norm_tree *tree)
{
    const struct zero_piece *piece = &zero->pieces[zero->graph->params[param].piece];
    const float *gradient = piece->uses[0].sum + zero->partition.param_offset[param];
    int64_t count = unit_param_count(zero->graph, param);
    for (int64_t first = 0; first < count; first += ZERO_STAGING) {
        int64_t part = count - first < ZERO_STAGING ? count - first : ZERO_STAGING;
        int64_t blocks = (part + OPS_BLOCK - 1) / OPS_BLOCK;
        ops_square_sums(zero->ops, zero->stream, gradient + first, part, zero->block_sums);
        device_copy(zero->stream, zero->block_sums_host, zero->block_sums,
                    (size_t)blocks * sizeof(double));
        TRY(stream_sync(zero->stream));
        for (int64_t b = 0; b < blocks; b++)
            norm_tree_add(tree, 0, zero->block_sums_host[b]);
    }
    return STATUS_OK;
}

static enum status find_bad_tensor(struct zero *zero, struct zero_verdict *verdict)
{
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        struct place place = partition_tensor(&zero->partition, t);
        if (!is_learned(zero, place.piece))
            continue;
        int64_t first = -1;
        ops_find_nonfinite(zero->ops, zero->stream,
                           zero->pieces[place.piece].uses[0].sum + place.first, place.count,
                           zero->nonfinite);
        device_copy(zero->stream, &first, zero->nonfinite, sizeof first);
        TRY(stream_sync(zero->stream));
        if (first >= 0) {
            verdict->bad_tensor = t;
            verdict->bad_index = first;
            return STATUS_OK;
        }
    }
    return STATUS_OK;
}

enum status zero_judge(struct zero *zero, double scale, struct zero_verdict *verdict)
{
    struct norm_tree tree = {0};
    add_uses(zero);
    for (int p = 0; p < zero->graph->param_count; p++)
        if (is_learned(zero, zero->graph->params[p].piece))
            TRY(add_param_squares(zero, p, &tree));
    *verdict = (struct zero_verdict){sqrt(norm_tree_sum(&tree)) / scale, -1, -1};
    return isfinite(verdict->grad_norm) ? STATUS_OK : find_bad_tensor(zero, verdict);
}

/* --- the update ----------------------------------------------------------------------------- */

/* The factor that brings a gradient of this norm down to `clip`, as PyTorch has it; 1 when it is
 * small enough. */
static double clip_factor(double clip, double norm)
{
    double factor = clip / (norm + 1e-6);
    return clip > 0.0 && factor < 1.0 ? factor : 1.0;
}

enum status zero_update(struct zero *zero, int64_t t, double lr, double scale,
                        const struct zero_verdict *verdict)
{
    const struct zero_config *c = &zero->config;
    struct step_scalars *s = &zero->scalars_host;
    s->lr = (float)lr;
    s->correction1 = (float)(1.0 - pow(c->beta1, (double)t));
    s->correction2 = (float)(1.0 - pow(c->beta2, (double)t));
    s->grad_scale = (float)(clip_factor(c->clip, verdict->grad_norm) / scale);
    device_copy(zero->stream, zero->scalars, s, sizeof *s);
    struct adamw hyper = {c->beta1, c->beta2, c->eps};
    ops_adamw(zero->ops, zero->stream, hyper, zero->scalars, zero->segments, zero->segment_count);
    return stream_sync(zero->stream);
}
