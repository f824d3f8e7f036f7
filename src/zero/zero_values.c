/* zero_values -- parameters from and to outside: initial values, element ranges for files and
 * tests.
 *
 * Everything goes through a staging buffer of one chunk, so that no tensor exists twice.
 */
#include "zero/zero_impl.h"

#include "base/rng.h"

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

static enum status init_tensor(struct zero *zero, int t, uint64_t seed)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct rng rng = rng_stream(seed, tensor->name);
    int64_t count = unit_tensor_count(tensor);
    float *values = zero->staging;
    for (int64_t first = 0; first < count; first += ZERO_STAGING) {
        int64_t part = count - first < ZERO_STAGING ? count - first : ZERO_STAGING;
#pragma omp parallel for num_threads(zero->env->threads) schedule(static)
        for (int64_t i = 0; i < part; i++)
            values[i] = (float)initial_value(tensor, rng, first + i);
        TRY(zero_write(zero, t, first, part, values));
    }
    return STATUS_OK;
}

enum status zero_init(struct zero *zero, uint64_t seed)
{
    for (int t = 0; t < zero->graph->tensor_count; t++)
        TRY(init_tensor(zero, t, seed));
    return STATUS_OK;
}

/* The place of elements first .. first + count of a tensor in its piece. */
static struct place element_range(const struct zero *zero, int tensor, int64_t first, int64_t count)
{
    struct place place = partition_tensor(&zero->partition, tensor);
    CHECK(first >= 0 && count >= 0 && first + count <= place.count);
    return (struct place){place.piece, place.first + first, count};
}

enum status zero_read(struct zero *zero, int tensor, int64_t first, int64_t count, float *out)
{
    struct place place = element_range(zero, tensor, first, count);
    device_copy(zero->stream, out, zero->pieces[place.piece].params + place.first,
                (size_t)count * sizeof *out);
    return stream_sync(zero->stream);
}

enum status zero_write(struct zero *zero, int tensor, int64_t first, int64_t count,
                       const float *values)
{
    struct place place = element_range(zero, tensor, first, count);
    device_copy(zero->stream, zero->pieces[place.piece].params + place.first, values,
                (size_t)count * sizeof *values);
    return stream_sync(zero->stream);
}

enum status zero_read_gradient(struct zero *zero, int tensor, int64_t first, int64_t count,
                               float *out)
{
    struct place place = element_range(zero, tensor, first, count);
    const struct zero_piece *piece = &zero->pieces[place.piece];
    CHECK_LT(0, piece->use_count);
    device_copy(zero->stream, out, piece->uses[0].sum + place.first, (size_t)count * sizeof *out);
    return stream_sync(zero->stream);
}
