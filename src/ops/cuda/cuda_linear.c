/* cuda_linear -- linear layers through cuBLASLt.
 *
 * cuBLASLt thinks in columns: a row-major (R, C) is its C x R with leading dimension C. So nothing is
 * ever transposed in memory, only read the other way:
 *
 *     y (R, out)    as out x R  =  W x        m = out, n = R,  k = in
 *     dx (R, in)    as in x R   =  W dy       m = in,  n = R,  k = out
 *     dw [out][in]  as in x out =  x dy^T     m = in,  n = out, k = R     dbias: sums of B over k
 *     dw [in][out]  as out x in =  dy x^T     m = out, n = in,  k = R     dbias: sums of A over k
 *
 * Bias, GELU and their gradients can ride along as epilogues. cuBLASLt's GELU is the tanh form; its
 * AUX matrix is the input of the GELU, (R, out) like ours, whose leading dimension must be a multiple
 * of 8. Where no algorithm has the epilogue (or `fuse` says not to) the plain product is followed by
 * a kernel.
 *
 * The descriptors and the algorithm of a product are made when its shape is first met and kept in a
 * table: the next call only sets pointers.
 *
 * Bits: the algorithm is the first that the heuristic names, which depends on shape, types, alignment
 * and card. Allowed are one pass over k, and split k with partial sums of the compute type that are
 * added in a second step, in order (weight gradients need it: m x n is small, k is all rows). Not
 * allowed are split k in place, and partial sums rounded to the output type.
 *
 * Environment, read at opening, for measuring on a card: SIFR_CUDA_TUNE=1 times the candidates of
 * each shape and takes the best (no fixed bits); SIFR_CUDA_EXACT=1 keeps f32 products in f32, not
 * TF32; SIFR_CUDA_FUSE=bias,gelu,dgelu,dbias names the epilogues to use.
 */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>
#include "ops/cuda/cuda_columns.h"
#include "ops/cuda/cuda_impl.h"

#define WORKSPACE_BYTES ((size_t)64 << 20)

enum { TABLE = 1024, CANDIDATES = 16 };

struct fuse {
    bool bias, gelu, dgelu, dbias;
};
static const struct fuse fuse_default = {true, true, true, true};

struct product_key {
    int64_t m, n, k;
    int32_t turn_a, turn_b; /* op T */
    int32_t epilogue;       /* cublasLtEpilogue_t */
    int32_t add;            /* beta 1 */
    int32_t alignment;      /* bytes, of the matrices; at most 256 */
    int32_t side_alignment; /* of the epilogue's vector and matrix */
    int32_t used;
    int32_t unused; /* keys are compared as bytes */
};

struct product {
    struct product_key key;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    bool works; /* there is an algorithm */
};

