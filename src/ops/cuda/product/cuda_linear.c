/* cuda_linear -- the slots of linear layers: products, with bias, GELU and the GELU gradient as
 * epilogues where cuBLASLt has them, and on Hopper SwiGLU.
 *
 * cuBLASLt is column-major: a row-major (R, C) is its C x R. So nothing is ever transposed in
 * memory, only read as its transpose:
 *
 *     y (R, out)    as out x R  =  W x        m = out, n = R,  k = in
 *     dx (R, in)    as in x R   =  W dy       m = in,  n = R,  k = out
 *     dw [out][in]  as in x out =  x dy^T     m = in,  n = out, k = R
 *     dw [in][out]  as out x in =  dy x^T     m = out, n = in,  k = R
 *
 * The stride of y or dy is its leading dimension. cuBLASLt's fast algorithms need leading
 * dimensions and sizes that are multiples of 16 bytes: with 8191 logits in rows of 8192, y takes 6
 * times and dx 4 times as long as with 8192 (H200, bf16). So a product with an odd `out` is two: of
 * the columns up to a multiple of 16 bytes, and of the few that are left. dx adds the second to the
 * first.
 *
 * cuBLASLt's GELU is the tanh form; its AUX matrix is the input of the GELU, of the same shape as
 * ours, and must have a multiple of 8 rows. Where no algorithm has the epilogue, a kernel of ours
 * follows the plain product. In f32, too: there cuBLASLt itself runs slow kernels after the
 * product, at 1.4 (GELU) and 2.7 TB/s (its slope; H200). On Hopper, large products with a GELU take
 * our own kernel (cuda_gelu_hopper.cu): steps of GPT-2 are about 2 % shorter. So do those with
 * SwiGLU (cuda_swiglu_hopper.cu): then no kernel for SwiGLU alone runs. Large weight gradients of
 * blocks take cuda_dw_hopper.cu in steps of several micro-batches, because it can add to fp32 sums:
 * steps of a 7B model are 3 % shorter. Products of one row take cuda_row.cu.
 *
 * Bias gradients are sums of our own kernel. cuBLASLt's epilogue of dw is a separate kernel, too,
 * that reads dy again at 2.6 TB/s where copies reach 4.2 (H200), and the product whose epilogue is
 * both GELU' and the sum makes a step of gpt2-124m 10 ms slower (119.3 against 109.3 ms).
 */
#include "ops/cuda/product/cuda_product.h"
#include <math.h>

/* Which products our own kernels do: none, large ones, or all that they can. */
enum own_way { OWN_NONE, OWN_LARGE, OWN_ALL };

struct cuda_linear_state {
    struct products *products;
    enum own_way gelu, swiglu, dw;
};

static struct cuda_linear_state *state_of(const struct ops *ops)
{
    return cuda_ops_of(ops)->linear;
}

/* --- products ------------------------------------------------------------------------------- */

static struct product forward_product(struct linear l, int64_t rows)
{
    return (struct product){
        .m = l.out, .n = rows, .k = l.in, .turn_a = l.out_in, .d_stride = l.y_stride, .alpha = 1};
}

static struct product dx_product(struct linear l, int64_t rows)
{
    return (struct product){
        .m = l.in, .n = rows, .k = l.out, .turn_a = !l.out_in, .b_stride = l.y_stride, .alpha = 1};
}

/* False: cuBLASLt has no algorithm with this epilogue, and nothing was done. */
static bool try_fused(struct ops *ops, struct stream *stream, struct product p,
                      cublasLtEpilogue_t epilogue, struct operands o)
{
    p.epilogue = epilogue;
    return products_run(state_of(ops)->products, stream, p, o);
}

void cuda_multiply(struct ops *ops, struct stream *stream, struct product p, struct operands o)
{
    if (!try_fused(ops, stream, p, CUBLASLT_EPILOGUE_DEFAULT, o))
        stream_fail(stream, FAIL(device_env(ops->device), DEVICE,
                                 "cuBLASLt has no product for m %lld, n %lld, k %lld",
                                 (long long)p.m, (long long)p.n, (long long)p.k));
}

static void run_plain(struct ops *ops, struct stream *stream, struct product p, const void *a,
                      const void *b, void *d)
{
    cuda_multiply(ops, stream, p, (struct operands){.a = a, .b = b, .d = d});
}

