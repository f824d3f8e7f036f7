/* zero_stochastic -- 16-bit params that are rounded at random from their masters.
 *
 *     params = round(master, f(seed, tensor's name, element of the whole tensor, updates so far))
 *
 * The formula does not depend on which rank holds an element, so, as with initial values, any rank
 * can compute any element alone. AdamW rounds the params it updates (ops.h), using a table of where
 * its segments are in their tensors. When masters are loaded or initialized, this file does the
 * same on the host, with the number of the last update; so a resumed run has the same params as one
 * that was not interrupted. Params that are never updated are rounded to nearest.
 */
#include "zero/zero_offload.h"

#include <stdio.h>

#include "base/rng.h"

static struct rng stream_of(const struct zero *zero, const struct unit_tensor *tensor)
{
    char name[UNIT_NAME + 16];
    snprintf(name, sizeof name, "rounding of %s", tensor->name);
    return rng_stream(zero->config.seed, name);
}

struct update_location zero_location_of(const struct zero *zero, int t, int64_t first)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct update_location location = {
        .key = stream_of(zero, tensor).key, .first = first, .run = INT64_MAX};
    if (tensor->split.units == 0)
        return location;
    struct unit_lines lines = unit_tensor_lines(tensor);
    location.start = lines.start;
    if (lines.run == unit_tensor_count(tensor)) /* there is no other line */
        return location;
    location.run = lines.run;
    location.apart = lines.line;
    location.lead = lines.lead;
    return location;
}

/* Round `count` elements of a tensor's part, from `first`, on the host. */
static void round_chunk(const struct zero *zero, int t, int64_t updates, int64_t first,
                        int64_t count, const float *masters, uint16_t *params)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct rng rng = stream_of(zero, tensor);
    bool bf16 = zero->type == DTYPE_BF16;
#pragma omp parallel for num_threads(zero->env->threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        uint64_t element = (uint64_t)unit_tensor_index(tensor, first + i, NULL);
        uint32_t random = rng_word(rng, element, (uint64_t)updates);
        params[i] =
            bf16 ? f32_to_bf16_random(masters[i], random) : f32_to_f16_random(masters[i], random);
    }
}

/* The staging buffer holds masters in its first half and params in its second. */
static enum status round_tensor(struct zero *zero, int t, struct piece_range mine, int64_t updates)
{
    enum { CHUNK = ZERO_STAGING / 2 };
    const struct zero_piece *piece = &zero->pieces[mine.piece];
    int64_t in_tensor = mine.first - partition_tensor(&zero->partition, t).first;
    int64_t in_shard = mine.first - zero->shard * zero_shard_count(zero, mine.piece);
    float *masters = zero->staging;
    uint16_t *params = (uint16_t *)(zero->staging + CHUNK);
    for (int64_t done = 0; done < mine.count; done += CHUNK) {
        int64_t n = mine.count - done < CHUNK ? mine.count - done : CHUNK;
        TRY(zero_state_read_part(zero, ZERO_MASTER, t, (struct zero_range){in_tensor + done, n},
                                 masters));
        TRY(stream_sync(zero->stream));
        round_chunk(zero, t, updates, in_tensor + done, n, masters, params);
        if (piece->params_are_far)
            TRY(far_params_put(zero, (struct piece_range){mine.piece, mine.first + done, n},
                               params));
        else
            device_copy(zero->stream, zero_at(piece->shard, zero->type, in_shard + done), params,
                        (size_t)n * sizeof *params);
        TRY(stream_sync(zero->stream));
    }
    return STATUS_OK;
}

enum status zero_round_all(struct zero *zero, int64_t updates)
{
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        struct piece_range mine = zero_updated_part(zero, t);
        if (mine.count > 0)
            TRY(round_tensor(zero, t, mine, updates));
    }
    return STATUS_OK;
}
