/* cuda_product -- see the header. */
#include "ops/cuda/cuda_product.h"
#include <string.h>
#include "ops/ops_tune.h"

enum { TABLE = 1024, CANDIDATES = TUNE_WAYS };

struct key { /* compared as bytes */
    int64_t m, n, k;
    int32_t turn_a, turn_b, add, epilogue;
    int32_t alignment;      /* bytes, of the matrices; at most 256 */
    int32_t side_alignment; /* of bias and aux */
};

struct entry {
    struct key key; /* m 0: free */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    bool works; /* there is an algorithm */
};

struct products {
    struct ops *ops; /* borrowed */
    struct env *env; /* borrowed */
    cublasLtHandle_t handle;
    bool exact;
    enum products_tune tune;
    int count;
    struct entry table[TABLE]; /* open addressing */
};

/* --- errors --------------------------------------------------------------------------------- */

static enum status lt_status(struct env *env, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    return FAIL(env, DEVICE, "cuBLASLt: %s failed: %s", what, cublasLtGetStatusString(status));
}

#define LT_TRY(env, call) TRY(lt_status(env, call, #call))

/* --- descriptors ---------------------------------------------------------------------------- */

static cudaDataType_t type_of(enum dtype type)
{
    return type == DTYPE_F32 ? CUDA_R_32F : type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static bool tunes(const struct products *x)
{
    return x->tune == PRODUCTS_TUNE || (x->tune == PRODUCTS_TUNE_IF_FAST && x->ops->fast);
}

static cublasComputeType_t compute_of(const struct products *x)
{
    return x->exact || x->ops->type != DTYPE_F32 ? CUBLAS_COMPUTE_32F
                                                 : CUBLAS_COMPUTE_32F_FAST_TF32;
}

static bool has_bias(int32_t epilogue) /* reads or writes a vector */
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB ||
           epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

static bool has_aux(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

static enum status set_pointers(struct env *env, struct entry *p, const struct operands *o)
{
    const void *bias = o->bias, *aux = o->aux;
    if (has_bias(p->key.epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                   sizeof bias));
    if (has_aux(p->key.epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(
                        p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
    return STATUS_OK;
}

static enum status describe(struct products *x, struct entry *p)
{
    struct env *env = x->env;
    const struct key *key = &p->key;
    cudaDataType_t type = type_of(x->ops->type);
    cublasOperation_t a = key->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = key->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)key->epilogue;
    LT_TRY(env, cublasLtMatmulDescCreate(&p->how, compute_of(x), CUDA_R_32F));
    LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                               sizeof epilogue));
    if (has_aux(key->epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                   &key->m, sizeof key->m));
    int64_t a_rows = key->turn_a ? key->k : key->m, a_columns = key->turn_a ? key->m : key->k;
    int64_t b_rows = key->turn_b ? key->n : key->k, b_columns = key->turn_b ? key->k : key->n;
    LT_TRY(env,
           cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)a_rows, (uint64_t)a_columns, a_rows));
    LT_TRY(env,
           cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)b_rows, (uint64_t)b_columns, b_rows));
    LT_TRY(env,
           cublasLtMatrixLayoutCreate(&p->d, type, (uint64_t)key->m, (uint64_t)key->n, key->m));
    return STATUS_OK;
}

static void forget(struct entry *p)
{
    if (p->d)
        cublasLtMatrixLayoutDestroy(p->d);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->how)
        cublasLtMatmulDescDestroy(p->how);
    memset(p, 0, sizeof *p);
}

static enum status prefer(struct env *env, cublasLtMatmulPreference_t preference, int32_t alignment)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    size_t workspace = PRODUCTS_WORKSPACE;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, bytes = (uint32_t)alignment;
    LT_TRY(env, cublasLtMatmulPreferenceSetAttribute(preference,
                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &workspace, sizeof workspace));
    LT_TRY(env, cublasLtMatmulPreferenceSetAttribute(preference,
                                                     CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                     &schemes, sizeof schemes));
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        LT_TRY(env, cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &bytes,
                                                         sizeof bytes));
    return STATUS_OK;
}

/* What the heuristic names, best first; *count 0: it knows none. Pointers are set already, since it
 * looks at their alignment. */
