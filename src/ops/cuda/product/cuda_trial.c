/* cuda_trial -- memory, operands and fingerprints of a trial. */
#include "ops/cuda/product/cuda_trial.h"
#include <math.h>

enum { PLACE = 512 }; /* operands start at multiples of this, plus their alignment */
enum {
    OF_FREE = 2,
    OF_USED = 40
}; /* a trial takes at most 1/OF_FREE of the free and 1/OF_USED of the used memory */
#define DEVIATION         4    /* of D: a loss of 2^-24 of it shows in f16 too */
#define DEVIATION_OF_SIDE 1    /* of bias, aux and the sum that is added to */
#define NOTHING           0xff /* bytes of a NaN */

enum { SEED_A = 1, SEED_B, SEED_D, SEED_BIAS, SEED_AUX };

/* --- which operands a product has ------------------------------------------------------------- */

/* Elements of D, with those between its columns. */
static int64_t d_count(const struct product *p)
{
    return product_ldd(p) * p->n;
}

static int64_t bias_count(const struct product *p)
{
    return product_has_bias(p->epilogue) ? p->m : 0;
}

static int64_t aux_count(const struct product *p)
{
    return product_has_aux(p->epilogue) ? p->m * p->n : 0;
}

static bool writes_aux(const struct product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/* --- memory --------------------------------------------------------------------------------- */

/* Allocates `count` elements at an address that is a multiple of `alignment` but, below 256, of no
 * higher power of two. */
static void *place(uintptr_t *at, enum dtype type, int64_t count, int32_t alignment)
{
    uintptr_t x = *at + (alignment < 256 ? (uintptr_t)alignment : 0);
    *at += (256 + (size_t)count * dtype_bytes(type) + PLACE - 1) / PLACE * PLACE;
    return (void *)x;
}

/* Lays out the operands in memory that starts at `at`; returns its end. */
static uintptr_t lay_out(struct trial *t, uintptr_t at, int32_t alignment, int32_t side_alignment)
{
    const struct product *p = &t->product;
    t->sums = (unsigned long long *)at;
    at += PLACE;
    t->operands.a = place(&at, t->type, product_lda(p) * (p->turn_a ? p->m : p->k), alignment);
    t->operands.b = place(&at, t->type, product_ldb(p) * (p->turn_b ? p->k : p->n), alignment);
    t->operands.d = place(&at, t->type, d_count(p), alignment);
    t->operands.bias = place(&at, t->type, bias_count(p), side_alignment);
    t->operands.aux = place(&at, t->type, aux_count(p), side_alignment);
    return at;
}

/* Allocates from the GPU's pool, in stream order: cudaMalloc and cudaFree would synchronize all
 * streams, and so wait for messages to ranks that may be waiting for this one. `sifr plan` does
 * not count this memory, so it is kept small compared with what is in use. */
static bool take_memory(struct trial *t, int gpu, int32_t alignment, int32_t side_alignment)
{
    size_t left, all, bytes = lay_out(t, 0, alignment, side_alignment);
    if (cudaMemGetInfo(&left, &all) != cudaSuccess || bytes > left / OF_FREE ||
        bytes > (all - left) / OF_USED ||
        cudaDeviceGetDefaultMemPool(&t->pool, gpu) != cudaSuccess ||
        cudaMallocAsync(&t->memory, bytes, t->stream) != cudaSuccess)
        return false;
    lay_out(t, (uintptr_t)t->memory, alignment, side_alignment);
    return true;
}

void trial_close(struct trial *t)
{
    cudaFreeAsync(t->memory, t->stream);
    cudaStreamSynchronize(t->stream);
    cudaMemPoolTrimTo(t->pool, 0);
}

/* --- values ----------------------------------------------------------------------------------- */

static bool fill(const struct trial *t, struct noise noise, double deviation, const void *x)
{
    noise.scale = (float)(deviation / NOISE_DEVIATION);
    return launch_noise(t->stream, t->type, noise, (void *)x) == cudaSuccess;
}

static bool fill_factors(const struct trial *t)
{
    const struct product *p = &t->product;
    struct noise a = {.kind = NOISE_A,
                      .seed = SEED_A,
                      .rows = p->turn_a ? p->k : p->m,
                      .columns = p->turn_a ? p->m : p->k,
                      .down = p->turn_a,
                      .stride = product_lda(p)};
    struct noise b = {.kind = NOISE_B,
                      .seed = SEED_B,
                      .rows = p->turn_b ? p->n : p->k,
                      .columns = p->turn_b ? p->k : p->n,
                      .down = !p->turn_b,
                      .stride = product_ldb(p)};
    return fill(t, a, DEVIATION / sqrt((double)p->k), t->operands.a) &&
           fill(t, b, 1, t->operands.b);
}

static bool forget(const struct trial *t, const void *x, int64_t count)
{
    size_t bytes = (size_t)count * dtype_bytes(t->type);
    return cudaMemsetAsync((void *)x, NOTHING, bytes, t->stream) == cudaSuccess;
}

/* The bias and aux, if they are inputs. */
static bool fill_sides(const struct trial *t)
{
    const struct product *p = &t->product;
    struct noise bias = {
        .kind = NOISE_ADDED, .seed = SEED_BIAS, .rows = p->m, .columns = 1, .stride = p->m};
    struct noise aux = {
        .kind = NOISE_PLAIN, .seed = SEED_AUX, .rows = p->m, .columns = p->n, .stride = p->m};
    return (bias_count(p) == 0 || fill(t, bias, DEVIATION_OF_SIDE, t->operands.bias)) &&
           (aux_count(p) == 0 || writes_aux(p) || fill(t, aux, DEVIATION_OF_SIDE, t->operands.aux));
}

bool trial_reset(struct trial *t)
{
    const struct product *p = &t->product;
    struct noise d = {.kind = NOISE_ADDED,
                      .seed = SEED_D,
                      .rows = p->m,
                      .columns = p->n,
                      .stride = product_ldd(p)};
    bool ready = p->beta != 0 ? fill(t, d, DEVIATION_OF_SIDE, t->operands.d)
                              : forget(t, t->operands.d, d_count(p));
    return ready && (!writes_aux(p) || forget(t, t->operands.aux, aux_count(p)));
}

bool trial_read(struct trial *t, struct fingerprint *fingerprint)
{
    const struct product *p = &t->product;
    const struct {
        const void *x;
        int64_t count;
    } written[TRIAL_OUTPUTS] = {{t->operands.d, d_count(p)},
                                {t->operands.aux, writes_aux(p) ? aux_count(p) : 0}};
    cudaError_t error = cudaMemsetAsync(t->sums, 0, sizeof *fingerprint, t->stream);
    for (int i = 0; i < TRIAL_OUTPUTS && error == cudaSuccess; i++)
        if (written[i].count > 0)
            error = launch_fingerprint(t->stream, t->type, written[i].count, written[i].x,
                                       t->sums + 2 * i);
    return error == cudaSuccess &&
           cudaMemcpyAsync(fingerprint, t->sums, sizeof *fingerprint, cudaMemcpyDeviceToHost,
                           t->stream) == cudaSuccess &&
           cudaStreamSynchronize(t->stream) == cudaSuccess;
}

/* --- opening -------------------------------------------------------------------------------- */

bool trial_open(struct trial *trial, const struct ops *ops, struct product product,
                int32_t alignment, int32_t side_alignment, cudaStream_t stream)
{
    struct trial t = {.type = ops->type, .product = product, .stream = stream};
    if (!take_memory(&t, cuda_device_of(ops->device)->index, alignment, side_alignment))
        return false;
    if (!fill_factors(&t) || !fill_sides(&t)) {
        trial_close(&t);
        return false;
    }
    *trial = t;
    return true;
}
