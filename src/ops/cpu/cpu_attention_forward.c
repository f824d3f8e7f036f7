/* cpu_attention_forward -- attention by a kernel of our own; the scores stay in the first-level
 * cache.
 *
 * A task is some rows of the query heads that share a key head. It packs a block of KEYS keys and
 * values once for all of them, then works on panels of as many queries as the kernel has columns.
 * All is transposed, so that no packing follows the exp: the products write the scores of a panel in
 * the layout in which the next product reads them.
 *
 *     S^T (keys, queries)  = scale K Q^T
 *     m, l                   running maximum and sum of each query: a lane of a vector is a query
 *     P^T = exp(S^T - m)     in place
 *     O^T (D, queries)     = O^T exp(m_old - m) + V^T P^T
 *
 * At the end O / l, and lse = m + log l. A panel reads the keys from the first that its first query
 * sees to the last that its last query sees; those of them that a query does not see have P = 0.
 *
 * Bits: blocks of keys start at multiples of KEYS, and a query's sums run over its keys in order. So
 * neither the other queries of a task or panel nor the width of vectors change a bit.
 */
#include <float.h>
#include "ops/cpu/cpu_attention.h"
#include "ops/cpu/cpu_vector.h"

enum {
    KEYS = 192, /* a multiple of every kernel's rows */
    MOST = 384, /* queries of a task, in all its heads: they share the packing */
    FEWEST = 96,
    WIDEST = 32, /* panel: of any kernel's columns */
};

int64_t cpu_attention_rows(const struct cpu_kernel *kernel, struct attention a, int64_t tasks)
{
    int64_t group = cpu_head_group(a);
    int64_t even = a.batch * a.heads * a.tokens / tasks;
    int64_t queries = min64(max64(even, FEWEST), MOST);
    return max64(queries / group / kernel->cols, 1) * kernel->cols;
}

/* A thread's memory. Of each panel of queries: q (D, cols), o (D, cols), m and l (cols) */
struct room {
    float *k, *v; /* packed: (KEYS / rows, D, rows), (D / rows, KEYS, rows) */
    float *p;     /* (KEYS, cols) */
    float *q, *o, *m, *l;
};

/* Takes parts of `base` in turn; returns their sum. */
static int64_t cut(const struct cpu_kernel *kernel, struct attention a, float *base, struct room *r)
{
    int64_t queries = max64(MOST, kernel->cols * cpu_head_group(a));
    int64_t depth = cpu_round_up(a.head_width, kernel->rows), at = 0;
    const struct part {
        float **x;
        int64_t count;
    } parts[] = {{&r->k, KEYS * a.head_width},
                 {&r->v, KEYS * depth},
                 {&r->p, KEYS * kernel->cols},
                 {&r->q, queries * a.head_width},
                 {&r->o, queries * depth},
                 {&r->m, queries},
                 {&r->l, queries}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].x = base ? base + at : NULL;
        at += cpu_round_up(parts[i].count, 16);
    }
    return at;
}

int64_t cpu_attention_forward_room(const struct cpu_kernel *kernel, struct attention a)
{
    return cut(kernel, a, NULL, &(struct room){0});
}

/* A panel: queries at positions first .. last, and columns lo .. hi - 1 of a block of keys at k0 */
struct panel {
    int64_t first, last;
    int64_t k0, lo, hi;
};

/* --- softmax -------------------------------------------------------------------------------- */

/* Of keys from .. end - 1: those that a query does not see */
static void hide(const struct cpu_kernel *kernel, const struct cpu_head *h, const struct panel *n,
                 int64_t from, int64_t end, float *p)
{
    for (int64_t k = from; k < end; k++)
        for (int64_t i = 0; i < kernel->cols; i++) {
            int64_t at = n->first + i, key = n->k0 + k;
            if (key > at || key < ops_first_key(h->shape, at))
                p[k * kernel->cols + i] = -INFINITY;
        }
}

/* One vector of queries: S becomes P, m and l go on; returns the factor of what was summed. Several
 * keys at a time keep the pipes full. */