static enum status candidates(struct products *x, struct entry *p,
                              cublasLtMatmulHeuristicResult_t *found, int *count)
{
    struct env *env = x->env;
    cublasLtMatmulPreference_t preference;
    enum status st;
    *count = 0;
    LT_TRY(env, cublasLtMatmulPreferenceCreate(&preference));
    TRY_OR(undo_preference, prefer(env, preference, p->key.alignment));
    cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(x->handle, p->how, p->a, p->b, p->d, p->d, preference,
                                       tunes(x) ? CANDIDATES : 1, found, count);
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED)
        *count = 0;
    else
        st = lt_status(env, asked, "cublasLtMatmulAlgoGetHeuristic");
undo_preference:
    cublasLtMatmulPreferenceDestroy(preference);
    return st;
}

/* --- running -------------------------------------------------------------------------------- */

static cublasStatus_t multiply(struct products *x, const struct entry *p,
                               const cublasLtMatmulAlgo_t *algorithm, const struct operands *o,
                               cudaStream_t stream)
{
    const float alpha = 1, beta = p->key.add ? 1 : 0;
    return cublasLtMatmul(x->handle, p->how, &alpha, o->a, p->a, o->b, p->b, &beta, o->d, p->d,
                          o->d, p->d, algorithm, x->ops->workspace, PRODUCTS_WORKSPACE, stream);
}

/* --- the fastest ---------------------------------------------------------------------------- */

struct timing {
    struct products *products;
    const struct entry *entry;
    const cublasLtMatmulHeuristicResult_t *found;
    const struct operands *operands;
    cudaStream_t stream;
    cudaEvent_t from, to;
};

static double time_of(void *user, int way, int calls)
{
    const struct timing *t = user;
    float milliseconds = 0;
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;
    cudaEventRecord(t->from, t->stream);
    for (int i = 0; i < calls && st == CUBLAS_STATUS_SUCCESS; i++)
        st = multiply(t->products, t->entry, &t->found[way].algo, t->operands, t->stream);
    cudaEventRecord(t->to, t->stream);
    if (st != CUBLAS_STATUS_SUCCESS || cudaEventSynchronize(t->to) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, t->from, t->to) != cudaSuccess)
        return -1;
    return 1e-3 * milliseconds;
}

static void tell(const struct products *x, const struct key *key, struct tuned tuned, int count)
{
    double work = 2.0 * (double)key->m * (double)key->n * (double)key->k * 1e-12;
    log_debug(
        x->env,
        "tune: m %lld n %lld k %lld %c%c epilogue %d: first %.0f TFLOP/s, chosen %.0f TFLOP/s "
        "(%d of %d)",
        (long long)key->m, (long long)key->n, (long long)key->k, key->turn_a ? 'T' : 'N',
        key->turn_b ? 'T' : 'N', key->epilogue, work / tuned.first, work / tuned.chosen, tuned.way,
        count);
}

/* Whether a product may be run again and again on the call's own buffers with one result. */
static bool repeats(const struct entry *p, const struct operands *o)
{
    return !p->key.add && o->d != o->a && o->d != o->b && o->d != o->aux;
}

/* The index of the candidate to take. */
static int fastest(struct products *x, const struct entry *p,
                   const cublasLtMatmulHeuristicResult_t *found, int count,
                   const struct operands *o, cudaStream_t stream)
{
    struct timing timing = {x, p, found, o, stream, NULL, NULL};
    int best = 0;
    if (count < 2 || !repeats(p, o) || cudaEventCreate(&timing.from) != cudaSuccess)
        return 0;
    if (cudaEventCreate(&timing.to) == cudaSuccess) {
        struct tuned tuned = ops_tune(count, time_of, NULL, &timing);
        tell(x, &p->key, tuned, count);
        best = tuned.way;
        cudaEventDestroy(timing.to);
    }
    cudaEventDestroy(timing.from);
    (void)cudaGetLastError(); /* of a candidate that does not work */
    return best;
}

/* --- the table ------------------------------------------------------------------------------ */

