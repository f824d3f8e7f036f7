/* cpu_attention_backward -- the backward pass by a kernel of our own.
 *
 * A task is a block of KEYS keys, for one query head. It walks the blocks of QUERIES queries that
 * see these keys, in order, and sums dK and dV of the block. Of each pair of blocks it computes
 * panels of as many keys as the kernel has columns:
 *
 *     S (queries, keys)   = scale Q K^T                        P = exp(S - lse)
 *     dP (queries, keys)  = dO V^T                             dS = P (dP - rowsum(dO O))
 *     dV^T (D, keys)     += dO^T P                             the layout in which P and dS are
 *     dK^T (D, keys)     += scale Q^T dS                       written is the one that is read here
 *     dQ^T (D, queries)   = scale K^T dS^T                     dS transposed, panel by panel
 *
 * dQ^T is then added to the rows of dq. Blocks of keys may be computed at the same time, but they
 * add to the dq of a block of queries in order: a task says how far it is, and the task of the next
 * block waits for that. It seldom has to, because tasks of other heads come between the two. In the
 * same way the query heads that share a key head add their dK and dV in order, at their ends.
 *
 * Bits: the shape alone decides the blocks, and all sums run over them in order.
 */
#include <sched.h>
#include "ops/cpu/cpu_attention.h"
#include "ops/cpu/cpu_vector.h"

enum {
    KEYS = 192,   /* a multiple of every kernel's columns but the plain one's */
    QUERIES = 96, /* a multiple of every kernel's rows */
};

int64_t cpu_attention_key_blocks(struct attention a)
{
    return ceil_div(a.tokens, KEYS);
}

/* A thread's memory. "Across": packed for products over D; "along": for those over tokens */
struct room {
    float *k_across, *v_across, *k_along;                 /* of the block of keys */
    float *dk, *dv;                                       /* (panels, D, cols) */
    float *q_across, *dout_across, *q_along, *dout_along; /* of a block of queries */
    float *p, *ds;                                        /* of a panel: (QUERIES, cols) */
    float *ds_turned;                                     /* (panels of queries, KEYS, cols) */
    float *dq;                                            /* of a panel: (D, cols) */
};

/* KEYS in whole panels */
static int64_t keys_room(const struct cpu_kernel *kernel)
{
    return cpu_round_up(KEYS, kernel->cols);
}

/* Takes parts of `base` in turn; returns their sum. */
static int64_t cut(const struct cpu_kernel *kernel, struct attention a, float *base, struct room *r)
{
    int64_t keys = keys_room(kernel), width = a.head_width, cols = kernel->cols;
    int64_t depth = cpu_round_up(width, kernel->rows), at = 0;
    const struct part {
        float **x;
        int64_t count;
    } parts[] = {{&r->k_across, keys * width},
                 {&r->v_across, keys * width},
                 {&r->k_along, KEYS * depth},
                 {&r->dk, keys * depth},
                 {&r->dv, keys * depth},
                 {&r->q_across, QUERIES * width},
                 {&r->dout_across, QUERIES * width},
                 {&r->q_along, QUERIES * depth},
                 {&r->dout_along, QUERIES * depth},
                 {&r->p, QUERIES * cols},
                 {&r->ds, QUERIES * cols},
                 {&r->ds_turned, cpu_round_up(QUERIES, cols) * keys},
                 {&r->dq, depth * cols}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].x = base ? base + at : NULL;
        at += cpu_round_up(parts[i].count, 16);
    }
    return at;
}

int64_t cpu_attention_backward_room(const struct cpu_kernel *kernel, struct attention a)
{
    return cut(kernel, a, NULL, &(struct room){0});
}

/* A task, and where it is */
struct task {
    const struct cpu_kernel *kernel;
    struct cpu_head h;
    struct cpu_head_gradient g;
    const float *delta; /* rowsum(dO O) of each query */
    int64_t k0, keys;   /* its keys */
    int64_t t0, rows;   /* queries at work */
    struct room room;
};

/* --- packing -------------------------------------------------------------------------------- */

