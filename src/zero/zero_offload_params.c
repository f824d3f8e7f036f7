/* zero_offload_params -- params in slower memory than the device's.
 *
 * They are read unit by unit through the slots of ZeRO stage 3 (zero_pass.c): a gather first reads
 * this rank's shard from far memory into its place in the slot, and then exchanges shards with other
 * ranks, if there are any. So far params are sharded like those of stage 3, in every stage; a rank
 * that holds all of them keeps all of them far.
 *
 *     params     | read 0 | read 1 | read 2 | read 3 | ...
 *     gather              | exchange 0 | exchange 1 | ...             several ranks
 *     compute                          | forward 0 | forward 1 | ...
 *
 * An update writes new params into the slot of their packet, from where they return to far memory
 * (zero_offload.c). In fp32 the params are their own masters: they are fetched to that slot first.
 * Params that PP stages lend to each other stay on the device.
 *
 * Outside of a step the host reads and writes far params itself.
 */
#include "zero/zero_offload.h"

static size_t aligned(size_t bytes)
{
    return (bytes + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
}

void far_params_plan(struct zero *zero)
{
    for (int i = 0; zero->config.offload.params != FAR_NONE && i < zero->graph->piece_count; i++)
        zero->pieces[i].params_are_far =
            zero_lent_to(zero, i) == UNIT_NO_STAGE && zero_borrowed_from(zero, i) == UNIT_NO_STAGE;
}

/* --- memory --------------------------------------------------------------------------------- */

size_t far_params_bytes(const struct zero *zero, struct piece_range range)
{
    return aligned((size_t)range.count * dtype_bytes(zero->type));
}

size_t far_params_at(const struct zero *zero, struct piece_range range)
{
    int64_t first = range.first - zero->shard * zero_shard_count(zero, range.piece);
    return zero->pieces[range.piece].params_at + (size_t)first * dtype_bytes(zero->type);
}

/* All params of this rank's shards, one piece after the other. */
static enum status create_far(struct zero *zero)
{
    const struct zero_offload *o = &zero->config.offload;
    struct far_config params = {.kind = o->params,
                                .category = MEM_PARAMS,
                                .name = "params",
                                .folder = o->folder,
                                .key = "offload.folder"};
    for (int i = 0; zero->shard >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        if (!piece->params_are_far)
            continue;
        piece->params_at = params.bytes;
        params.bytes += far_params_bytes(zero, zero_shard_range(zero, i, zero->shard));
        if (zero->config.micro_batches > 0 && zero_is_learned(zero, i))
            TRY(event_create(zero->ops->device, &piece->params_returned));
    }
    return params.bytes > 0 ? far_create(zero->ops->device, &params, &zero->far_params) : STATUS_OK;
}

enum status far_params_create(struct zero *zero)
{
    struct device *device = zero->ops->device;
    if (zero->config.offload.params == FAR_NONE)
        return STATUS_OK;
    TRY(create_far(zero));
    TRY(mem_alloc(zero->env, MEM_OTHER, "params on their way", ZERO_STAGING * sizeof(float),
                  &zero->params_staging));
    if (!zero->written)
        TRY(event_create(device, &zero->written));
    if (!zero_alone(zero))
        TRY(offload_create_sender(zero));
    return offload_create_stream(zero, "params", &zero->params_stream);
}

void far_params_free(struct zero *zero)
{
    for (int i = 0; zero->pieces && i < zero->graph->piece_count; i++)
        event_destroy(zero->pieces[i].params_returned);
    far_destroy(zero->far_params);
    mem_free(zero->env, zero->params_staging);
}

/* --- gathers -------------------------------------------------------------------------------- */

/* Where this rank's shard is in a slot. A server has room for nothing else. */
static void *own_place(const struct zero *zero, const struct residency *r)
{
    int64_t first = zero->worker ? zero->shard * zero_shard_count(zero, r->piece) : 0;
    return zero_at(zero->slot_at[r->slot], zero->type, first);
}

/* The shard to the slot, on the params stream. */
static void fetch_shard(struct zero *zero, const struct residency *r)
{
    const struct zero_piece *piece = &zero->pieces[r->piece];
    struct piece_range shard = zero_shard_range(zero, r->piece, zero->shard);
    if (piece->params_are_far) {
        if (piece->params_returned)
            stream_wait(zero->params_stream, piece->params_returned);
        far_read(zero->params_stream, zero->far_params, piece->params_at, own_place(zero, r),
                 far_params_bytes(zero, shard));
        return;
    }
    event_record(zero->written, zero->stream);
    stream_wait(zero->params_stream, zero->written);
    device_copy(zero->params_stream, own_place(zero, r), piece->shard,
                (size_t)shard.count * dtype_bytes(zero->type));
}

void far_params_gather(struct zero *zero, const struct residency *r)
{
    struct event *ready = zero->slot_ready[r->slot];
    stream_wait(zero->params_stream, zero->slot_free[r->slot]);
    stream_wait(zero->params_stream, ready); /* a server's slot is free when it has been sent */
    if (zero->shard >= 0)
        fetch_shard(zero, r);
    event_record(ready, zero->params_stream);
    if (zero->members == 1)
        return;
    stream_wait(zero->gather_stream, ready);
    shards_to_members(zero, r->piece, zero->shard >= 0 ? own_place(zero, r) : NULL,
                      zero->worker ? zero->slot_at[r->slot] : NULL);
    event_record(ready, zero->gather_stream);
}

/* --- outside of a step ---------------------------------------------------------------------- */

enum status far_params_read(struct zero *zero, struct piece_range range, void *out)
{
    return far_get(zero->far_params, far_params_at(zero, range), out,
                   (size_t)range.count * dtype_bytes(zero->type));
}

enum status far_params_put(struct zero *zero, struct piece_range range, const void *params)
{
    zero->packets_fetched = 0; /* in fp32, what was fetched ahead is no longer valid */
    return far_put(zero->far_params, far_params_at(zero, range), params,
                   (size_t)range.count * dtype_bytes(zero->type));
}

enum status far_params_write(struct zero *zero, struct piece_range range, const float *values)
{
    enum { BLOCK = 4096 };
    for (int64_t done = 0, n; done < range.count; done += n) {
        n = range.count - done < ZERO_STAGING ? range.count - done : ZERO_STAGING;
        struct piece_range part = {range.piece, range.first + done, n};
#pragma omp parallel for num_threads(zero->env->threads) schedule(static)
        for (int64_t at = 0; at < n; at += BLOCK)
            dtype_convert(zero_at(zero->params_staging, zero->type, at), zero->type,
                          values + done + at, DTYPE_F32, n - at < BLOCK ? n - at : BLOCK);
        TRY(far_params_put(zero, part, zero->params_staging));
    }
    return STATUS_OK;
}

enum status far_params_publish(struct zero *zero, int piece)
{
    const struct zero_piece *p = &zero->pieces[piece];
    struct piece_range shard = zero_shard_range(zero, piece, zero->shard);
    for (int64_t done = 0, n; done < shard.count; done += n) {
        n = shard.count - done < ZERO_STAGING ? shard.count - done : ZERO_STAGING;
        struct piece_range part = {piece, shard.first + done, n};
        if (p->state_is_far)
            TRY(offload_read_masters(zero, part, zero->staging));
        else
            device_copy(zero->stream, zero->staging, zero_at(p->master, DTYPE_F32, done),
                        (size_t)n * sizeof(float));
        TRY(stream_sync(zero->stream));
        TRY(far_params_write(zero, part, zero->staging));
    }
    return STATUS_OK;
}