static inline __attribute__((always_inline)) vf
soften_lanes(int64_t keys, int64_t cols, int64_t lanes, float *p, float *m, float *l)
{
    enum { MANY = 4 };
    vf old = v_get(m, lanes), most[MANY] = {old, old, old, old}, sum = {0};
    int64_t k = 0;
    for (; k + MANY <= keys; k += MANY)
        for (int i = 0; i < MANY; i++)
            most[i] = v_max(most[i], v_get(p + (k + i) * cols, lanes));
    for (; k < keys; k++)
        most[0] = v_max(most[0], v_get(p + k * cols, lanes));
    vf max = v_max(v_max(most[0], most[1]), v_max(most[2], most[3]));
    for (k = 0; k + MANY <= keys; k += MANY) {
        vf e[MANY];
        for (int i = 0; i < MANY; i++)
            e[i] = v_get(p + (k + i) * cols, lanes) - max;
        v_exp_below(MANY, e);
        for (int i = 0; i < MANY; i++) {
            sum += e[i];
            v_put(p + (k + i) * cols, e[i], lanes);
        }
    }
    for (; k < keys; k++) {
        vf e = v_get(p + k * cols, lanes) - max;
        v_exp_below(1, &e);
        sum += e;
        v_put(p + k * cols, e, lanes);
    }
    vf shrink = old - max;
    v_exp_below(1, &shrink);
    v_put(m, max, lanes);
    v_put(l, v_get(l, lanes) * shrink + sum, lanes);
    return shrink;
}

static void shrink_lanes(int64_t depth, int64_t cols, int64_t lanes, vf shrink, float *o)
{
    for (int64_t d = 0; d < depth; d++)
        v_put(o + d * cols, v_get(o + d * cols, lanes) * shrink, lanes);
}

static void soften(const struct cpu_kernel *kernel, const struct cpu_head *h, const struct panel *n,
                   float *p, float *m, float *l, float *o)
{
    int64_t cols = kernel->cols, keys = n->hi - n->lo;
    float *seen = p + n->lo * cols;
    if (h->cap > 0)
        v_row_softcap(seen, seen, h->cap, keys * cols);
    /* All queries of the panel see the keys between. */
    hide(kernel, h, n, n->lo, min64(ops_first_key(h->shape, n->last) - n->k0, n->hi), p);
    hide(kernel, h, n, max64(n->first + 1 - n->k0, n->lo), n->hi, p);
    for (int64_t j = 0; j < cols; j += LANES) {
        int64_t lanes = min64(LANES, cols - j);
        vf shrink = lanes == LANES ? soften_lanes(keys, cols, LANES, seen + j, m + j, l + j)
                                   : soften_lanes(keys, cols, lanes, seen + j, m + j, l + j);
        shrink_lanes(h->width, cols, lanes, shrink, o + j);
    }
}

/* --- a task --------------------------------------------------------------------------------- */

/* Keys from .. keys - 1 of the block at k0 */
static void pack_keys(const struct cpu_kernel *kernel, const struct cpu_head *h, int64_t k0,
                      int64_t from, int64_t keys, const struct room *room)
{
    int64_t stride = h->kv_stride, start = from / kernel->rows * kernel->rows;
    const float *k = h->k + (k0 + start) * stride, *v = h->v + (k0 + from) * stride;
    cpu_attention_pack_across(kernel->pack_a_across, kernel->rows,
                              &(struct cpu_rows){keys - start, h->width, k, stride},
                              room->k + start * h->width);
    cpu_attention_pack_along(kernel, &(struct cpu_rows){keys - from, h->width, v, stride}, KEYS,
                             room->v + from * kernel->rows);
}

/* The keys of a block that a panel sees; the block ends before `seen`. */
static struct panel panel_of(const struct cpu_head *h, int64_t t, int64_t count, int64_t k0,
                             int64_t keys)
{
    struct panel n = {.first = h->past + t, .last = h->past + t + count - 1, .k0 = k0};
    n.lo = max64(ops_first_key(h->shape, n.first) - k0, 0);
    n.hi = min64(n.last + 1 - k0, keys);
    return n;
}