static void pack_keys(const struct task *t)
{
    const struct cpu_kernel *kernel = t->kernel;
    const struct cpu_head *h = &t->h;
    int64_t stride = h->kv_stride;
    struct cpu_rows k = {t->keys, h->width, h->k + t->k0 * stride, stride};
    struct cpu_rows v = {t->keys, h->width, h->v + t->k0 * stride, stride};
    cpu_attention_pack_across(kernel->pack_b_across, kernel->cols, &k, t->room.k_across);
    cpu_attention_pack_along(kernel, &k, KEYS, t->room.k_along);
    cpu_attention_pack_across(kernel->pack_b_across, kernel->cols, &v, t->room.v_across);
}

static void pack_queries(const struct task *t)
{
    const struct cpu_kernel *kernel = t->kernel;
    const struct cpu_head *h = &t->h;
    int64_t stride = h->out_stride;
    struct cpu_rows q = {t->rows, h->width, h->q + t->t0 * h->q_stride, h->q_stride};
    struct cpu_rows dout = {t->rows, h->width, t->g.dout + t->t0 * stride, stride};
    cpu_attention_pack_across(kernel->pack_a_across, kernel->rows, &q, t->room.q_across);
    cpu_attention_pack_along(kernel, &q, QUERIES, t->room.q_along);
    cpu_attention_pack_across(kernel->pack_a_across, kernel->rows, &dout, t->room.dout_across);
    cpu_attention_pack_along(kernel, &dout, QUERIES, t->room.dout_along);
}

/* --- scores --------------------------------------------------------------------------------- */

/* Some rows of a panel */
struct rows {
    int64_t cols;
    float *p, *ds;
    const float *lse, *delta;
    float cap;
};

/* Vector j of `count` rows: S becomes P, dP becomes dS. */
static inline __attribute__((always_inline)) void slope_lanes(struct rows n, int count, int64_t j,
                                                              int64_t lanes, bool capped)
{
    enum { MOST = 4 };
    vf e[MOST], slope[MOST];
    for (int i = 0; i < count; i++) {
        e[i] = v_get(n.p + i * n.cols + j, lanes);
        if (capped) {
            vf tanh = v_tanh(e[i] * v_set(1.0f / n.cap));
            e[i] = tanh * v_set(n.cap);
            slope[i] = v_set(1.0f) - tanh * tanh;
        }
        e[i] -= v_set(n.lse[i]);
    }
    v_exp_below(count, e);
    for (int i = 0; i < count; i++) {
        float *ds = n.ds + i * n.cols + j;
        vf d = e[i] * (v_get(ds, lanes) - v_set(n.delta[i]));
        v_put(n.p + i * n.cols + j, e[i], lanes);
        v_put(ds, capped ? d * slope[i] : d, lanes);
    }
}

/* Rows lo .. hi - 1, four at a time, which keeps the pipes full */
static inline __attribute__((always_inline)) void slope_rows(const struct task *t, int64_t lo,
                                                             int64_t hi, bool whole, bool capped)
{
    int64_t cols = t->kernel->cols;
    struct rows n = {cols,
                     t->room.p + lo * cols,
                     t->room.ds + lo * cols,
                     t->h.lse + t->t0 + lo,
                     t->delta + t->t0 + lo,
                     t->h.cap};
    for (int64_t r = lo, count; r < hi; r += count) {
        count = hi - r < 4 ? 1 : 4;
        for (int64_t j = 0; j < cols; j += LANES)
            if (count == 4)
                slope_lanes(n, 4, j, whole ? LANES : cols - j, capped);
            else
                slope_lanes(n, 1, j, whole ? LANES : cols - j, capped);
        n.p += count * cols;
        n.ds += count * cols;
        n.lse += count;
        n.delta += count;
    }
}

/* 0 where query row r does not see a key of the panel at k. A query that sees one key has dS = 0
 * there, too: delta would only leave rounding. */
static void clear_row(const struct task *t, int64_t r, int64_t k)
{
    int64_t cols = t->kernel->cols, at = t->t0 + r;
    float *p = t->room.p + r * cols, *ds = t->room.ds + r * cols;
    for (int64_t j = 0; j < cols; j++)
        if (k + j > at || k + j < ops_first_key(t->h.shape, at))
            p[j] = ds[j] = 0;
        else if (ops_sees_one(t->h.shape, at))
            ds[j] = 0;
}

