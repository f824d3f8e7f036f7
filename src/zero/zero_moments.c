/* zero_moments -- what is kept of each tensor's moments, and where.
 *
 * A tensor's optimizer decides (optimizer.h): nothing, fp32, or 8-bit codes with one scale for each
 * block. Frozen tensors have none. A piece has one allocation for m and one for v, which hold this
 * rank's part of its tensors, of any kinds:
 *
 *     | tensor 0 | tensor 1 ... | tensor 2 | ... | scales of tensor 0 | scales of tensor 1 | ...
 *
 * The padding after a tensor counts as part of it, so where all moments are fp32 an element of m is
 * at the same index as in the parameters. Otherwise a tensor begins where its address, modulo 16
 * bytes, is that of the same index: complete blocks are always aligned.
 */
#include "zero/zero_impl.h"

#include <math.h>
#include <stdio.h>

#include "base/rng.h"
#include "ops/ops_code8.h"

/* --- forms ---------------------------------------------------------------------------------- */

enum moment_form zero_state_form(const struct zero *zero, enum zero_state state, int tensor)
{
    struct moment_forms forms = {MOMENT_NONE, MOMENT_NONE};
    if (state != ZERO_MASTER && !zero->frozen[tensor]) /* a read-only store has no optimizers */
        forms = optimizer_moments(&zero->optimizers[tensor]);
    switch (state) {
    case ZERO_MOMENTUM: return forms.m;
    case ZERO_VARIANCE: return forms.v;
    case ZERO_MOMENTUM_SCALES: return forms.m == MOMENT_CODE8 ? MOMENT_CODE8 : MOMENT_NONE;
    case ZERO_VARIANCE_SCALES: return forms.v == MOMENT_CODE8 ? MOMENT_CODE8 : MOMENT_NONE;
    default: return MOMENT_F32;
    }
}

bool zero_tensor_is_frozen(const struct zero *zero, int tensor)
{
    return zero->frozen[tensor];
}

const struct optimizer *zero_optimizer(const struct zero *zero, int tensor)
{
    return &zero->optimizers[tensor];
}

/* --- places --------------------------------------------------------------------------------- */

void zero_piece_tensors(const struct unit_graph *graph, int piece, int *first, int *end)
{
    const struct unit_piece *p = &graph->pieces[piece];
    const struct unit_param *last = &graph->params[p->first_param + p->param_count - 1];
    *first = graph->params[p->first_param].first_tensor;
    *end = last->first_tensor + last->tensor_count;
}

/* The part of a tensor, and of the padding after it, in `held`; `last`: the tensor is the last of
 * its piece. */
static struct piece_range with_padding(const struct zero *zero, int t, struct piece_range held,
                                       bool last)
{
    const struct partition *p = &zero->partition;
    struct piece_range range = partition_tensor(p, t);
    int64_t end = last ? p->piece_count[range.piece] : partition_tensor(p, t + 1).first;
    int64_t first = range.first > held.first ? range.first : held.first;
    end = end < held.first + held.count ? end : held.first + held.count;
    return (struct piece_range){range.piece, first, end > first ? end - first : 0};
}

static enum moment_form form_of(const struct zero *zero, int which, int own)
{
    return zero_state_form(zero, which == 0 ? ZERO_MOMENTUM : ZERO_VARIANCE,
                           zero_whole_tensor(zero, own));
}

/* Find the places of a moment (0: m, 1: v) of the tensors of a piece in memory for `held`; returns
 * its bytes. *place is that of tensor `wanted`, if it is there. */