/* Whether cuBLASLt has GELU, or its slope, as an epilogue. `aux`: the input of the GELU */
static bool library_fuses_gelu(const struct ops *ops, int64_t columns, const void *aux)
{
    return ops->type != DTYPE_F32 && columns % 8 == 0 && (uintptr_t)aux % 16 == 0;
}

/* One row; bias may be NULL, and `pre` if no GELU is wanted. False: not one row, or not aligned. */
static bool try_row(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                    const struct linear_gelu *a)
{
    if (rows != 1 || !kernel_linear_row_takes(ops->type, l.out_in, l.in, l.out, a->x, a->w))
        return false;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_linear_row(cuda_handle(stream), ops->type, l.out_in, l.in, l.out, a->x,
                                        a->w, a->bias, a->pre, a->y),
                      "a product of one row");
    return true;
}

/* --- GELU and SwiGLU on Hopper ---------------------------------------------------------------- */

enum { OWN_FROM = 6 << 20 }; /* elements of the result; with fewer, processors would be idle */

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Whether a product (rows, in) to (rows, out) is one for our own kernel. */
static bool is_for_own(enum own_way way, int64_t rows, int64_t in, int64_t out)
{
    return way == OWN_ALL || (way == OWN_LARGE && rows * out >= OWN_FROM && in >= 256);
}

/* With a GELU or its slope */
static bool takes_own_gelu(const struct ops *ops, int64_t rows, int64_t in, int64_t out)
{
    return cuda_ops_of(ops)->is_hopper && is_for_own(state_of(ops)->gelu, rows, in, out) &&
           kernel_gelu_hopper_takes(ops->type, rows, in, out);
}

static bool try_own_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                         const struct linear_gelu *a)
{
    if (!takes_own_gelu(ops, rows, l.in, l.out) || !is_aligned(a->x) || !is_aligned(a->w) ||
        !is_aligned(a->bias) || !is_aligned(a->pre) || !is_aligned(a->y))
        return false;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_linear_gelu_hopper(cuda_handle(stream), ops->type, l.out_in, rows,
                                                l.in, l.out, a->x, a->w, a->bias, a->pre, a->y,
                                                cuda_device_of(ops->device)->processors),
                      "a product with GELU");
    return true;
}

static bool try_own_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                          const struct linear_dx_dgelu *a)
{
    if ((l.y_stride && l.y_stride != l.out) || !takes_own_gelu(ops, rows, l.out, l.in) ||
        !is_aligned(a->dy) || !is_aligned(a->w) || !is_aligned(a->pre) || !is_aligned(a->dpre))
        return false;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_linear_dgelu_hopper(cuda_handle(stream), ops->type, l.out_in, rows,
                                                 l.in, l.out, a->dy, a->w, a->pre, a->dpre,
                                                 cuda_device_of(ops->device)->processors),
                      "a product with the slope of GELU");
    return true;
}

/* On a dry device Hopper is assumed, as for attention. */
static bool cuda_takes_swiglu(const struct ops *ops, int64_t rows, int64_t depth, int64_t ff,
                              bool backward)
{
    const struct cuda_ops *cuda = cuda_ops_of(ops);
    enum own_way way = cuda ? cuda->linear->swiglu : OWN_LARGE;
    return (!cuda || cuda->is_hopper) && is_for_own(way, rows, depth, backward ? ff : 2 * ff) &&
           kernel_swiglu_hopper_takes(ops->type, rows, depth, ff);
}

static bool cuda_linear_swiglu(struct ops *ops, struct stream *stream, struct linear l,
                               int64_t rows, const struct linear_swiglu *a)
{
    if (!is_aligned(a->x) || !is_aligned(a->w) || !is_aligned(a->gate_up) || !is_aligned(a->act))
        return false;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_linear_swiglu_hopper(cuda_handle(stream), ops->type, l.out_in, rows,
                                                  l.in, l.out / 2, a->x, a->w, a->gate_up, a->act,
                                                  cuda_device_of(ops->device)->processors),
                      "a product with SwiGLU");
    return true;
}

static bool cuda_linear_dx_dswiglu(struct ops *ops, struct stream *stream, struct linear l,
                                   int64_t rows, const struct linear_dx_dswiglu *a)
{
    if (!is_aligned(a->dy) || !is_aligned(a->w) || !is_aligned(a->gate_up) ||
        !is_aligned(a->dgate_up) || !is_aligned(a->act))
        return false;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_linear_dswiglu_hopper(
                          cuda_handle(stream), ops->type, l.out_in, rows, l.out, l.in, a->dy, a->w,
                          a->gate_up, a->dgate_up, a->act, cuda_device_of(ops->device)->processors),
                      "a product with the slopes of SwiGLU");
    return true;
}

