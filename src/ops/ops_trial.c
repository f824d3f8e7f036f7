/* ops_trial -- allocates and draws the tensors of a case, runs it, and checks what it wrote. */
#include "ops/ops_trial.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/rng.h"

enum {
    GUARD = 64, /* bytes after each tensor */
    GUARD_BYTE = 0xa5,
    POISON_REAL = 0xff, /* a NaN in every type of reals */
    POISON_INTEGER = 0x5a,
    PERIOD = 65537, /* values of a long tensor repeat after this many, a prime */
};

struct ops_trial {
    struct ops *ops;       /* borrowed */
    struct stream *stream; /* borrowed */
    struct env *env;       /* borrowed */
    const struct ops_op *op;
    struct ops_case shape;
    struct ops_call call;           /* owns the data of its tensors, in device memory */
    char *images[OPS_CALL_TENSORS]; /* host; bytes of the tensor, then the guard */
    char *host;                     /* target of reads; as long as the longest image */
};

static size_t tensor_bytes(const struct ops_tensor *t)
{
    return (size_t)t->count * dtype_bytes(t->type);
}

static bool is_input(const struct ops_tensor *t)
{
    return t->role == OPS_IN || t->role == OPS_IN_OUT;
}

static bool is_integer(enum dtype type)
{
    return type == DTYPE_I32 || type == DTYPE_I64 || type == DTYPE_U8;
}

/* --- drawing -------------------------------------------------------------------------------- */

static double draw_real(const struct ops_tensor *t, struct rng rng, int64_t i)
{
    static const struct step_scalars scalars = {.loss_scale = OPS_LOSS_SCALE,
                                                .lr = 0.1f,
                                                .correction1 = 0.271f,
                                                .correction2 = 0.142625f,
                                                .grad_scale = 0.5f};
    double normal = t->center + t->scale * rng_normal(rng, (uint64_t)i);
    switch (t->draw) {
    case OPS_SQUARES: return normal * normal;
    case OPS_CONSTANT: return t->center;
    case OPS_ANGLES: {
        double angle = 6.283185307179586 * rng_uniform(rng, (uint64_t)i / 2);
        return i % 2 == 0 ? cos(angle) : sin(angle);
    }
    case OPS_SIGNS: return normal < 0 ? -t->scale : t->scale;
    case OPS_ROWS: return i / t->bound % 3 == 1 ? 0 : normal;
    case OPS_SCALARS: return (double)((const float *)&scalars)[i];
    case OPS_NONFINITE:
        return t->bound >= 0 && i >= t->bound ? (i == t->bound ? INFINITY : NAN) : normal;
    default: return normal;
    }
}

static int64_t draw_integer(const struct ops_tensor *t, struct rng rng, int64_t i)
{
    int64_t least = (int64_t)t->center;
    if (t->draw == OPS_CONSTANT)
        return least;
    CHECK(t->draw == OPS_BELOW || t->draw == OPS_LABELS);
    bool masked = t->draw == OPS_LABELS && i % 5 == 1;
    return masked ? -1 : least + (int64_t)rng_below(rng, (uint64_t)i, (uint64_t)t->bound);
}

/* Every value is rounded to float first, so all compute types get the same values. */
static void draw_value(const struct ops_tensor *t, struct rng rng, int64_t i, char *to)
{
    if (is_integer(t->type)) {
        int64_t value = draw_integer(t, rng, i); /* little-endian: the low bytes come first */
        memcpy(to, &value, dtype_bytes(t->type));
    } else {
        float value = (float)draw_real(t, rng, i);
        dtype_convert(to, t->type, &value, DTYPE_F32, 1);
    }
}

static void draw_tensor(const struct ops_tensor *t, uint64_t seed, char *image)
{
    struct rng rng = rng_stream(seed, t->name);
    size_t width = dtype_bytes(t->type);
    int64_t count = ops_value_count(t), drawn = count;
    if (t->draw == OPS_NORMAL || t->draw == OPS_SQUARES)
        drawn = count < PERIOD ? count : PERIOD;
    for (int64_t i = 0; i < drawn; i++)
        draw_value(t, rng, i, image + (size_t)i * width);
    for (int64_t more; drawn < count; drawn += more) { /* twice as many, as long as there is room */
        more = drawn < count - drawn ? drawn : count - drawn;
        memcpy(image + (size_t)drawn * width, image, (size_t)more * width);
    }
}

