/* zero_values -- parameters from and to outside: initial values, element ranges for files and
 * tests.
 *
 * Everything goes through a staging buffer of one chunk, so that no tensor exists twice. What is
 * read comes from the owners, and every rank gets it.
 */
#include "zero/zero_impl.h"

#include "base/rng.h"

/* --- in --------------------------------------------------------------------------------------- */

static double initial_value(const struct unit_tensor *tensor, struct rng rng, int64_t element)
{
    switch (tensor->init) {
    case INIT_ZERO: return 0.0;
    case INIT_ONE: return 1.0;
    case INIT_NORMAL: return tensor->init_scale * rng_normal(rng, (uint64_t)element);
    case INIT_UNIFORM:
        return tensor->init_scale * (2.0 * rng_uniform(rng, (uint64_t)element) - 1.0);
    }
    return 0.0;
}

/* The elements of a tensor that this rank owns, a chunk at a time. */
static enum status init_tensor(struct zero *zero, int t, uint64_t seed)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct rng rng = rng_stream(seed, tensor->name);
    struct place whole = partition_tensor(&zero->partition, t);
    struct place mine = partition_clip(&zero->partition, whole, zero->owner);
    int64_t begin = mine.first - whole.first, end = begin + mine.count;
    float *values = zero->staging;
    for (int64_t first = begin; first < end; first += ZERO_STAGING) {
        int64_t part = end - first < ZERO_STAGING ? end - first : ZERO_STAGING;
#pragma omp parallel for num_threads(zero->env->threads) schedule(static)
        for (int64_t i = 0; i < part; i++)
            values[i] = (float)initial_value(tensor, rng, first + i);
        TRY(zero_write(zero, t, first, part, values));
    }
    return STATUS_OK;
}

enum status zero_init(struct zero *zero, uint64_t seed)
{
    for (int t = 0; zero->owner >= 0 && t < zero->graph->tensor_count; t++)
        TRY(init_tensor(zero, t, seed));
    return zero_publish(zero);
}

/* The place of elements first .. first + count of a tensor in its piece. */
static struct place element_range(const struct zero *zero, int tensor, int64_t first, int64_t count)
{
    struct place place = partition_tensor(&zero->partition, tensor);
    CHECK(first >= 0 && count >= 0 && first + count <= place.count);
    return (struct place){place.piece, place.first + first, count};
}

enum status zero_write(struct zero *zero, int tensor, int64_t first, int64_t count,
                       const float *values)
{
    struct place place = element_range(zero, tensor, first, count);
    if (zero->owner < 0)
        return STATUS_OK;
    struct place mine = partition_clip(&zero->partition, place, zero->owner);
    int64_t own_first = zero->owner * partition_slice(&zero->partition, place.piece);
    if (mine.count > 0)
        device_copy(zero->stream, zero->pieces[place.piece].slice + mine.first - own_first,
                    values + mine.first - place.first, (size_t)mine.count * sizeof *values);
    return stream_sync(zero->stream);
}

/* --- out -------------------------------------------------------------------------------------- */

/* A chunk of a piece from its owners; `slice` is this owner's, of params or of sums. */
static enum status collect(struct zero *zero, struct place place, const float *slice, float *out)
{
    const struct roster *r = &zero->roster;
    const struct exchange *e = &zero->range;
    struct place mine = {0};
    int64_t own_first = 0;
    if (zero->owner >= 0) {
        mine = partition_clip(&zero->partition, place, zero->owner);
        own_first = zero->owner * partition_slice(&zero->partition, place.piece);
    }
    for (int rank = 0; rank < r->size; rank++) {
        struct place theirs = {0};
        if (rank >= r->first_owner)
            theirs = partition_clip(&zero->partition, place, rank - r->first_owner);
        e->send_counts[rank] = mine.count;
        e->send_offsets[rank] = mine.count > 0 ? mine.first - own_first : 0;
        e->recv_counts[rank] = theirs.count;
        e->recv_offsets[rank] = theirs.count > 0 ? theirs.first - place.first : 0;
    }
    TRY(stream_sync(zero->stream));
    comm_all_to_all_v(zero->gather_comm, slice, e->send_counts, e->send_offsets, out,
                      e->recv_counts, e->recv_offsets, DTYPE_F32, zero->gather_stream);
    return stream_sync(zero->gather_stream);
}

/* Elements of what the owners have in slices; `slice` is NULL on ranks that own nothing. */
static enum status read_slices(struct zero *zero, struct place place, const float *slice,
                               float *out)
{
    if (zero_alone(zero)) {
        device_copy(zero->stream, out, slice + place.first, (size_t)place.count * sizeof *out);
        return stream_sync(zero->stream);
    }
    for (int64_t done = 0; done < place.count; done += ZERO_STAGING) {
        int64_t part = place.count - done < ZERO_STAGING ? place.count - done : ZERO_STAGING;
        struct place chunk = {place.piece, place.first + done, part};
        TRY(collect(zero, chunk, slice, out + done));
    }
    return STATUS_OK;
}

enum status zero_read(struct zero *zero, int tensor, int64_t first, int64_t count, float *out)
{
    struct place place = element_range(zero, tensor, first, count);
    return read_slices(zero, place, zero->pieces[place.piece].slice, out);
}

enum status zero_read_gradient(struct zero *zero, int tensor, int64_t first, int64_t count,
                               float *out)
{
    struct place place = element_range(zero, tensor, first, count);
    const struct zero_piece *piece = &zero->pieces[place.piece];
    CHECK_LT(0, piece->use_count);
    return read_slices(zero, place, piece->uses[0].sum, out);
}