/* --- weight gradients on Hopper ------------------------------------------------------------- */

/* Elements of the result and tokens: enough waves of tiles, and products long enough to hide the
 * addition. cuBLASLt is faster for smaller results, because it cuts the tokens into parts, and
 * where nothing is added (llama 0.8b, one micro-batch of 16 x 2048: 303.8 ms a step instead of
 * 308.5). */
enum { DW_FROM = 8 << 20, DW_TOKENS = 512 };

static struct kernel_dw own_dw(struct linear l, int64_t rows, const void *x, const void *dy)
{
    int64_t y = l.y_stride;
    return l.out_in ? (struct kernel_dw){rows, l.out, l.in, dy, x, .a_stride = y}
                    : (struct kernel_dw){rows, l.in, l.out, x, dy, .b_stride = y};
}

/* Does not depend on whether the gradient is stored or added, so that its bits do not either. */
static bool takes_own_dw(const struct ops *ops, struct linear l, int64_t rows, bool several)
{
    const struct cuda_ops *cuda = cuda_ops_of(ops);
    enum own_way way = cuda && cuda->is_hopper ? cuda->linear->dw : OWN_NONE;
    bool large = several && l.in * l.out >= DW_FROM && rows >= DW_TOKENS;
    return (way == OWN_ALL || (way == OWN_LARGE && large)) &&
           kernel_dw_hopper_takes(ops->type, own_dw(l, rows, NULL, NULL));
}

static bool is_aligned_dw(const struct kernel_dw *w)
{
    return is_aligned(w->a) && is_aligned(w->b) && is_aligned(w->dw) && is_aligned(w->sum);
}

static void run_own_dw(struct ops *ops, struct stream *stream, struct kernel_dw w)
{
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      launch_dw_hopper(cuda_handle(stream), ops->type, w,
                                       cuda_device_of(ops->device)->processors),
                      "a weight's gradient");
}

/* --- odd sizes ------------------------------------------------------------------------------ */

enum { SPLIT_FROM = 1024 }; /* columns; with fewer, a second launch costs more than it saves */

/* A layer as two: the first `main.out` columns of its output and the `rest.out` others. */
struct halves {
    struct linear main, rest;
    size_t w, y; /* bytes from a column of main to that of rest, in W and in a row of y */
};

/* False: the layer is better computed as it is. */
static bool split_layer(const struct ops *ops, struct linear l, struct halves *h)
{
    size_t element = dtype_bytes(ops->type);
    int64_t unit = (int64_t)(16 / element), stride = l.y_stride ? l.y_stride : l.out;
    int64_t rest = l.out % unit, main = l.out - rest;
    if (!l.out_in || rest == 0 || main < SPLIT_FROM || stride % unit != 0 || l.in % unit != 0)
        return false;
    h->main = h->rest = l;
    h->main.out = main;
    h->rest.out = rest;
    h->main.y_stride = h->rest.y_stride = stride;
    h->w = (size_t)(main * l.in) * element;
    h->y = (size_t)main * element;
    return true;
}

static const void *behind(const void *at, size_t bytes)
{
    return at ? (const char *)at + bytes : NULL;
}

/* --- slots ---------------------------------------------------------------------------------- */

static void cuda_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                        const void *x, const void *w, const void *bias, void *y)
{
    struct product p = forward_product(l, rows);
    struct operands o = {.a = w, .b = x, .d = y, .bias = bias};
    struct halves h;
    if (rows > 1 && split_layer(ops, l, &h)) {
        cuda_linear(ops, stream, h.main, rows, x, w, bias, y);
        cuda_linear(ops, stream, h.rest, rows, x, behind(w, h.w), behind(bias, h.y),
                    (char *)y + h.y);
        return;
    }
    if (try_row(ops, stream, l, rows, &(struct linear_gelu){.x = x, .w = w, .bias = bias, .y = y}))
        return;
    if (bias && try_fused(ops, stream, p, CUBLASLT_EPILOGUE_BIAS, o))
        return;
    run_plain(ops, stream, p, w, x, y);
    if (bias && !stream_failed(stream))
        cuda_enqueued(
            stream, cuda_add_bias(ops->type, rows, l.out, l.y_stride, bias, y, cuda_handle(stream)),
            "bias");
}

