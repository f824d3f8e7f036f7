/* cuda_linear -- the slots of linear layers: products, with bias, GELU and their gradients riding
 * along as epilogues where cuBLASLt has them.
 *
 * cuBLASLt thinks in columns: a row-major (R, C) is its C x R. So nothing is ever transposed in
 * memory, only read the other way:
 *
 *     y (R, out)    as out x R  =  W x        m = out, n = R,  k = in
 *     dx (R, in)    as in x R   =  W dy       m = in,  n = R,  k = out    dbias: sums of D over n
 *     dw [out][in]  as in x out =  x dy^T     m = in,  n = out, k = R     dbias: sums of B over k
 *     dw [in][out]  as out x in =  dy x^T     m = out, n = in,  k = R     dbias: sums of A over k
 *
 * cuBLASLt's GELU is the tanh form; its AUX matrix is the input of the GELU, of the same shape as
 * ours, and must have a multiple of 8 rows. Where no algorithm has the epilogue, or `fuse` says not
 * to, the plain product is followed by a kernel. A product of one row is cuda_row.cu's.
 *
 * Bias gradients are sums of our own kernel. cuBLASLt's epilogue of dw is a kernel of its own, too,
 * that reads dy again at 2.6 TB/s where copies reach 4.2 (H200), and the product whose epilogue is
 * GELU' and the sum at once costs a step of gpt2-124m 10 ms more (119.3 against 109.3 ms).
 *
 * Environment, read at opening, for measuring on a GPU: SIFR_CUDA_FUSE=LIST, with commas, names
 * the epilogues to use, of bias, gelu, dgelu, dgelu_dbias, dbias (the first three);
 * SIFR_CUDA_EXACT=1 keeps f32 products in f32, not TF32 (cuda_is_exact); SIFR_CUDA_PRODUCTS=first takes cuBLASLt's
 * first algorithm for every product, =same the fastest with its bits, =fastest the fastest of all (no
 * fixed bits): in a deterministic run and in fast mode alike, which have the second and the third.
 * SIFR_CUDA_ROW=library leaves products of one row to cuBLASLt, too.
 */
#include <stdlib.h>
#include <string.h>
#include "ops/cuda/cuda_columns.h"
#include "ops/cuda/product/cuda_product.h"

struct fuse {
    bool bias, gelu, dgelu, dgelu_dbias, dbias;
};
static const struct fuse fuse_default = {.bias = true, .gelu = true, .dgelu = true};

struct cuda_linear_state {
    struct products *products;
    struct fuse fuse;
    bool own_row; /* products of one row are cuda_row.cu's */
};

static struct cuda_linear_state *state_of(const struct ops *ops)
{
    return cuda_ops_of(ops)->linear;
}

/* --- products ------------------------------------------------------------------------------- */

static struct product forward_product(struct linear l, int64_t rows)
{
    return (struct product){.m = l.out, .n = rows, .k = l.in, .turn_a = l.out_in};
}

static struct product dx_product(struct linear l, int64_t rows)
{
    return (struct product){.m = l.in, .n = rows, .k = l.out, .turn_a = !l.out_in};
}

static struct product dw_product(struct linear l, int64_t rows, bool add)
{
    int64_t m = l.out_in ? l.in : l.out, n = l.out_in ? l.out : l.in;
    return (struct product){.m = m, .n = n, .k = rows, .turn_b = true, .add = add};
}

/* With an epilogue: false when there is none such, and nothing was done. */
static bool try_fused(struct ops *ops, struct stream *stream, struct product p,
                      cublasLtEpilogue_t epilogue, struct operands o)
{
    p.epilogue = epilogue;
    return products_run(state_of(ops)->products, stream, p, o);
}

static void run_plain(struct ops *ops, struct stream *stream, struct product p, const void *a,
                      const void *b, void *d)
{
    struct operands o = {.a = a, .b = b, .d = d};
    if (!try_fused(ops, stream, p, CUBLASLT_EPILOGUE_DEFAULT, o))
        stream_fail(stream, FAIL(device_env(ops->device), DEVICE,
                                 "cuBLASLt has no product for m %lld, n %lld, k %lld",
                                 (long long)p.m, (long long)p.n, (long long)p.k));
}

static bool aux_fits(int64_t columns, const void *aux)
{
    return columns % 8 == 0 && (uintptr_t)aux % 16 == 0;
}

/* One row, with a bias (or NULL) and a GELU of `pre` (or NULL); false: not of such a shape. */
static bool try_row(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                    const struct linear_gelu *a)
{
    if (rows != 1 || !state_of(ops)->own_row ||
        !kernel_linear_row_takes(ops->type, l.out_in, l.in, l.out, a->x, a->w))
        return false;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_linear_row(cuda_handle(stream), ops->type, l.out_in, l.in, l.out, a->x,
                                        a->w, a->bias, a->pre, a->y),
                      "a product of one row");
    return true;
}

/* --- slots ---------------------------------------------------------------------------------- */

static void cuda_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                        const void *x, const void *w, const void *bias, void *y)
{
    struct product p = forward_product(l, rows);
    struct operands o = {.a = w, .b = x, .d = y, .bias = bias};
    if (try_row(ops, stream, l, rows, &(struct linear_gelu){.x = x, .w = w, .bias = bias, .y = y}))
        return;
    if (bias && state_of(ops)->fuse.bias && try_fused(ops, stream, p, CUBLASLT_EPILOGUE_BIAS, o))
        return;
    run_plain(ops, stream, p, w, x, y);
    if (bias && !stream_failed(stream))
        cuda_enqueued(stream, cuda_add_bias(ops->type, rows, l.out, bias, y, cuda_handle(stream)),
                      "bias");
}