/* Move the rows of a dense image to their places, with poison between them. */
static void spread_rows(const struct ops_tensor *t, char *image)
{
    size_t width = dtype_bytes(t->type), row = (size_t)t->width * width;
    size_t apart = (size_t)t->stride * width;
    for (int64_t r = t->count / t->stride - 1; r >= 0; r--) {
        char *to = image + (size_t)r * apart;
        memmove(to, image + (size_t)r * row, row);
        memset(to + row, POISON_REAL, apart - row);
    }
}

static void draw_image(struct ops_trial *trial, int tensor, uint64_t seed)
{
    const struct ops_tensor *t = &trial->call.tensors[tensor];
    size_t bytes = tensor_bytes(t);
    char *image = trial->images[tensor];
    if (is_input(t)) {
        draw_tensor(t, seed, image);
        if (t->stride > 0)
            spread_rows(t, image);
    } else {
        memset(image, is_integer(t->type) ? POISON_INTEGER : POISON_REAL, bytes);
    }
    memset(image + bytes, GUARD_BYTE, GUARD);
}

/* --- create and destroy --------------------------------------------------------------------- */

static enum status alloc_tensors(struct ops_trial *trial, uint64_t seed)
{
    size_t longest = 0;
    for (int i = 0; i < trial->call.count; i++) {
        struct ops_tensor *t = &trial->call.tensors[i];
        size_t bytes = tensor_bytes(t) + GUARD;
        longest = bytes > longest ? bytes : longest;
        TRY(device_alloc(trial->ops->device, MEM_SCRATCH, "trial", bytes, &t->data));
        TRY(mem_alloc(trial->env, MEM_OTHER, "trial images", bytes, &trial->images[i]));
        draw_image(trial, i, seed);
    }
    return mem_alloc(trial->env, MEM_OTHER, "trial images", longest, &trial->host);
}

/* Run the forward op and copy its tensors into the inputs of the same name. */
static enum status take_from_forward(struct ops_trial *trial, uint64_t seed)
{
    struct ops_case shape = trial->shape;
    struct ops_trial *forward;
    shape.op = trial->op->forward;
    TRY(ops_trial_create(trial->ops, trial->stream, &shape, seed, &forward));
    ops_trial_run(forward);
    for (int i = 0; i < forward->call.count; i++) {
        const struct ops_tensor *from = &forward->call.tensors[i];
        const struct ops_tensor *to = ops_find_tensor(&trial->call, from->name);
        if (to != NULL && is_input(to)) {
            CHECK_EQ(tensor_bytes(to), tensor_bytes(from));
            memcpy(trial->images[to - trial->call.tensors], ops_trial_read(forward, i),
                   tensor_bytes(to));
        }
    }
    ops_trial_destroy(forward);
    return stream_sync(trial->stream);
}

enum status ops_trial_create(struct ops *ops, struct stream *stream, const struct ops_case *c,
                             uint64_t seed, struct ops_trial **trial)
{
    enum status st;
    struct env *env = device_env(ops->device);
    struct ops_trial *t;
    TRY(mem_alloc(env, MEM_OTHER, "trial", sizeof *t, &t));
    t->ops = ops;
    t->stream = stream;
    t->env = env;
    t->op = ops_find_op(c->op);
    t->shape = *c;
    t->op->describe(ops, c, &t->call);
    TRY_OR(undo_self, alloc_tensors(t, seed));
    if (t->op->forward != NULL)
        TRY_OR(undo_self, take_from_forward(t, seed));
    ops_trial_reset(t);
    *trial = t;
    return STATUS_OK;
undo_self:
    ops_trial_destroy(t);
    return st;
}

void ops_trial_destroy(struct ops_trial *trial)
{
    if (trial == NULL)
        return;
    stream_sync(trial->stream);
    for (int i = 0; i < trial->call.count; i++) {
        device_free(trial->ops->device, trial->call.tensors[i].data);
        mem_free(trial->env, trial->images[i]);
    }
    mem_free(trial->env, trial->host);
    mem_free(trial->env, trial);
}