static void cuda_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                             const struct linear_gelu *a)
{
    struct operands o = {.a = a->w, .b = a->x, .d = a->y, .bias = a->bias, .aux = a->pre};
    cublasLtEpilogue_t epilogue =
        a->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (try_row(ops, stream, l, rows, a) || try_own_gelu(ops, stream, l, rows, a))
        return;
    if (library_fuses_gelu(ops, l.out, a->pre) &&
        try_fused(ops, stream, forward_product(l, rows), epilogue, o))
        return;
    cuda_linear(ops, stream, l, rows, a->x, a->w, a->bias, a->pre);
    if (!stream_failed(stream))
        ops->backend->gelu(ops, stream, rows * l.out, a->pre, a->y);
}

/* cuBLASLt's epilogue does, and so does ours; f32 takes neither. */
static bool cuda_gelu_of_sums(const struct ops *ops)
{
    return ops->type != DTYPE_F32;
}

static void cuda_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const void *dy, const void *w, void *dx)
{
    struct halves h;
    if (!split_layer(ops, l, &h)) {
        run_plain(ops, stream, dx_product(l, rows), w, dy, dx);
        return;
    }
    struct product rest = dx_product(h.rest, rows);
    rest.beta = 1;
    run_plain(ops, stream, dx_product(h.main, rows), w, dy, dx);
    run_plain(ops, stream, rest, behind(w, h.w), behind(dy, h.y), dx);
}

static void sum_columns(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                        int64_t stride, const void *x, bool add, void *dbias)
{
    if (!stream_failed(stream))
        cuda_enqueued(stream,
                      cuda_column_sums(ops->type, rows, columns, stride, x, add, dbias,
                                       ops->workspace, PRODUCTS_WORKSPACE, cuda_handle(stream)),
                      "bias gradient");
}

void cuda_sum_columns(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                      const void *x, bool add, void *dbias)
{
    sum_columns(ops, stream, rows, columns, columns, x, add, dbias);
}

static void cuda_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l,
                                 int64_t rows, const struct linear_dx_dgelu *a)
{
    struct product p = dx_product(l, rows);
    struct operands o = {.a = a->w, .b = a->dy, .d = a->dpre, .bias = a->dbias, .aux = a->pre};
    if (!try_own_dgelu(ops, stream, l, rows, a) &&
        (!library_fuses_gelu(ops, l.in, a->pre) ||
         !try_fused(ops, stream, p, CUBLASLT_EPILOGUE_DGELU, o))) {
        run_plain(ops, stream, p, a->w, a->dy, a->dpre);
        if (!stream_failed(stream))
            ops->backend->gelu_backward(ops, stream, rows * l.in, a->pre, a->dpre, a->dpre);
    }
    if (a->dbias)
        cuda_sum_columns(ops, stream, rows, l.in, a->dpre, false, a->dbias);
}

static void linear_dw_product(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                              const struct linear_dw *a)
{
    struct product p = {.m = l.out_in ? l.in : l.out,
                        .n = l.out_in ? l.out : l.in,
                        .k = rows,
                        .turn_b = true,
                        .a_stride = l.out_in ? 0 : l.y_stride,
                        .b_stride = l.out_in ? l.y_stride : 0,
                        .alpha = 1,
                        .beta = a->add ? 1 : 0};
    struct kernel_dw own = own_dw(l, rows, a->x, a->dy);
    struct halves h;
    own.dw = a->dw;
    if (!a->add && takes_own_dw(ops, l, rows, a->several) && is_aligned_dw(&own)) {
        run_own_dw(ops, stream, own);
        return;
    }
    if (split_layer(ops, l, &h)) {
        struct product rest = p;
        p.n = h.main.out;
        rest.n = h.rest.out;
        run_plain(ops, stream, p, a->x, a->dy, a->dw);
        run_plain(ops, stream, rest, a->x, behind(a->dy, h.y), (char *)a->dw + h.w);
    } else {
        run_plain(ops, stream, p, l.out_in ? a->x : a->dy, l.out_in ? a->dy : a->x, a->dw);
    }
}

static void cuda_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const struct linear_dw *a)
{
    if (a->dw)
        linear_dw_product(ops, stream, l, rows, a);
    if (a->dbias)
        sum_columns(ops, stream, rows, l.out, l.y_stride, a->dy, a->add, a->dbias);
}

static bool cuda_sums_dw(const struct ops *ops, struct linear l, int64_t rows, enum dtype type,
                         bool several)
{
    return type == ops->type && takes_own_dw(ops, l, rows, several);
}