static void cuda_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                             const struct linear_gelu *a)
{
    struct operands o = {.a = a->w, .b = a->x, .d = a->y, .bias = a->bias, .aux = a->pre};
    cublasLtEpilogue_t epilogue =
        a->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (try_row(ops, stream, l, rows, a))
        return;
    if (state_of(ops)->fuse.gelu && aux_fits(l.out, a->pre) &&
        try_fused(ops, stream, forward_product(l, rows), epilogue, o))
        return;
    cuda_linear(ops, stream, l, rows, a->x, a->w, a->bias, a->pre);
    if (!stream_failed(stream))
        ops->backend->gelu(ops, stream, rows * l.out, a->pre, a->y);
}

static void cuda_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const void *dy, const void *w, void *dx)
{
    run_plain(ops, stream, dx_product(l, rows), w, dy, dx);
}

void cuda_sum_columns(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                      const void *x, bool add, void *dbias)
{
    size_t room;
    float *scratch = products_workspace(state_of(ops)->products, &room);
    if (!stream_failed(stream))
        cuda_enqueued(stream,
                      cuda_column_sums(ops->type, rows, columns, x, add, dbias, scratch, room,
                                       cuda_handle(stream)),
                      "bias gradient");
}

static void cuda_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l,
                                 int64_t rows, const struct linear_dx_dgelu *a)
{
    const struct fuse *fuse = &state_of(ops)->fuse;
    struct product p = dx_product(l, rows);
    struct operands o = {.a = a->w, .b = a->dy, .d = a->dpre, .bias = a->dbias, .aux = a->pre};
    bool fits = aux_fits(l.in, a->pre);
    if (a->dbias && fits && fuse->dgelu_dbias &&
        try_fused(ops, stream, p, CUBLASLT_EPILOGUE_DGELU_BGRAD, o))
        return;
    if (!fits || !fuse->dgelu || !try_fused(ops, stream, p, CUBLASLT_EPILOGUE_DGELU, o)) {
        run_plain(ops, stream, p, a->w, a->dy, a->dpre);
        if (!stream_failed(stream))
            ops->backend->gelu_backward(ops, stream, rows * l.in, a->pre, a->dpre, a->dpre);
    }
    if (a->dbias)
        cuda_sum_columns(ops, stream, rows, l.in, a->dpre, false, a->dbias);
}

/* The epilogue overwrites dbias, so a call that adds sums the columns by itself. */
static void cuda_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const struct linear_dw *a)
{
    struct product p = dw_product(l, rows, a->add);
    struct operands o = {
        .a = l.out_in ? a->x : a->dy, .b = l.out_in ? a->dy : a->x, .d = a->dw, .bias = a->dbias};
    cublasLtEpilogue_t epilogue = l.out_in ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
    if (a->dbias && !a->add && state_of(ops)->fuse.dbias && try_fused(ops, stream, p, epilogue, o))
        return;
    run_plain(ops, stream, p, o.a, o.b, a->dw);
    if (a->dbias)
        cuda_sum_columns(ops, stream, rows, l.out, a->dy, a->add, a->dbias);
}

/* --- opening -------------------------------------------------------------------------------- */

static bool names(const char *list, const char *word) /* a list with commas */
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

static struct fuse fuse_wanted(void)
{
    const char *list = getenv("SIFR_CUDA_FUSE");
    if (!list)
        return fuse_default;
    return (struct fuse){.bias = names(list, "bias"),
                         .gelu = names(list, "gelu"),
                         .dgelu = names(list, "dgelu"),
                         .dgelu_dbias = names(list, "dgelu_dbias"),
                         .dbias = names(list, "dbias")};
}

static enum status choice_wanted(struct env *env, enum products_choice *choice)
{
    static const char *const words[] = {"first", "same", "fastest", NULL};
    static const enum products_choice choices[] = {PRODUCTS_FIRST, PRODUCTS_SAME, PRODUCTS_FASTEST};
    int word;
    TRY(cuda_word(env, "SIFR_CUDA_PRODUCTS", words, &word));
    *choice = word < 0 ? PRODUCTS_BY_MODE : choices[word];
    return STATUS_OK;
}

enum status cuda_linear_open(struct ops *ops, struct cuda_linear_state **out)
{
    struct env *env = device_env(ops->device);
    struct cuda_linear_state *state;
    enum status st;
    static const char *const row_words[] = {"library", NULL};
    enum products_choice choice;
    int row;
    TRY(choice_wanted(env, &choice));
    TRY(cuda_word(env, "SIFR_CUDA_ROW", row_words, &row));
    TRY(mem_alloc(env, MEM_OTHER, "linear layers", sizeof *state, &state));
    TRY_OR(undo_state, products_create(ops, cuda_is_exact(), choice, &state->products));
    state->fuse = fuse_wanted();
    state->own_row = row < 0;
    *out = state;
    return STATUS_OK;
undo_state:
    mem_free(env, state);
    return st;
}

void cuda_linear_close(struct ops *ops, struct cuda_linear_state *state)
{
    if (!state)
        return;
    products_destroy(state->products);
    mem_free(device_env(ops->device), state);
}

void cuda_linear_fill(struct ops_backend *table)
{
    table->linear = cuda_linear;
    table->linear_gelu = cuda_linear_gelu;
    table->gelu_of_sums = true; /* cuBLASLt's epilogue */
    table->linear_dx = cuda_linear_dx;
    table->linear_dx_dgelu = cuda_linear_dx_dgelu;
    table->linear_dw = cuda_linear_dw;
}
