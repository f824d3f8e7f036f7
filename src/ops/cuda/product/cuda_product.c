/* cuda_product -- descriptors, runs and the table of products. */
#include "ops/cuda/product/cuda_product.h"
#include <string.h>
#include "ops/cuda/product/cuda_product_impl.h"

/* --- errors --------------------------------------------------------------------------------- */

static enum status lt_status(struct env *env, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    return FAIL(env, DEVICE, "cuBLASLt: %s failed: %s", what, cublasLtGetStatusString(status));
}

#define LT_TRY(env, call) TRY(lt_status(env, call, #call))

/* --- descriptors ---------------------------------------------------------------------------- */

enum status products_point(struct env *env, struct entry *p, const struct operands *o)
{
    const void *bias = o->bias, *aux = o->aux;
    if (product_has_bias(p->key.epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                   sizeof bias));
    if (product_has_aux(p->key.epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(
                        p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
    return STATUS_OK;
}

static enum status describe(struct products *x, struct entry *p)
{
    struct env *env = x->env;
    const struct key *key = &p->key;
    enum dtype t = x->ops->type;
    cudaDataType_t type = t == DTYPE_F32 ? CUDA_R_32F : t == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    cublasComputeType_t compute =
        x->exact || t != DTYPE_F32 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasOperation_t a = key->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = key->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)key->epilogue;
    LT_TRY(env, cublasLtMatmulDescCreate(&p->how, compute, CUDA_R_32F));
    LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                               sizeof epilogue));
    if (product_has_aux(key->epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                   &key->m, sizeof key->m));
    int64_t a_rows = key->turn_a ? key->k : key->m, a_columns = key->turn_a ? key->m : key->k;
    int64_t b_rows = key->turn_b ? key->n : key->k, b_columns = key->turn_b ? key->k : key->n;
    LT_TRY(env, cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)a_rows, (uint64_t)a_columns,
                                           key->lda));
    LT_TRY(env, cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)b_rows, (uint64_t)b_columns,
                                           key->ldb));
    LT_TRY(env,
           cublasLtMatrixLayoutCreate(&p->d, type, (uint64_t)key->m, (uint64_t)key->n, key->ldd));
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

enum status products_candidates(struct products *x, const struct entry *p, int most,
                                cublasLtMatmulHeuristicResult_t *found, int *count)
{
    struct env *env = x->env;
    cublasLtMatmulPreference_t preference;
    enum status st;
    *count = 0;
    LT_TRY(env, cublasLtMatmulPreferenceCreate(&preference));
    TRY_OR(undo_preference, prefer(env, preference, p->key.alignment));
    cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(x->handle, p->how, p->a, p->b, p->d, p->d,
                                                          preference, most, found, count);
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED)
        *count = 0;
    else
        st = lt_status(env, asked, "cublasLtMatmulAlgoGetHeuristic");
undo_preference:
    cublasLtMatmulPreferenceDestroy(preference);
    return st;
}

/* --- running -------------------------------------------------------------------------------- */

cublasStatus_t products_multiply(struct products *x, const struct entry *p,
                                 const cublasLtMatmulAlgo_t *algorithm, const struct operands *o,
                                 cudaStream_t stream)
{
    return cublasLtMatmul(x->handle, p->how, &p->key.alpha, o->a, p->a, o->b, p->b, &p->key.beta,
                          o->c ? o->c : o->d, p->d, o->d, p->d, algorithm, x->ops->workspace,
                          PRODUCTS_WORKSPACE, stream);
}

/* --- the table ------------------------------------------------------------------------------ */

static uint64_t hash_of(const struct key *key)
{
    const int64_t words[] = {key->m,        key->n,         key->k,         key->lda,
                             key->ldb,      key->ldd,       key->turn_a,    key->turn_b,
                             key->epilogue, key->beta != 0, key->alignment, key->side_alignment};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

static void forget_all(struct products *x)
{
    for (int i = 0; i < PRODUCTS_TABLE; i++)
        forget(&x->table[i]);
    x->count = 0;
}

struct entry *products_find(struct products *x, const struct key *key)
{
    uint64_t at = hash_of(key) % PRODUCTS_TABLE;
    while (x->table[at].key.m && memcmp(&x->table[at].key, key, sizeof *key) != 0)
        at = (at + 1) % PRODUCTS_TABLE;
    return &x->table[at];
}

static enum status make(struct products *x, struct entry *p, const struct key *key,
                        const struct operands *o, cudaStream_t stream)
{
    enum status st;
    p->key = *key;
    TRY_OR(undo_entry, describe(x, p));
    TRY_OR(undo_entry, products_point(x->env, p, o));
    TRY_OR(undo_entry, products_choose(x, p, o, stream));
    x->count++;
    return STATUS_OK;
undo_entry:
    forget(p);
    return st;
}

/* The largest power of two up to 256 that divides all these addresses. */
static int32_t alignment_of(const void *a, const void *b, const void *c, const void *d)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | 256;
    return (int32_t)(all & -all);
}

bool products_run(struct products *x, struct stream *stream, struct product product,
                  struct operands o)
{
    struct key key = {
        .m = product.m,
        .n = product.n,
        .k = product.k,
        .lda = product_lda(&product),
        .ldb = product_ldb(&product),
        .ldd = product_ldd(&product),
        .turn_a = product.turn_a,
        .turn_b = product.turn_b,
        .epilogue = (int32_t)product.epilogue,
        .alpha = product.alpha,
        .beta = product.beta,
        .alignment = alignment_of(o.a, o.b, o.d, o.c),
        .side_alignment = alignment_of(o.bias, o.aux, NULL, NULL),
    };
    if (!cuda_on_gpu(x->ops, stream))
        return true;
    if (x->count > PRODUCTS_TABLE * 3 / 4) /* only ever-changing lengths fill the table */
        forget_all(x);
    struct entry *p = products_find(x, &key);
    enum status st = p->key.m ? STATUS_OK : make(x, p, &key, &o, cuda_handle(stream));
    if (!st && !p->works)
        return false;
    if (!st)
        st = products_point(x->env, p, &o);
    if (!st)
        st = lt_status(x->env, products_multiply(x, p, &p->algorithm, &o, cuda_handle(stream)),
                       "cublasLtMatmul");
    if (st)
        stream_fail(stream, st);
    return true;
}

/* --- opening -------------------------------------------------------------------------------- */

enum status products_create(struct ops *ops, bool exact, enum products_choice choice,
                            struct products **products)
{
    struct env *env = device_env(ops->device);
    struct products *x;
    enum status st;
    TRY(cuda_status(env, cudaSetDevice(cuda_device_of(ops->device)->index), "choosing the GPU"));
    TRY(mem_alloc(env, MEM_OTHER, "cuBLASLt products", sizeof *x, &x));
    x->ops = ops;
    x->env = env;
    x->exact = exact;
    x->choice = choice;
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