static void cuda_linear_dw_sum(struct ops *ops, struct stream *stream, struct linear l,
                               int64_t rows, const struct linear_dw_sum *a)
{
    struct kernel_dw own = own_dw(l, rows, a->x, a->dy);
    own.sum = a->sum;
    own.add = a->add;
    CHECK(is_aligned_dw(&own));
    run_own_dw(ops, stream, own);
    if (a->dbias)
        sum_columns(ops, stream, rows, l.out, l.y_stride, a->dy, false, a->dbias);
}

/* --- prices --------------------------------------------------------------------------------- */

/* A library's tiles, of which it takes the best: the share of the full rate that a tile reaches on
 * its own */
static const struct tile {
    int64_t m, n;
    double share;
} tiles[] = {{128, 256, 1},    {256, 128, 1},   {192, 192, 1},   {128, 192, 0.97}, {192, 128, 0.97},
             {128, 128, 0.88}, {256, 64, 0.85}, {64, 256, 0.85}, {64, 128, 0.75},  {128, 64, 0.75}};

/* Tiles at the edges are computed as whole ones, and the last wave of tiles keeps all processors
 * busy for as long as a full one. Long sums may be cut into parts, which fill a wave and are added
 * afterwards. The machine's rate is that of large products, which reach USUAL of what whole waves
 * of whole tiles would. The processors are an H200's, for every GPU. */
static double cuda_product_times(int64_t m, int64_t n, int64_t k)
{
    const double USUAL = 0.985, PROCESSORS = 132, OF_CUT = 0.97;
    const int64_t LEAST = 1024; /* values of k in a part */
    double best = 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (int64_t parts = 1; parts == 1 || (parts <= 8 && k >= parts * LEAST); parts++) {
            const struct tile *t = &tiles[i];
            double down = ceil((double)m / (double)t->m), across = ceil((double)n / (double)t->n);
            double waves = ceil(down * across * (double)parts / PROCESSORS) / (double)parts;
            double share = t->share * (parts > 1 ? OF_CUT : 1);
            best = fmax(best, share * (double)m * (double)n /
                                  (waves * PROCESSORS * (double)(t->m * t->n)));
        }
    return USUAL / best;
}

/* --- opening -------------------------------------------------------------------------------- */

enum status cuda_linear_open(struct ops *ops, struct cuda_linear_state **out)
{
    struct env *env = device_env(ops->device);
    struct cuda_linear_state *state;
    enum status st;
    static const char *const words[] = {"first", "same", "fastest", NULL};
    static const enum products_choice choices[] = {PRODUCTS_FIRST, PRODUCTS_SAME, PRODUCTS_FASTEST};
    static const char *const ways[] = {"library", "large", "own", NULL};
    int word, gelu, swiglu, dw;
    TRY(cuda_word(env, "SIFR_CUDA_PRODUCTS", words, &word));
    TRY(cuda_word(env, "SIFR_CUDA_GELU", ways, &gelu));
    TRY(cuda_word(env, "SIFR_CUDA_SWIGLU", ways, &swiglu));
    TRY(cuda_word(env, "SIFR_CUDA_DW", ways, &dw));
    enum products_choice choice = word < 0 ? PRODUCTS_BY_MODE : choices[word];
    TRY(mem_alloc(env, MEM_OTHER, "linear layers", sizeof *state, &state));
    state->gelu = gelu < 0 ? OWN_LARGE : (enum own_way)gelu;
    state->swiglu = swiglu < 0 ? OWN_LARGE : (enum own_way)swiglu;
    state->dw = dw < 0 ? OWN_LARGE : (enum own_way)dw;
    TRY_OR(undo_state, products_create(ops, cuda_is_exact(), choice, &state->products));
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
    table->takes_swiglu = cuda_takes_swiglu;
    table->linear_swiglu = cuda_linear_swiglu;
    table->linear_dx_dswiglu = cuda_linear_dx_dswiglu;
    table->linear = cuda_linear;
    table->linear_gelu = cuda_linear_gelu;
    table->gelu_of_sums = cuda_gelu_of_sums;
    table->linear_dx = cuda_linear_dx;
    table->linear_dx_dgelu = cuda_linear_dx_dgelu;
    table->linear_dw = cuda_linear_dw;
    table->sums_dw = cuda_sums_dw;
    table->linear_dw_sum = cuda_linear_dw_sum;
    table->product_times = cuda_product_times;
}
