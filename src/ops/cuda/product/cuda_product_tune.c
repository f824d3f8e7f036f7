/* cuda_product_tune -- chooses the cuBLASLt algorithm of a product (policy: cuda_product.h).
 *
 * Same bits: the reference is the algorithm that the heuristic names when asked for one. Those
 * that it names when asked for more, and some that it does not name (cuda_product_fit.c), run on
 * the operands of a trial, and are timed there if everything they write has the reference's
 * fingerprint. Sums that cancel reveal any other order of addition (ops_noise.h). So whichever is
 * chosen, whatever the timings, rank or day, the bits are the reference's, and ranks need not
 * agree on the choice. A shape is tried once, in the first step that has it. Small products are
 * not tried (launching dominates their time, and tests have many of them), nor is any after the
 * first TRIED_MOST, since lengths may keep changing.
 */
#include <string.h>
#include "base/clock.h"
#include "ops/cuda/product/cuda_product_impl.h"
#include "ops/cuda/product/cuda_trial.h"
#include "ops/ops_tune.h"

enum { CANDIDATES = TUNE_WAYS, NAMED = 16, TRIED_MOST = 64 };
#define TRIED_FLOPS 1e10 /* the smallest product that is tried: about 15 us on an H200 */

/* --- timing --------------------------------------------------------------------------------- */

struct timing {
    struct products *products;
    const struct entry *entry;
    const cublasLtMatmulHeuristicResult_t *found;
    const struct operands *operands;
    cudaStream_t stream;
    cudaEvent_t from, to;
    struct trial *trial; /* NULL: use the call's own operands and compare no bits */
    struct fingerprint first;
    bool known; /* the fingerprint of the first is known */
};

static double time_of(void *user, int way, int calls)
{
    const struct timing *t = user;
    float milliseconds = 0;
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;
    cudaEventRecord(t->from, t->stream);
    for (int i = 0; i < calls && st == CUBLAS_STATUS_SUCCESS; i++)
        st = products_multiply(t->products, t->entry, &t->found[way].algo, t->operands, t->stream);
    cudaEventRecord(t->to, t->stream);
    if (st != CUBLAS_STATUS_SUCCESS || cudaEventSynchronize(t->to) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, t->from, t->to) != cudaSuccess)
        return -1;
    return 1e-3 * milliseconds;
}

static bool look_at(struct timing *t, int way, struct fingerprint *fingerprint)
{
    return trial_reset(t->trial) &&
           products_multiply(t->products, t->entry, &t->found[way].algo, t->operands, t->stream) ==
               CUBLAS_STATUS_SUCCESS &&
           trial_read(t->trial, fingerprint);
}

static bool same_bits(void *user, int way)
{
    struct timing *t = user;
    struct fingerprint other;
    t->known = t->known || look_at(t, 0, &t->first);
    return t->known && look_at(t, way, &other) && !memcmp(&other, &t->first, sizeof other);
}

static void tell(const struct products *x, const struct key *key, struct tuned tuned, int count,
                 double seconds)
{
    double work = 2.0 * (double)key->m * (double)key->n * (double)key->k * 1e-12;
    log_debug(x->env,
              "tune: m %lld n %lld k %lld %c%c epilogue %d%s: first %.0f TFLOP/s, chosen %.0f "
              "TFLOP/s (%d of %d, %d eligible, in %.0f ms)",
              (long long)key->m, (long long)key->n, (long long)key->k, key->turn_a ? 'T' : 'N',
              key->turn_b ? 'T' : 'N', key->epilogue, key->beta != 0 ? " added" : "",
              work / tuned.first, work / tuned.chosen, tuned.way, count, tuned.same, 1e3 * seconds);
}

/* The index of the candidate to use; with a trial, among those with the bits of the first. */
static int fastest(struct timing timing, int count)
{
    double start = clock_seconds();
    int best = 0;
    if (count < 2 || cudaEventCreate(&timing.from) != cudaSuccess)
        return 0;
    if (cudaEventCreate(&timing.to) == cudaSuccess) {
        struct tuned tuned = ops_tune(count, time_of, timing.trial ? same_bits : NULL, &timing);
        tell(timing.products, &timing.entry->key, tuned, count, clock_seconds() - start);
        best = tuned.way;
        cudaEventDestroy(timing.to);
    }
    cudaEventDestroy(timing.from);
    return best;
}