static size_t place_moments(const struct zero *zero, struct piece_range held, int which, int wanted,
                            struct moment_place *place)
{
    enum { ALIGN = 16 };
    size_t bytes = 0;
    int first, end;
    zero_piece_tensors(zero->graph, held.piece, &first, &end);
    for (int t = first; t < end; t++) {
        size_t width = form_of(zero, which, t) == MOMENT_CODE8 ? 1 : sizeof(float);
        struct piece_range part = with_padding(zero, t, held, t + 1 == end);
        if (form_of(zero, which, t) == MOMENT_NONE || part.count == 0)
            continue;
        bytes += ((size_t)(part.first - held.first) * width - bytes) % ALIGN;
        if (t == wanted)
            place->values = bytes;
        bytes += (size_t)part.count * width;
    }
    for (int t = first; t < end; t++) {
        struct piece_range part = with_padding(zero, t, held, t + 1 == end);
        if (form_of(zero, which, t) != MOMENT_CODE8 || part.count == 0)
            continue;
        if (t == wanted)
            place->scales = bytes;
        bytes += (size_t)((part.first % OPS_BLOCK + part.count + OPS_BLOCK - 1) / OPS_BLOCK);
    }
    return bytes;
}

struct moment_place moments_place(const struct zero *zero, struct piece_range held, int which,
                                  int tensor)
{
    struct moment_place place = {0};
    place_moments(zero, held, which, tensor, &place);
    return place;
}

size_t moments_bytes(const struct zero *zero, struct piece_range held, int which)
{
    return place_moments(zero, held, which, -1, NULL);
}

static bool has_codes(const struct zero *zero)
{
    for (int t = 0; t < zero->graph->tensor_count; t++)
        if (form_of(zero, 0, t) == MOMENT_CODE8 || form_of(zero, 1, t) == MOMENT_CODE8)
            return true;
    return false;
}

enum status moments_create(struct zero *zero)
{
    const struct unit_graph *whole = zero_whole_graph(zero);
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "optimizers", (size_t)whole->tensor_count,
                        sizeof *zero->optimizers, &zero->optimizers));
    for (int t = 0; t < whole->tensor_count; t++)
        zero->optimizers[t] = zero_optimizer_of(&zero->config, &whole->tensors[t]);
    if (!has_codes(zero))
        return STATUS_OK;
    return mem_alloc(zero->env, MEM_OTHER, "codes", ZERO_CODES_ROOM, &zero->codes);
}

enum status moments_alloc(struct zero *zero, int piece)
{
    static const char *const words[] = {"momentum", "variance"};
    struct zero_piece *p = &zero->pieces[piece];
    void **const moments[] = {&p->m, &p->v};
    for (int which = 0; which < 2; which++) {
        size_t bytes = moments_bytes(zero, zero_shard_range(zero, piece, zero->shard), which);
        char name[3 * UNIT_NAME];
        snprintf(name, sizeof name, "%s %s", zero->graph->pieces[piece].name, words[which]);
        if (bytes > 0)
            TRY(device_alloc(zero->ops->device, MEM_OPTIMIZER, name, bytes, moments[which]));
    }
    return STATUS_OK;
}

size_t zero_moments_of(const struct zero *zero, int rank)
{
    int pp_stages = zero->pipe.cut ? comm_size(zero->pipe.comm) : 1;
    int shard = roster_shard(&zero->roster, rank / zero->tp_group.size / pp_stages);
    size_t bytes = 0;
    for (int i = 0; shard >= 0 && i < zero->graph->piece_count; i++)
        for (int which = 0; which < 2 && zero_borrowed_from(zero, i) == UNIT_NO_STAGE; which++)
            bytes += moments_bytes(zero, zero_shard_range(zero, i, shard), which);
    return bytes;
}

bool zero_moments_vary(const struct zero *zero)
{
    for (int i = 0, first, end; i < zero->graph->piece_count; i++) {
        zero_piece_tensors(zero->graph, i, &first, &end);
        for (int t = first; t < end; t++)
            for (int which = 0; which < 2; which++)
                if (form_of(zero, which, t) == MOMENT_CODE8 ||
                    form_of(zero, which, t) != form_of(zero, which, first))
                    return true;
    }
    return false;
}

