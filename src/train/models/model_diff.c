/* model_diff.c -- compares values by their bits.
 *
 * Values are widened to 64 bits without loss: floating types to double, integers to int64_t. Their
 * bits are compared; only values with different bits are compared as numbers.
 */
#include "train/models/model_diff.h"
#include <math.h>
#include <string.h>
#include "base/progress.h"
#include "train/models/model_weights.h"

enum { CHUNK = 1 << 18 }; /* elements read at once */

struct side {
    struct env *env; /* borrowed */
    struct model_source *source;
    struct weight_files parts[CHECKPOINT_ROLES];
};

struct diff {
    struct env *env; /* borrowed */
    struct side a, b;
    uint64_t *a_bits, *b_bits; /* (CHUNK) */
    diff_visit_fn *visit;
    void *user;
    struct diff_totals *totals;
    struct progress_task task; /* bytes of the first side */
};

/* --- a side --------------------------------------------------------------------------------- */

/* Damaged checkpoints can be compared: only state.json is verified. */
static enum status open_side(struct side *side, const char *path)
{
    const struct model_want want = {.depth = MODEL_DEPTH_STATE};
    for (int role = 0; role < CHECKPOINT_ROLES; role++)
        side->parts[role].env = side->env;
    TRY(model_source_open(side->env, path, &want, &side->source));
    return weight_files_open(&side->parts[CHECKPOINT_MODEL], side->source);
}

static void close_side(struct side *side)
{
    for (int role = 0; role < CHECKPOINT_ROLES; role++)
        weight_files_close(&side->parts[role]);
    model_source_close(side->source);
}

/* The tensor with this name or, if there is none, one whose name differs only in the prefix. */
static struct weight_found find_alike(const struct weight_files *weights, const char *name)
{
    const char *bare = weight_files_bare(name);
    struct weight_found exact = weight_files_find(weights, name);
    if (exact.tensor)
        return exact;
    for (int f = 0; f < weights->count; f++)
        for (int i = 0; i < safetensors_count(weights->files[f]); i++) {
            const struct safetensor *tensor = safetensors_at(weights->files[f], i);
            if (strcmp(weight_files_bare(tensor->name), bare) == 0)
                return (struct weight_found){weights->files[f], tensor};
        }
    return (struct weight_found){0};
}

/* --- elements ------------------------------------------------------------------------------- */