static uint64_t hash_of(const struct key *key)
{
    const int64_t words[] = {key->m,      key->n,         key->k,
                             key->turn_a, key->turn_b,    key->epilogue,
                             key->add,    key->alignment, key->side_alignment};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

static void forget_all(struct products *x)
{
    for (int i = 0; i < TABLE; i++)
        forget(&x->table[i]);
    x->count = 0;
}

static struct entry *find(struct products *x, const struct key *key)
{
    uint64_t at = hash_of(key) % TABLE;
    while (x->table[at].key.m && memcmp(&x->table[at].key, key, sizeof *key) != 0)
        at = (at + 1) % TABLE;
    return &x->table[at];
}

/* The place of a key: its entry, or the free one to make it in. When the table has become full (only
 * lengths that change for ever do that) it starts again. */
static struct entry *place_of(struct products *x, const struct key *key)
{
    if (x->count > TABLE * 3 / 4)
        forget_all(x);
    return find(x, key);
}

/* For a product that adds: what was chosen for the same without, if it is there and fits. */
static bool take_twin(struct products *x, struct entry *p)
{
    struct key key = p->key;
    cublasLtMatmulHeuristicResult_t checked;
    key.add = 0;
    const struct entry *twin = find(x, &key);
    if (!p->key.add || !twin->key.m || !twin->works ||
        cublasLtMatmulAlgoCheck(x->handle, p->how, p->a, p->b, p->d, p->d, &twin->algorithm,
                                &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > PRODUCTS_WORKSPACE)
        return false;
    p->algorithm = twin->algorithm;
    return true;
}

static enum status make(struct products *x, struct entry *p, const struct key *key,
                        const struct operands *o, cudaStream_t stream)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    enum status st;
    int count;
    p->key = *key;
    TRY_OR(undo_entry, describe(x, p));
    TRY_OR(undo_entry, set_pointers(x->env, p, o));
    TRY_OR(undo_entry, candidates(x, p, found, &count));
    p->works = count > 0;
    if (p->works && !(tunes(x) && take_twin(x, p)))
        p->algorithm = found[tunes(x) ? fastest(x, p, found, count, o, stream) : 0].algo;
    x->count++;
    return STATUS_OK;
undo_entry:
    forget(p);
    return st;
}

/* The largest power of two up to 256 that divides all these addresses. */
static int32_t alignment_of(const void *a, const void *b, const void *c)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | 256;
    return (int32_t)(all & -all);
}

bool products_run(struct products *x, struct stream *stream, struct product product,
                  struct operands o)
{
    struct key key = {
        .m = product.m,
        .n = product.n,
        .k = product.k,
        .turn_a = product.turn_a,
        .turn_b = product.turn_b,
        .add = product.add,
        .epilogue = (int32_t)product.epilogue,
        .alignment = alignment_of(o.a, o.b, o.d),
        .side_alignment = alignment_of(o.bias, o.aux, NULL),
    };
    if (!cuda_on_card(x->ops, stream))
        return true;
    struct entry *p = place_of(x, &key);
    enum status st = p->key.m ? STATUS_OK : make(x, p, &key, &o, cuda_handle(stream));
    if (!st && !p->works)
        return false;
    if (!st)
        st = set_pointers(x->env, p, &o);
    if (!st)
        st = lt_status(x->env, multiply(x, p, &p->algorithm, &o, cuda_handle(stream)),
                       "cublasLtMatmul");
    if (st)
        stream_fail(stream, st);
    return true;
}

void *products_workspace(struct products *x, size_t *bytes)
{
    *bytes = PRODUCTS_WORKSPACE;
    return x->ops->workspace;
}

/* --- opening -------------------------------------------------------------------------------- */

enum status products_create(struct ops *ops, bool exact, enum products_tune tune,
                            struct products **products)
{
    struct env *env = device_env(ops->device);
    struct products *x;
    enum status st;
    TRY(cuda_status(env, cudaSetDevice(cuda_device_of(ops->device)->index), "choosing the card"));
    TRY(mem_alloc(env, MEM_OTHER, "cuBLASLt products", sizeof *x, &x));
    x->ops = ops;
    x->env = env;
    x->exact = exact;
    x->tune = tune;
    TRY_OR(undo_self, lt_status(env, cublasLtCreate(&x->handle), "cublasLtCreate"));
    *products = x;
    return STATUS_OK;
undo_self:
    mem_free(env, x);
    return st;
}

void products_destroy(struct products *x)
{
    if (!x)
        return;
    forget_all(x);
    cublasLtDestroy(x->handle);
    mem_free(x->env, x);
}
