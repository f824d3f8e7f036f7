/* model_part -- how the tensors of a model are split among the ranks of a TP group, and which
 * splits are refused.
 *
 * Heads and the feed-forward width are split evenly: every rank does the same work in a block. With
 * fewer key/value heads than ranks, each is replicated on the neighbouring ranks whose query heads
 * read it, and each of these ranks has a partial sum of its gradient. The vocabulary is split as
 * evenly as possible, in blocks of rows if it is large. Ranks may have different numbers of rows,
 * since no collective carries columns of logits; so nothing is padded.
 */
#include <inttypes.h>
#include <string.h>
#include "model/model_impl.h"

/* --- parts ---------------------------------------------------------------------------------- */

struct unit_split part_of_units(const struct tp_group *tp_group, int dim, int sections,
                                int64_t units)
{
    int64_t each = units / tp_group->size;
    if (tp_group->size == 1)
        return (struct unit_split){0};
    return (struct unit_split){.dim = dim,
                               .sections = sections,
                               .units = units,
                               .first = tp_group->rank * each,
                               .count = each,
                               .replicas = 1};
}

struct unit_split part_of_qkv(const struct tp_group *tp_group, int64_t heads, int64_t kv_heads)
{
    struct unit_split split = part_of_units(tp_group, 0, 3, kv_heads);
    split.lead = heads / kv_heads;
    return split;
}

struct unit_split part_of_kv_heads(const struct tp_group *tp_group, int dim, int64_t heads)
{
    if (heads >= tp_group->size)
        return part_of_units(tp_group, dim, 1, heads);
    int replicas = tp_group->size / (int)heads;
    return (struct unit_split){.dim = dim,
                               .sections = 1,
                               .units = heads,
                               .first = tp_group->rank / replicas,
                               .count = 1,
                               .replicas = replicas,
                               .replica = tp_group->rank % replicas,
                               .partial = true};
}

enum {
    VOCAB_BLOCK = 64,      /* rows: products are faster when sizes are multiples of it */
    VOCAB_BLOCKS_MIN = 64, /* minimum blocks per rank: an imbalance of one is negligible */
};

struct unit_split part_of_vocab(const struct tp_group *tp_group, int64_t vocab, int rank)
{
    int64_t size = tp_group->size, block = 1;
    if (size == 1)
        return (struct unit_split){0};
    if (vocab / size >= VOCAB_BLOCK * VOCAB_BLOCKS_MIN)
        block = VOCAB_BLOCK;
    int64_t blocks = (vocab + block - 1) / block; /* the last one may be short */
    int64_t first = blocks * rank / size * block, end = blocks * (rank + 1) / size * block;
    int64_t most = (blocks + size - 1) / size * block;
    end = end < vocab ? end : vocab;
    return (struct unit_split){.dim = 0,
                               .sections = 1,
                               .units = vocab,
                               .first = first,
                               .count = end - first,
                               .most = blocks % size == 0 && block == 1 ? 0 : most,
                               .replicas = 1};
}

struct unit_split part_repeated(const struct tp_group *tp_group, bool partial)
{
    if (tp_group->size == 1)
        return (struct unit_split){0};
    return (struct unit_split){
        .replicas = tp_group->size, .replica = tp_group->rank, .partial = partial};
}

/* --- checks --------------------------------------------------------------------------------- */

const struct model_limits *model_limits(int arch)
{
    static const struct model_limits limits[MODEL_ARCHS] = {
        [MODEL_SARS] = {
            .fp16 = "the gradients of routing go down to 1e-11, which is below fp16's range",
            .tp = "the routing of a layer looks at all its neurons",
            .pp = "every block passes whole matrices of prototypes to the next",
            .freeze = "its two losses share the backward pass of all its parameters",
        }};
    CHECK(arch >= 0 && arch < MODEL_ARCHS);
    return &limits[arch];
}