struct cuda_linear_state {
    cublasLtHandle_t handle;
    void *workspace; /* used by one product at a time: all linear layers are on one stream */
    struct fuse fuse;
    bool tune, exact;
    int count;
    struct product table[TABLE]; /* open addressing */
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

static cudaDataType_t type_of(const struct ops *ops)
{
    return ops->type == DTYPE_F32 ? CUDA_R_32F : ops->type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static cublasComputeType_t compute_of(const struct ops *ops)
{
    bool exact = ops->type != DTYPE_F32 || cuda_ops_of(ops)->linear->exact;
    return exact ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
}

static bool has_bias(int32_t epilogue) /* reads or writes a vector */
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_aux(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static enum status set_pointers(struct env *env, struct product *p, const void *bias,
                                const void *aux)
{
    if (has_bias(p->key.epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                   sizeof bias));
    if (has_aux(p->key.epilogue))
        LT_TRY(env, cublasLtMatmulDescSetAttribute(
                        p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
    return STATUS_OK;
}

static enum status describe(struct ops *ops, struct product *p)
{
    struct env *env = device_env(ops->device);
    const struct product_key *key = &p->key;
    cudaDataType_t type = type_of(ops);
    cublasOperation_t a = key->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = key->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)key->epilogue;
    LT_TRY(env, cublasLtMatmulDescCreate(&p->how, compute_of(ops), CUDA_R_32F));
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

static void forget(struct product *p)
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
    size_t workspace = WORKSPACE_BYTES;
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
static enum status candidates(struct ops *ops, struct product *p,
                              cublasLtMatmulHeuristicResult_t *found, int *count)
{
    struct cuda_linear_state *state = cuda_ops_of(ops)->linear;
    struct env *env = device_env(ops->device);
    cublasLtMatmulPreference_t preference;
    enum status st;
    *count = 0;
    LT_TRY(env, cublasLtMatmulPreferenceCreate(&preference));
    TRY_OR(undo_preference, prefer(env, preference, p->key.alignment));
    cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(state->handle, p->how, p->a, p->b, p->d, p->d, preference,
                                       state->tune ? CANDIDATES : 1, found, count);
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED)
        *count = 0;
    else
        st = lt_status(env, asked, "cublasLtMatmulAlgoGetHeuristic");
undo_preference:
    cublasLtMatmulPreferenceDestroy(preference);
    return st;
}

/* --- running -------------------------------------------------------------------------------- */

struct operands { /* of one call; bias and aux as the epilogue has them */
    const void *a, *b, *bias, *aux;
    void *d;
};

static cublasStatus_t multiply(struct ops *ops, const struct product *p,
                               const cublasLtMatmulAlgo_t *algorithm, const struct operands *o,
                               cudaStream_t stream)
{
    struct cuda_linear_state *state = cuda_ops_of(ops)->linear;
    const float alpha = 1, beta = p->key.add ? 1 : 0;
    return cublasLtMatmul(state->handle, p->how, &alpha, o->a, p->a, o->b, p->b, &beta, o->d, p->d,
                          o->d, p->d, algorithm, state->workspace, WORKSPACE_BYTES, stream);
}

/* Seconds of one call: the mean of a few, after one for warming up. */
static double time_of(struct ops *ops, const struct product *p,
                      const cublasLtMatmulAlgo_t *algorithm, const struct operands *o,
                      cudaStream_t stream, cudaEvent_t from, cudaEvent_t to)
{
    enum { CALLS = 5 };
    float milliseconds = 0;
    cublasStatus_t st = multiply(ops, p, algorithm, o, stream);
    cudaEventRecord(from, stream);
    for (int i = 0; i < CALLS && st == CUBLAS_STATUS_SUCCESS; i++)
        st = multiply(ops, p, algorithm, o, stream);
    cudaEventRecord(to, stream);
    if (st != CUBLAS_STATUS_SUCCESS || cudaEventSynchronize(to) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, from, to) != cudaSuccess)
        return 1e30;
    return 1e-3 * milliseconds / CALLS;
}

/* The index of the fastest candidate, on the call's own buffers (its output is written again and
 * again, so not for a product that adds). */
static int fastest(struct ops *ops, struct product *p, const cublasLtMatmulHeuristicResult_t *found,
                   int count, const struct operands *o, cudaStream_t stream)
{
    struct env *env = device_env(ops->device);
    double seconds[CANDIDATES];
    cudaEvent_t from, to;
    int best = 0;
    if (p->key.add || cudaEventCreate(&from) != cudaSuccess)
        return 0;
    if (cudaEventCreate(&to) == cudaSuccess) {
        for (int i = 0; i < count; i++) {
            seconds[i] = time_of(ops, p, &found[i].algo, o, stream, from, to);
            if (seconds[i] < seconds[best])
                best = i;
        }
        double flops = 2.0 * (double)p->key.m * (double)p->key.n * (double)p->key.k * 1e-12;
        log_debug(env,
                  "tune: m %lld n %lld k %lld %c%c epilogue %d: first %.0f TFLOP/s, best %.0f "
                  "TFLOP/s (%d of %d)",
                  (long long)p->key.m, (long long)p->key.n, (long long)p->key.k,
                  p->key.turn_a ? 'T' : 'N', p->key.turn_b ? 'T' : 'N', p->key.epilogue,
                  flops / seconds[0], flops / seconds[best], best, count);
        cudaEventDestroy(to);
    }
    cudaEventDestroy(from);
    return best;
}

/* --- the table ------------------------------------------------------------------------------ */

static uint64_t hash_of(const struct product_key *key)
{
    const int64_t words[] = {key->m,      key->n,         key->k,
                             key->turn_a, key->turn_b,    key->epilogue,
                             key->add,    key->alignment, key->side_alignment};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

static void forget_all(struct cuda_linear_state *state)
{
    for (int i = 0; i < TABLE; i++)
        forget(&state->table[i]);
    state->count = 0;
}

/* The place of a key: its product, or the free one to make it in. When the table has become full
 * (only lengths that change for ever do that) it starts again. */
static struct product *place_of(struct cuda_linear_state *state, const struct product_key *key)
{
    if (state->count > TABLE * 3 / 4)
        forget_all(state);
    uint64_t at = hash_of(key) % TABLE;
    while (state->table[at].key.used && memcmp(&state->table[at].key, key, sizeof *key) != 0)
        at = (at + 1) % TABLE;
    return &state->table[at];
}

static enum status make(struct ops *ops, struct product *p, const struct product_key *key,
                        const struct operands *o, cudaStream_t stream)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    struct env *env = device_env(ops->device);
    enum status st;
    int count;
    p->key = *key;
    TRY_OR(undo_product, describe(ops, p));
    TRY_OR(undo_product, set_pointers(env, p, o->bias, o->aux));
    TRY_OR(undo_product, candidates(ops, p, found, &count));
    p->works = count > 0;
    if (p->works)
        p->algorithm =
            found[cuda_ops_of(ops)->linear->tune ? fastest(ops, p, found, count, o, stream) : 0]
                .algo;
    cuda_ops_of(ops)->linear->count++;
    return STATUS_OK;
undo_product:
    forget(p);
    return st;
}

/* The largest power of two up to 256 that divides all these addresses. */
static int32_t alignment_of(const void *a, const void *b, const void *c)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | 256;
    return (int32_t)(all & -all);
}

/* Enqueue a product with its epilogue; false: no algorithm has that epilogue, nothing was done. A
 * failure is the stream's, and true. */
static bool run(struct ops *ops, struct stream *stream, struct product_key key,
                const struct operands *o)
{
    struct cuda_linear_state *state = cuda_ops_of(ops)->linear;
    struct env *env = device_env(ops->device);
    cudaStream_t handle = cuda_handle(stream);
    key.alignment = alignment_of(o->a, o->b, o->d);
    key.side_alignment = alignment_of(o->bias, o->aux, NULL);
    key.used = 1;
    struct product *p = place_of(state, &key);
    enum status st = p->key.used ? STATUS_OK : make(ops, p, &key, o, handle);
    if (!st && !p->works)
        return false;
    if (!st)
        st = set_pointers(env, p, o->bias, o->aux);
    if (!st)
        st = lt_status(env, multiply(ops, p, &p->algorithm, o, handle), "cublasLtMatmul");
    if (st)
        stream_fail(stream, st);
    return true;
}

/* The same for a product without epilogue, which must work. */
static void run_plain(struct ops *ops, struct stream *stream, struct product_key key, const void *a,
                      const void *b, void *d)
{
    key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (!run(ops, stream, key, &(struct operands){.a = a, .b = b, .d = d}))
        stream_fail(stream, FAIL(device_env(ops->device), DEVICE,
                                 "cuBLASLt has no product for m %lld, n %lld, k %lld",
                                 (long long)key.m, (long long)key.n, (long long)key.k));
}

/* --- slots ---------------------------------------------------------------------------------- */

static struct product_key forward_key(struct linear l, int64_t rows)
{
    return (struct product_key){.m = l.out, .n = rows, .k = l.in, .turn_a = l.out_in};
}

static struct product_key dx_key(struct linear l, int64_t rows)
{
    return (struct product_key){.m = l.in, .n = rows, .k = l.out, .turn_a = !l.out_in};
}

static struct product_key dw_key(struct linear l, int64_t rows, bool add)
{
    int64_t m = l.out_in ? l.in : l.out, n = l.out_in ? l.out : l.in;
    return (struct product_key){.m = m, .n = n, .k = rows, .turn_b = 1, .add = add};
}

static bool aux_fits(int64_t columns, const void *aux)
{
    return columns % 8 == 0 && (uintptr_t)aux % 16 == 0;
}

static void cuda_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                        const void *x, const void *w, const void *bias, void *y)
{
    struct product_key key = forward_key(l, rows);
    if (bias && cuda_ops_of(ops)->linear->fuse.bias) {
        key.epilogue = CUBLASLT_EPILOGUE_BIAS;
        if (run(ops, stream, key, &(struct operands){.a = w, .b = x, .bias = bias, .d = y}))
            return;
    }
    run_plain(ops, stream, key, w, x, y);
    if (bias && !stream_failed(stream))
        cuda_enqueued(stream, cuda_add_bias(ops->type, rows, l.out, bias, y, cuda_handle(stream)),
                      "bias");
}

static void cuda_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                             const void *x, const void *w, const void *bias, void *pre, void *y)
{
    struct product_key key = forward_key(l, rows);
    if (cuda_ops_of(ops)->linear->fuse.gelu && aux_fits(l.out, pre)) {
        key.epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        if (run(ops, stream, key,
                &(struct operands){.a = w, .b = x, .bias = bias, .aux = pre, .d = y}))
            return;
    }
    cuda_linear(ops, stream, l, rows, x, w, bias, pre);
    if (!stream_failed(stream))
        ops->backend->gelu(ops, stream, rows * l.out, pre, y);
}