/* --- the same bits -------------------------------------------------------------------------- */

static struct product product_of(const struct key *key)
{
    return (struct product){.m = key->m,
                            .n = key->n,
                            .k = key->k,
                            .turn_a = key->turn_a,
                            .turn_b = key->turn_b,
                            .a_stride = key->lda,
                            .b_stride = key->ldb,
                            .d_stride = key->ldd,
                            .alpha = key->alpha,
                            .beta = key->beta,
                            .epilogue = (cublasLtEpilogue_t)key->epilogue};
}

/* Appends the other algorithms that the heuristic names to the first. */
static enum status add_named(struct products *x, const struct entry *p,
                             cublasLtMatmulHeuristicResult_t *found, int *count)
{
    cublasLtMatmulHeuristicResult_t more[NAMED];
    int more_count;
    TRY(products_candidates(x, p, NAMED, more, &more_count));
    for (int i = 0; i < more_count && *count < NAMED; i++)
        if (memcmp(&more[i].algo, &found[0].algo, sizeof found[0].algo) != 0)
            found[(*count)++] = more[i];
    return STATUS_OK;
}

/* found[0] is the reference. */
static enum status choose_same(struct products *x, struct entry *p,
                               cublasLtMatmulHeuristicResult_t *found, int count,
                               cudaStream_t stream)
{
    const struct key *key = &p->key;
    struct trial trial;
    enum status st;
    x->tried++;
    TRY(add_named(x, p, found, &count));
    products_add_fitting(x, p, CANDIDATES, found, &count);
    if (count < 2 ||
        !trial_open(&trial, x->ops, product_of(key), key->alignment, key->side_alignment, stream))
        return STATUS_OK;
    TRY_OR(undo_trial, products_point(x->env, p, &trial.operands));
    struct timing timing = {.products = x,
                            .entry = p,
                            .found = found,
                            .operands = &trial.operands,
                            .stream = stream,
                            .trial = &trial};
    p->algorithm = found[fastest(timing, count)].algo;
undo_trial:
    trial_close(&trial);
    return st;
}

/* --- fast mode ------------------------------------------------------------------------------ */

/* For a product that adds: takes the choice of the same product without adding, if that exists and
 * fits. */
static bool take_twin(struct products *x, struct entry *p)
{
    struct key key = p->key;
    cublasLtMatmulHeuristicResult_t checked;
    key.beta = 0;
    const struct entry *twin = products_find(x, &key);
    if (p->key.beta == 0 || !twin->key.m || !twin->works ||
        cublasLtMatmulAlgoCheck(x->handle, p->how, p->a, p->b, p->d, p->d, &twin->algorithm,
                                &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > PRODUCTS_WORKSPACE)
        return false;
    p->algorithm = twin->algorithm;
    return true;
}

/* -------------------------------------------------------------------------------------------- */

enum status products_choose(struct products *x, struct entry *p, const struct operands *o,
                            cudaStream_t stream)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    enum products_choice by_mode = x->ops->fast ? PRODUCTS_FASTEST : PRODUCTS_SAME;
    enum products_choice choice = x->choice == PRODUCTS_BY_MODE ? by_mode : x->choice;
    enum status st = STATUS_OK;
    int count;
    TRY(products_candidates(x, p, choice == PRODUCTS_FASTEST ? NAMED : 1, found, &count));
    p->works = count > 0;
    if (!p->works)
        return STATUS_OK;
    p->algorithm = found[0].algo;
    double flops = 2.0 * (double)p->key.m * (double)p->key.n * (double)p->key.k;
    /* whether the product can be repeated on the call's own buffers with the same result */
    bool adds = p->key.beta != 0 && (!o->c || o->c == o->d);
    bool repeats = !adds && o->d != o->a && o->d != o->b && o->d != o->aux;
    struct timing own = {
        .products = x, .entry = p, .found = found, .operands = o, .stream = stream};
    if (choice == PRODUCTS_FASTEST && !take_twin(x, p) && repeats)
        p->algorithm = found[fastest(own, count)].algo;
    else if (choice == PRODUCTS_SAME && x->tried < TRIED_MOST && flops >= TRIED_FLOPS)
        st = choose_same(x, p, found, count, stream);
    (void)cudaGetLastError(); /* clears the error of a candidate that failed, or of an allocation */
    return st;
}