enum status model_check_limits(struct env *env, const struct model_config *config, bool fp16,
                               int64_t tp, int64_t pp)
{
    const struct model_limits *limits = model_limits(config->arch);
    const char *arch = model_arch_word(config->arch);
    if (fp16 && limits->fp16)
        return FAIL(env, CONFIG, "precision.mode: model.arch %s cannot use fp16: %s; use bf16",
                    arch, limits->fp16);
    if (tp > 1 && limits->tp)
        return FAIL(env, CONFIG,
                    "parallel.tp=%" PRId64 ": model.arch %s cannot be split: %s; leave the key out",
                    tp, arch, limits->tp);
    if (pp > 1 && limits->pp)
        return FAIL(env, CONFIG,
                    "parallel.pp=%" PRId64
                    ": model.arch %s cannot be a pipeline: %s; leave the key "
                    "out",
                    pp, arch, limits->pp);
    return STATUS_OK;
}

/* Why key/value heads cannot be on several ranks of a TP group; NULL: they can. */
static const char *why_no_copies(const struct model_traits *traits)
{
    return traits->whole_norm ? ", whose norm counts each of them once"
           : traits->fused    ? ", which share one tensor with q and so cannot be on several ranks"
                              : NULL;
}

const char *model_cannot_split(const struct model_config *c, int tp, int64_t *size)
{
    const struct model_traits *traits = model_traits(c->arch);
    bool copies = !why_no_copies(traits);
    struct {
        const char *key;
        int64_t size;
        bool fits;
    } sizes[] = {
        {"heads", c->heads, c->heads % tp == 0},
        {"kv_heads", c->kv_heads, c->kv_heads % tp == 0 || (tp % c->kv_heads == 0 && copies)},
        {"ff", c->ff, c->ff % tp == 0},
        {"vocab", c->vocab, c->vocab >= tp},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *size = sizes[i].size;
        if (!sizes[i].fits)
            return sizes[i].key;
    }
    return NULL;
}

const char *model_split_reason(const struct model_config *c, int tp, const char *key)
{
    const char *reason = why_no_copies(model_traits(c->arch));
    bool repeats = strcmp(key, "kv_heads") == 0 && tp % c->kv_heads == 0;
    return repeats && reason ? reason : "";
}

bool model_can_split(const struct model_config *config, int tp)
{
    int64_t size;
    bool whole = tp > 1 && model_limits(config->arch)->tp;
    return !whole && model_cannot_split(config, tp, &size) == NULL;
}

enum status model_part_check(struct env *env, const struct model_config *config,
                             const struct model_part *part)
{
    int64_t size, other;
    CHECK(part->tp >= 1 && part->t >= 0 && part->t < part->tp);
    TRY(model_check_limits(env, config, false, part->tp, 1));
    const char *key = model_cannot_split(config, part->tp, &size);
    if (key == NULL)
        return STATUS_OK;
    const char *reason = model_split_reason(config, part->tp, key);
    int below = part->tp, above = part->tp;
    while (model_cannot_split(config, below, &other))
        below--; /* ends at one rank */
    while (above <= config->heads && model_cannot_split(config, above, &other))
        above++;
    if (above <= config->heads)
        return FAIL(env, CONFIG, "parallel.tp=%d cannot split model.%s=%" PRId64 "%s; try %d or %d",
                    part->tp, key, size, reason, below, above);
    return FAIL(env, CONFIG, "parallel.tp=%d cannot split model.%s=%" PRId64 "%s; try %d", part->tp,
                key, size, reason, below);
}

enum status model_part_check_rows(struct env *env, const struct model_part *part, int64_t batch,
                                  int64_t tokens)
{
    if (!part->sequence || batch * tokens % part->tp == 0)
        return STATUS_OK;
    int64_t more = batch, fewer = batch;
    while (more * tokens % part->tp != 0)
        more++;
    while (fewer > 0 && fewer * tokens % part->tp != 0)
        fewer--;
    return FAIL(env, CONFIG,
                "parallel.sequence: %d ranks do not divide the %" PRId64
                " rows of a micro-batch of %" PRId64 " sequences of %" PRId64
                " tokens; use %" PRId64 " sequences, a multiple of %d tokens, or turn "
                "parallel.sequence off",
                part->tp, batch * tokens, batch, tokens, fewer > 0 ? fewer : more, part->tp);
}