static void add_panel(const struct cpu_kernel *kernel, const struct cpu_head *h,
                      const struct panel *n, const struct room *room, int64_t number)
{
    int64_t rows = kernel->rows, cols = kernel->cols, width = h->width;
    int64_t depth = cpu_round_up(width, rows);
    float *q = room->q + number * cols * width, *o = room->o + number * cols * depth;
    float *p = room->p;
    for (int64_t k = n->lo / rows * rows; k < n->hi; k += rows)
        kernel->multiply(width, room->k + k * width, q, h->scale, false, p + k * cols, cols);
    soften(kernel, h, n, p, room->m + number * cols, room->l + number * cols, o);
    for (int64_t d = 0; d < width; d += rows)
        cpu_kernel_multiply(kernel, width - d, n->hi - n->lo, room->v + d * KEYS + n->lo * rows,
                            p + n->lo * cols, 1, true, o + d * cols, cols);
}

static void finish_panel(const struct cpu_kernel *kernel, const struct cpu_head *h, int64_t head,
                         int64_t t, int64_t count, const struct room *room, int64_t number)
{
    int64_t cols = kernel->cols;
    const float *m = room->m + number * cols, *l = room->l + number * cols;
    float inverse[WIDEST];
    for (int64_t i = 0; i < count; i++) {
        inverse[i] = 1.0f / l[i];
        if (h->lse)
            h->lse[head * h->tokens + t + i] = m[i] + (float)log((double)l[i]);
    }
    cpu_attention_turn(
        &(struct cpu_turn){room->o + number * cols * cpu_round_up(h->width, kernel->rows), cols,
                           count, h->width, inverse, false},
        h->out + head * h->width + t * h->out_stride, h->out_stride);
}

static void start_panel(const struct cpu_kernel *kernel, const struct cpu_head *h, int64_t head,
                        int64_t t, int64_t count, const struct room *room, int64_t number)
{
    int64_t cols = kernel->cols, depth = cpu_round_up(h->width, kernel->rows);
    kernel->pack_b_across(&(struct cpu_panel){.depth = h->width,
                                              .valid = count,
                                              .from = h->q + head * h->width + t * h->q_stride,
                                              .stride = h->q_stride},
                          room->q + number * cols * h->width);
    memset(room->o + number * cols * depth, 0, (size_t)(cols * depth) * sizeof(float));
    for (int64_t i = number * cols; i < (number + 1) * cols; i++) {
        room->m[i] = -FLT_MAX; /* not -inf: what no query has seen yet is exp(-inf - m) = 0 */
        room->l[i] = 0;
    }
}

void cpu_attention_forward_task(const struct cpu_kernel *kernel, const struct cpu_head *first,
                                int64_t t0, int64_t rows, float *base)
{
    struct room room;
    cut(kernel, first->shape, base, &room);
    int64_t cols = kernel->cols, panels = ceil_div(rows, cols);
    int64_t all = panels * cpu_head_group(first->shape), seen = first->past + t0 + rows;
    int64_t from = ops_first_key(first->shape, first->past + t0);
    for (int64_t n = 0; n < all; n++) {
        int64_t t = n % panels * cols;
        start_panel(kernel, first, n / panels, t0 + t, min64(cols, rows - t), &room, n);
    }
    for (int64_t k0 = from / KEYS * KEYS; k0 < seen; k0 += KEYS) {
        int64_t keys = min64(KEYS, seen - k0);
        pack_keys(kernel, first, k0, max64(from - k0, 0), keys, &room);
        for (int64_t n = 0; n < all; n++) {
            int64_t t = n % panels * cols;
            struct panel panel = panel_of(first, t0 + t, min64(cols, rows - t), k0, keys);
            if (panel.lo < panel.hi)
                add_panel(kernel, first, &panel, &room, n);
        }
    }
    for (int64_t n = 0; n < all; n++) {
        int64_t t = n % panels * cols;
        finish_panel(kernel, first, n / panels, t0 + t, min64(cols, rows - t), &room, n);
    }
}