static void cuda_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const void *dy, const void *w, void *dx)
{
    run_plain(ops, stream, dx_key(l, rows), w, dy, dx);
}

static void cuda_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l,
                                 int64_t rows, const void *dy, const void *w, const void *pre,
                                 void *dpre)
{
    struct product_key key = dx_key(l, rows);
    if (cuda_ops_of(ops)->linear->fuse.dgelu && aux_fits(l.in, pre)) {
        key.epilogue = CUBLASLT_EPILOGUE_DGELU;
        if (run(ops, stream, key, &(struct operands){.a = w, .b = dy, .aux = pre, .d = dpre}))
            return;
    }
    run_plain(ops, stream, key, w, dy, dpre);
    if (!stream_failed(stream))
        ops->backend->gelu_backward(ops, stream, rows * l.in, pre, dpre, dpre);
}

/* The epilogue overwrites dbias, so a call that adds sums the columns by itself. */
static void cuda_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const void *x, const void *dy, bool add, void *dw, void *dbias)
{
    struct cuda_linear_state *state = cuda_ops_of(ops)->linear;
    struct product_key key = dw_key(l, rows, add);
    const void *a = l.out_in ? x : dy, *b = l.out_in ? dy : x;
    if (dbias && !add && state->fuse.dbias) {
        key.epilogue = l.out_in ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
        if (run(ops, stream, key, &(struct operands){.a = a, .b = b, .bias = dbias, .d = dw}))
            return;
    }
    run_plain(ops, stream, key, a, b, dw);
    if (dbias && !stream_failed(stream)) /* the product before it is done with the workspace */
        cuda_enqueued(stream,
                      cuda_column_sums(ops->type, rows, l.out, dy, add, dbias, state->workspace,
                                       WORKSPACE_BYTES, cuda_handle(stream)),
                      "bias gradient");
}