static void slope_panel(const struct task *t, int64_t k, int64_t lo, int64_t hi)
{
    int64_t cols = t->kernel->cols, window = t->h.shape.window;
    bool whole = cols % LANES == 0, capped = t->h.cap > 0;
    if (whole && !capped)
        slope_rows(t, lo, hi, true, false);
    else if (whole)
        slope_rows(t, lo, hi, true, true);
    else
        slope_rows(t, lo, hi, false, capped);
    /* All queries between see all keys of the panel, and more than one. */
    for (int64_t r = lo; r < min64(k + cols - 1 - t->t0, hi); r++)
        clear_row(t, r, k);
    if (window > 0)
        for (int64_t r = max64(window == 1 ? lo : k + window - t->t0, lo); r < hi; r++)
            clear_row(t, r, k);
}

/* --- products ------------------------------------------------------------------------------- */

static void clear_rows(int64_t rows, int64_t width, int64_t stride, float *x)
{
    for (int64_t r = 0; r < rows; r++)
        memset(x + r * stride, 0, (size_t)width * sizeof(float));
}

/* dS of the panel of keys `at` of the block, turned. In the panels of queries that have one of the
 * rows lo .. hi - 1, the other rows are 0. */
static void turn_slopes(const struct task *t, int64_t at, int64_t lo, int64_t hi)
{
    int64_t cols = t->kernel->cols, from = lo / cols * cols;
    int64_t end = min64(cpu_round_up(hi, cols), t->rows);
    float *ds = t->room.ds;
    memset(ds + from * cols, 0, (size_t)((lo - from) * cols) * sizeof(float));
    memset(ds + hi * cols, 0, (size_t)((end - hi) * cols) * sizeof(float));
    for (int64_t r = from; r < end; r += cols)
        t->kernel->pack_b_across(&(struct cpu_panel){.depth = cols,
                                                     .valid = min64(cols, end - r),
                                                     .from = ds + r * cols,
                                                     .stride = cols},
                                 t->room.ds_turned + r * keys_room(t->kernel) + at * cols);
}

/* The panel of keys that starts at key `at` of the block */
static void add_panel(const struct task *t, int64_t at)
{
    const struct cpu_kernel *kernel = t->kernel;
    const struct room *m = &t->room;
    int64_t rows = kernel->rows, cols = kernel->cols, width = t->h.width, k = t->k0 + at;
    int64_t depth = cpu_round_up(width, rows), window = t->h.shape.window;
    int64_t last = t->k0 + min64(at + cols, t->keys) - 1;
    int64_t lo = max64(k - t->t0, 0); /* rows that see one of the keys */
    int64_t hi = window > 0 ? min64(last + window - t->t0, t->rows) : t->rows;
    if (lo >= hi)
        return;
    for (int64_t r = lo / rows * rows; r < hi; r += rows)
        kernel->multiply(width, m->q_across + r * width, m->k_across + at * width, t->h.scale,
                         false, m->p + r * cols, cols);
    for (int64_t r = lo / rows * rows; r < hi; r += rows)
        kernel->multiply(width, m->dout_across + r * width, m->v_across + at * width, 1, false,
                         m->ds + r * cols, cols);
    slope_panel(t, k, lo, hi);
    for (int64_t d = 0; d < width; d += rows)
        cpu_kernel_multiply(kernel, width - d, hi - lo, m->dout_along + d * QUERIES + lo * rows,
                            m->p + lo * cols, 1, true, m->dv + at * depth + d * cols, cols);
    for (int64_t d = 0; d < width; d += rows)
        cpu_kernel_multiply(kernel, width - d, hi - lo, m->q_along + d * QUERIES + lo * rows,
                            m->ds + lo * cols, t->h.scale, true, m->dk + at * depth + d * cols,
                            cols);
    turn_slopes(t, at, lo, hi);
}