void moments_set(const struct zero *zero, int t, struct piece_range mine,
                 const struct state_view *view, struct update_segment *segment)
{
    struct moment_place m = moments_place(zero, view->held, 0, t);
    struct moment_place v = moments_place(zero, view->held, 1, t);
    int64_t tensor = partition_tensor(&zero->partition, t).first;
    int64_t held = tensor > view->held.first ? tensor : view->held.first;
    int64_t blocks = mine.first / OPS_BLOCK - held / OPS_BLOCK;
    bool codes = form_of(zero, 0, t) == MOMENT_CODE8;
    size_t skipped = (size_t)(mine.first - held) * (codes ? 1 : sizeof(float));
    char name[UNIT_NAME + 24];
    snprintf(name, sizeof name, "8-bit state of %s", zero->graph->tensors[t].name);
    uint64_t key = rng_stream(zero->config.seed, name).key;
    if (form_of(zero, 0, t) != MOMENT_NONE)
        segment->m = view->m + m.values + skipped;
    if (form_of(zero, 1, t) != MOMENT_NONE)
        segment->v = view->v + v.values + skipped;
    if (!codes)
        return;
    segment->m_scale = (uint8_t *)view->m + m.scales + blocks;
    segment->v_scale = (uint8_t *)view->v + v.scales + blocks;
    segment->first = mine.first - tensor;
    segment->key = (uint32_t)(key ^ key >> 32);
    segment->skip = (int)(mine.first % OPS_BLOCK);
}

/* --- codes ---------------------------------------------------------------------------------- */

/* The params of a piece begin at multiples of OPS_BLOCK, so only the tensors before it in its param
 * move a tensor's first block. */
int zero_code_skip(const struct unit_graph *graph, int tensor)
{
    int low = 0, high = graph->param_count - 1;
    int64_t before = 0;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (graph->params[middle].first_tensor <= tensor)
            low = middle;
        else
            high = middle - 1;
    }
    for (int t = graph->params[low].first_tensor; t < tensor; t++)
        before += unit_tensor_whole(&graph->tensors[t]);
    return (int)(before % OPS_BLOCK);
}

struct zero_range zero_code_blocks(int skip, struct zero_range elements)
{
    if (elements.count == 0)
        return (struct zero_range){0};
    int64_t first = (elements.first + skip) / OPS_BLOCK;
    int64_t last = (elements.first + elements.count - 1 + skip) / OPS_BLOCK;
    return (struct zero_range){first, last + 1 - first};
}

void zero_decode(enum zero_state state, const uint8_t *codes, const uint8_t *scales, int64_t skip,
                 int64_t count, int threads, float *out)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        uint8_t scale = scales[(skip + i) / OPS_BLOCK];
        if (state == ZERO_MOMENTUM) {
            out[i] = f32_from_bits(code8_decode(codes[i] & 0x7fu, scale, CODE8_TOP_M) |
                                   (uint32_t)(codes[i] & 0x80u) << 24);
        } else {
            float root = f32_from_bits(code8_decode(codes[i], scale, CODE8_TOP_V));
            out[i] = root * root;
        }
    }
}

void moments_encode(enum zero_state state, const float *values, int count, uint8_t *codes,
                    uint8_t *scale)
{
    bool signs = state == ZERO_MOMENTUM;
    int top = signs ? CODE8_TOP_M : CODE8_TOP_V;
    uint32_t bits[OPS_BLOCK], most = 0;
    for (int i = 0; i < count; i++) {
        bits[i] = f32_bits(signs ? values[i] : sqrtf(values[i]));
        most = code8_magnitude(bits[i]) > most ? code8_magnitude(bits[i]) : most;
    }
    *scale = code8_scale(most);
    for (int i = 0; i < count; i++) {
        uint32_t magnitude = code8_magnitude(bits[i]);
        uint32_t code = code8_encode(magnitude, *scale, top, -1);
        if (signs)
            code = code8_signed(code, bits[i] >> 24);
        else if (code == 0 && magnitude > 0)
            code = 1; /* as in the update: never divide by eps alone */
        codes[i] = (uint8_t)code;
    }
}