static bool is_real(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

static enum status read_bits(struct weight_found found, int64_t first, int64_t count, uint64_t *out)
{
    enum dtype type = found.tensor->type;
    if (is_real(type))
        return safetensors_read(found.file, found.tensor, first, count, DTYPE_F64, out);
    TRY(safetensors_read(found.file, found.tensor, first, count, type, out));
    for (int64_t i = count - 1; i >= 0; i--) { /* widened in place, from the end */
        int32_t narrow;
        memcpy(&narrow, (const char *)out + i * (int64_t)sizeof narrow, sizeof narrow);
        if (type == DTYPE_I32)
            out[i] = (uint64_t)(int64_t)narrow;
        else if (type == DTYPE_U8)
            out[i] = ((const uint8_t *)out)[i];
    }
    return STATUS_OK;
}

static double as_number(enum dtype type, uint64_t bits)
{
    double real;
    if (!is_real(type))
        return (double)(int64_t)bits;
    memcpy(&real, &bits, sizeof real);
    return real;
}

struct sums {
    double difference, a;
};

static void compare_chunk(const struct diff *d, int64_t first, int64_t count,
                          struct diff_tensor *tensor, struct sums *sums)
{
    for (int64_t i = 0; i < count; i++) {
        double a = as_number(tensor->a->type, d->a_bits[i]);
        sums->a += a * a;
        if (d->a_bits[i] == d->b_bits[i])
            continue;
        double b = as_number(tensor->b->type, d->b_bits[i]), away = fabs(a - b);
        if (tensor->differing++ == 0) {
            tensor->first = first + i;
            tensor->a_first = a;
            tensor->b_first = b;
        }
        if (!(away <= tensor->largest))
            tensor->largest = isnan(away) ? INFINITY : away;
        sums->difference += away * away;
    }
}

static enum status compare_elements(struct diff *d, struct weight_found a, struct weight_found b,
                                    struct diff_tensor *tensor)
{
    struct sums sums = {0};
    for (int64_t first = 0; first < a.tensor->count; first += CHUNK) {
        int64_t left = a.tensor->count - first, count = left < CHUNK ? left : CHUNK;
        TRY(read_bits(a, first, count, d->a_bits));
        TRY(read_bits(b, first, count, d->b_bits));
        compare_chunk(d, first, count, tensor, &sums);
        progress_advance(d->env, &d->task, (uint64_t)count * dtype_bytes(a.tensor->type));
    }
    tensor->compared = true;
    if (tensor->differing > 0)
        tensor->relative_rms = sqrt(sums.difference / sums.a);
    return STATUS_OK;
}

/* --- tensors -------------------------------------------------------------------------------- */

bool diff_tensor_equal(const struct diff_tensor *tensor)
{
    return tensor->a && tensor->b && tensor->same_type && tensor->same_shape &&
           tensor->differing == 0;
}

static bool same_shape(const struct safetensor *a, const struct safetensor *b)
{
    return a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

static void tell(const struct diff *d, const struct diff_tensor *tensor)
{
    struct diff_totals *totals = d->totals;
    bool equal = diff_tensor_equal(tensor);
    totals->tensors++;
    totals->equal += equal;
    totals->only_a += !tensor->b;
    totals->only_b += !tensor->a;
    totals->differing += !equal && tensor->a && tensor->b;
    if (!(tensor->largest <= totals->largest))
        totals->largest = tensor->largest;
    d->visit(d->user, tensor);
}

static enum status compare_tensor(struct diff *d, const char *part, struct weight_found a,
                                  struct weight_found b)
{
    struct diff_tensor tensor = {.part = part, .a = a.tensor, .b = b.tensor, .first = -1};
    if (b.tensor) {
        tensor.same_type = a.tensor->type == b.tensor->type;
        tensor.same_shape = same_shape(a.tensor, b.tensor);
        if (tensor.same_shape &&
            (tensor.same_type || (is_real(a.tensor->type) && is_real(b.tensor->type))))
            TRY(compare_elements(d, a, b, &tensor));
    }
    tell(d, &tensor);
    return STATUS_OK;
}

static enum status compare_part(struct diff *d, enum checkpoint_role role)
{
    const struct weight_files *a = &d->a.parts[role], *b = &d->b.parts[role];
    const char *part = checkpoint_role_word(role);
    for (int f = 0; f < a->count; f++)
        for (int i = 0; i < safetensors_count(a->files[f]); i++) {
            struct weight_found at = {a->files[f], safetensors_at(a->files[f], i)};
            TRY(compare_tensor(d, part, at, find_alike(b, at.tensor->name)));
        }
    for (int f = 0; f < b->count; f++)
        for (int i = 0; i < safetensors_count(b->files[f]); i++) {
            const struct safetensor *tensor = safetensors_at(b->files[f], i);
            if (!find_alike(a, tensor->name).tensor)
                tell(d, &(struct diff_tensor){.part = part, .b = tensor, .first = -1});
        }
    return STATUS_OK;
}

static enum status run_diff(struct diff *d, const char *a, const char *b)
{
    TRY(open_side(&d->a, a));
    TRY(open_side(&d->b, b));
    TRY(mem_alloc_array(d->env, MEM_OTHER, "elements", CHUNK, sizeof *d->a_bits, &d->a_bits));
    TRY(mem_alloc_array(d->env, MEM_OTHER, "elements", CHUNK, sizeof *d->b_bits, &d->b_bits));
    TRY(compare_part(d, CHECKPOINT_MODEL));
    if (!d->a.source->checkpoint || !d->b.source->checkpoint)
        return STATUS_OK;
    for (int r = CHECKPOINT_MASTER; r < CHECKPOINT_ROLES; r++) {
        enum checkpoint_role role = (enum checkpoint_role)r;
        TRY(weight_files_open_role(&d->a.parts[role], d->a.source, role));
        TRY(weight_files_open_role(&d->b.parts[role], d->b.source, role));
        TRY(compare_part(d, role));
    }
    return STATUS_OK;
}

enum status model_diff(struct env *env, const char *a, const char *b, diff_visit_fn *visit,
                       void *user, struct diff_totals *totals)
{
    struct diff d = {.env = env,
                     .a = {.env = env},
                     .b = {.env = env},
                     .visit = visit,
                     .user = user,
                     .totals = totals};
    *totals = (struct diff_totals){0};
    progress_begin(&d.task, "comparing", NULL, 0);
    enum status st = run_diff(&d, a, b);
    progress_end(env, &d.task);
    mem_free(env, d.b_bits);
    mem_free(env, d.a_bits);
    close_side(&d.b);
    close_side(&d.a);
    return st;
}