/* dq of the queries at work */
static void add_dq(const struct task *t)
{
    const struct cpu_kernel *kernel = t->kernel;
    const struct room *m = &t->room;
    int64_t rows = kernel->rows, cols = kernel->cols, width = t->h.width;
    for (int64_t r = 0; r < t->rows; r += cols) {
        int64_t first = t->t0 + r, count = min64(cols, t->rows - r);
        int64_t lo = max64(ops_first_key(t->h.shape, first) - t->k0, 0);
        int64_t hi = min64(first + count - t->k0, t->keys);
        if (lo >= hi)
            continue;
        cpu_fetch_rows((struct cpu_rows){count, width, t->g.dq + first * t->h.q_stride, //
                                         t->h.q_stride});
        for (int64_t d = 0; d < width; d += rows)
            cpu_kernel_multiply(kernel, width - d, hi - lo, m->k_along + d * KEYS + lo * rows,
                                m->ds_turned + r * keys_room(kernel) + lo * cols, t->h.scale, false,
                                m->dq + d * cols, cols);
        cpu_attention_turn(&(struct cpu_turn){m->dq, cols, count, width, NULL, true},
                           t->g.dq + first * t->h.q_stride, t->h.q_stride);
    }
}

/* --- a task --------------------------------------------------------------------------------- */

/* Blocks of queries that see keys of a block: first .. last */
struct span {
    int64_t first, last;
};

static struct span queries_of(struct attention a, int64_t block)
{
    int64_t last = a.tokens - 1, end = min64((block + 1) * KEYS, a.tokens);
    if (a.window > 0)
        last = min64(last, end - 1 + a.window - 1);
    return (struct span){block * KEYS / QUERIES, last / QUERIES};
}

/* Wait until *done is at least `least`. */
static void wait_for(const int64_t *done, int64_t least)
{
    while (__atomic_load_n(done, __ATOMIC_ACQUIRE) < least)
        sched_yield();
}

static void store_keys(const struct task *t, const float *panels, bool add, float *to)
{
    int64_t cols = t->kernel->cols, depth = cpu_round_up(t->h.width, t->kernel->rows);
    for (int64_t at = 0; at < t->keys; at += cols)
        cpu_attention_turn(&(struct cpu_turn){panels + at * depth, cols, min64(cols, t->keys - at),
                                              t->h.width, NULL, add},
                           to + (t->k0 + at) * t->h.kv_stride, t->h.kv_stride);
}

void cpu_attention_backward_task(const struct cpu_kernel *kernel, const struct cpu_head *h,
                                 const struct cpu_head_gradient *g, const float *delta,
                                 int64_t block, int64_t turn, int64_t *done, float *base)
{
    struct attention a = h->shape;
    struct task t = {.kernel = kernel, .h = *h, .g = *g, .delta = delta, .k0 = block * KEYS};
    struct span span = queries_of(a, block), before = {0, -1};
    int64_t blocks = cpu_attention_key_blocks(a), stored = ceil_div(a.tokens, QUERIES) + 1;
    if (block > 0)
        before = queries_of(a, block - 1);
    cut(kernel, a, base, &t.room);
    t.keys = min64(KEYS, a.tokens - t.k0);
    pack_keys(&t);
    size_t sums = (size_t)(keys_room(kernel) * cpu_round_up(t.h.width, kernel->rows));
    memset(t.room.dk, 0, sums * sizeof(float));
    memset(t.room.dv, 0, sums * sizeof(float));
    for (int64_t i = span.first; i <= span.last; i++) {
        t.t0 = i * QUERIES;
        t.rows = min64(QUERIES, a.tokens - t.t0);
        pack_queries(&t);
        for (int64_t at = 0; at < t.keys; at += kernel->cols)
            add_panel(&t, at);
        if (i <= before.last)
            wait_for(&done[block - 1], i + 1);
        else
            clear_rows(t.rows, t.h.width, t.h.q_stride, t.g.dq + t.t0 * t.h.q_stride);
        add_dq(&t);
        __atomic_store_n(&done[block], i + 1, __ATOMIC_RELEASE);
    }
    if (turn > 0)
        wait_for(&done[block - blocks], stored);
    store_keys(&t, t.room.dk, turn > 0, g->dk);
    store_keys(&t, t.room.dv, turn > 0, g->dv);
    __atomic_store_n(&done[block], stored, __ATOMIC_RELEASE);
}