const struct ops_op *ops_trial_op(const struct ops_trial *trial)
{
    return trial->op;
}

const struct ops_call *ops_trial_call(const struct ops_trial *trial)
{
    return &trial->call;
}

/* --- running -------------------------------------------------------------------------------- */

void ops_trial_reset(struct ops_trial *trial)
{
    for (int i = 0; i < trial->call.count; i++)
        device_copy(trial->stream, trial->call.tensors[i].data, trial->images[i],
                    tensor_bytes(&trial->call.tensors[i]) + GUARD);
}

void ops_trial_run(struct ops_trial *trial)
{
    trial->op->run(trial->ops, trial->stream, &trial->shape, &trial->call);
}

void ops_trial_run_aliased(struct ops_trial *trial, int tensor, const char *input)
{
    struct ops_call call = trial->call;
    call.tensors[tensor].data = ops_find_tensor(&trial->call, input)->data;
    trial->op->run(trial->ops, trial->stream, &trial->shape, &call);
}

const void *ops_trial_read(struct ops_trial *trial, int tensor)
{
    const struct ops_tensor *t = &trial->call.tensors[tensor];
    device_copy(trial->stream, trial->host, t->data, tensor_bytes(t) + GUARD);
    stream_sync(trial->stream);
    return trial->host;
}

void *ops_trial_image(struct ops_trial *trial, int tensor)
{
    return trial->images[tensor];
}

void ops_trial_take(struct ops_trial *trial, const struct ops_trial *from)
{
    for (int i = 0; i < trial->call.count; i++) {
        const struct ops_tensor *to = &trial->call.tensors[i], *t = &from->call.tensors[i];
        CHECK(strcmp(to->name, t->name) == 0);
        if (!is_input(to))
            continue;
        CHECK_EQ(to->count, t->count);
        if (is_integer(to->type))
            memcpy(trial->images[i], from->images[i], tensor_bytes(to));
        else
            dtype_convert(trial->images[i], to->type, from->images[i], t->type, to->count);
    }
    ops_trial_reset(trial);
}

/* --- soundness ------------------------------------------------------------------------------ */

/* The first element that still has its poison bytes, or -1. */
static int64_t find_unwritten(const struct ops_tensor *t, const char *data, const char *image)
{
    size_t width = dtype_bytes(t->type);
    for (int64_t i = 0; i < t->count; i++) {
        if (!ops_is_between(t, i) &&
            memcmp(data + (size_t)i * width, image + (size_t)i * width, width) == 0)
            return i;
    }
    return -1;
}

static bool changes_between(const struct ops_tensor *t, const char *data, const char *image)
{
    size_t width = dtype_bytes(t->type);
    for (int64_t i = 0; t->stride > 0 && i < t->count; i++) {
        if (ops_is_between(t, i) &&
            memcmp(data + (size_t)i * width, image + (size_t)i * width, width) != 0)
            return true;
    }
    return false;
}

bool ops_trial_is_sound(struct ops_trial *trial, char *why)
{
    for (int i = 0; i < trial->call.count; i++) {
        const struct ops_tensor *t = &trial->call.tensors[i];
        size_t bytes = tensor_bytes(t);
        const char *data = ops_trial_read(trial, i), *image = trial->images[i];
        int64_t unwritten = t->role == OPS_OUT ? find_unwritten(t, data, image) : -1;
        if (unwritten >= 0)
            snprintf(why, OPS_CASE_NAME, "%s[%lld] was not written", t->name, (long long)unwritten);
        else if (t->role == OPS_IN && memcmp(data, image, bytes) != 0)
            snprintf(why, OPS_CASE_NAME, "the input %s was changed", t->name);
        else if (changes_between(t, data, image))
            snprintf(why, OPS_CASE_NAME, "the call wrote between the rows of %s", t->name);
        else if (memcmp(data + bytes, image + bytes, GUARD) != 0)
            snprintf(why, OPS_CASE_NAME, "the call wrote beyond the end of %s", t->name);
        else
            continue;
        return false;
    }
    return true;
}