/* --- opening -------------------------------------------------------------------------------- */

static bool is_one(const char *variable)
{
    const char *text = getenv(variable);
    return text && !strcmp(text, "1");
}

static bool names(const char *list, const char *word) /* of a list with commas */
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

static void read_switches(struct cuda_linear_state *state)
{
    const char *list = getenv("SIFR_CUDA_FUSE");
    state->tune = is_one("SIFR_CUDA_TUNE");
    state->exact = is_one("SIFR_CUDA_EXACT");
    state->fuse = fuse_default;
    if (list)
        state->fuse = (struct fuse){.bias = names(list, "bias"),
                                    .gelu = names(list, "gelu"),
                                    .dgelu = names(list, "dgelu"),
                                    .dbias = names(list, "dbias")};
}

enum status cuda_linear_open(struct ops *ops, struct cuda_linear_state **out)
{
    struct env *env = device_env(ops->device);
    struct cuda_linear_state *state;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "cuBLASLt products", sizeof *state, &state));
    read_switches(state);
    TRY_OR(undo_state, device_alloc(ops->device, MEM_SCRATCH, "cuBLASLt workspace", WORKSPACE_BYTES,
                                    &state->workspace));
    TRY_OR(undo_workspace, lt_status(env, cublasLtCreate(&state->handle), "cublasLtCreate"));
    *out = state;
    return STATUS_OK;
undo_workspace:
    device_free(ops->device, state->workspace);
undo_state:
    mem_free(env, state);
    return st;
}

void cuda_linear_close(struct ops *ops, struct cuda_linear_state *state)
{
    if (!state)
        return;
    forget_all(state);
    cublasLtDestroy(state->handle);
    device_free(ops->device, state->workspace);
    mem_free(device_env(ops->device), state);
}

void cuda_linear_fill(struct ops_backend *table)
{
    table->linear = cuda_linear;
    table->linear_gelu = cuda_linear_gelu;
    table->linear_dx = cuda_linear_dx;
    table->linear_dx_dgelu = cuda_linear_dx_dgelu;
    table->linear_dw = cuda_linear_dw;
}
