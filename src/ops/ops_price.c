/* ops_price -- the price of a call: measured, or the nearest that was, or by rates.
 *
 * Two calls are compared as lists of numbers, all that a case has. The nearest is the one with the
 * smallest sum of |log| of their ratios: twice the rows are as far as half the columns.
 */
#include "ops/ops_price.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ops/ops_impl.h"
#include "ops/ops_price_impl.h"

/* --- kinds ---------------------------------------------------------------------------------- */

enum ops_kind ops_kind_of(const char *op)
{
    if (strncmp(op, "linear", 6) == 0 || strcmp(op, "gelu_linear") == 0)
        return OPS_KIND_PRODUCT;
    if (strncmp(op, "attention_backward", 18) == 0)
        return OPS_KIND_ATTENTION_BACKWARD;
    if (strncmp(op, "attention", 9) == 0 || strcmp(op, "rope_attention") == 0)
        return OPS_KIND_ATTENTION;
    return OPS_KIND_MEMORY;
}

const char *ops_kind_word(enum ops_kind kind)
{
    static const char *const words[OPS_KIND_COUNT] = {"product", "attention", "attention_backward",
                                                      "memory"};
    CHECK_LT((unsigned)kind, OPS_KIND_COUNT);
    return words[kind];
}

/* --- cases as numbers ----------------------------------------------------------------------- */

void ops_case_numbers(const struct ops_case *c, int64_t out[OPS_CASE_NUMBERS])
{
    const struct attention *a = &c->attention;
    const struct embedding *e = &c->embedding;
    const int64_t numbers[OPS_CASE_NUMBERS] = {
        c->rows,   c->linear.in, c->linear.out, c->linear.out_in, c->norm.kind,  c->norm.width,
        a->batch,  a->tokens,    a->heads,      a->kv_heads,      a->head_width, e->batch,
        e->tokens, e->width,     e->vocab,      e->positions,     e->id_count,   c->count,
        c->width,  c->past,      c->room,       c->level,         c->from,       c->to,
        c->bias,   c->branch,    c->add,        c->act,           c->columns,
    };
    memcpy(out, numbers, sizeof numbers);
}

static int compare_cases(const struct ops_case *a, const struct ops_case *b)
{
    int64_t x[OPS_CASE_NUMBERS], y[OPS_CASE_NUMBERS];
    int order = a->op == b->op ? 0 : strcmp(a->op, b->op);
    if (order != 0)
        return order;
    ops_case_numbers(a, x);
    ops_case_numbers(b, y);
    for (int i = 0; i < OPS_CASE_NUMBERS; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

bool ops_case_equal(const struct ops_case *a, const struct ops_case *b)
{
    return compare_cases(a, b) == 0;
}

static double distance(const struct ops_case *a, const struct ops_case *b)
{
    int64_t x[OPS_CASE_NUMBERS], y[OPS_CASE_NUMBERS];
    double sum = 0.0;
    ops_case_numbers(a, x);
    ops_case_numbers(b, y);
    for (int i = 0; i < OPS_CASE_NUMBERS; i++)
        if (x[i] != y[i])
            sum += fabs(log((1.0 + (double)x[i]) / (1.0 + (double)y[i])));
    return sum;
}

/* --- measured lines ------------------------------------------------------------------------- */

static int compare_measured(const void *a, const void *b)
{
    const struct ops_measured *x = a, *y = b;
    if (x->type != y->type)
        return x->type < y->type ? -1 : 1;
    return compare_cases(&x->shape, &y->shape);
}

void ops_prices_sort(struct ops_prices *prices)
{
    if (prices->measured_count > 0)
        qsort(prices->measured, (size_t)prices->measured_count, sizeof *prices->measured,
              compare_measured);
}

static const struct ops_measured *find_exact(const struct ops_prices *prices, enum dtype type,
                                             const struct ops_case *c)
{
    struct ops_measured key = {.shape = *c, .type = type};
    if (prices->measured_count == 0)
        return NULL;
    return bsearch(&key, prices->measured, (size_t)prices->measured_count, sizeof *prices->measured,
                   compare_measured);
}

static const struct ops_measured *find_nearest(const struct ops_prices *prices, enum dtype type,
                                               const struct ops_case *c)
{
    const struct ops_measured *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < prices->measured_count; i++) {
        const struct ops_measured *m = &prices->measured[i];
        if (m->type != type || strcmp(m->shape.op, c->op) != 0)
            continue;
        double far = distance(&m->shape, c);
        best = far < least ? m : best;
        least = far < least ? far : least;
    }
    return best;
}

/* --- by rates ------------------------------------------------------------------------------- */

/* What a call reads and writes: of a table of embeddings only the rows that are looked up. */
static double bytes_of(const struct ops_case *c, const struct ops_call *call)
{
    double bytes = ops_call_bytes(call);
    if (strcmp(c->op, "embedding") != 0)
        return bytes;
    const struct ops_tensor *out = ops_find_tensor(call, "out");
    return (c->embedding.positions > 0 ? 3.0 : 2.0) * (double)out->count *
           (double)dtype_bytes(out->type);
}

/* Operations of a call, as if it were as large as the tiles that a back end computes. */
static double flops_of(const struct ops *ops, const struct ops_case *c, const struct ops_call *call)
{
    bool tiled = ops->backend->attention_tiles && c->attention.tokens > 0 && c->room == 0 &&
                 ops_kind_of(c->op) != OPS_KIND_MEMORY;
    if (!tiled)
        return call->flops;
    struct ops_case whole = *c;
    struct ops_call larger = {0};
    whole.attention = ops->backend->attention_tiles(ops, c->attention);
    ops_find_op(c->op)->describe(ops, &whole, &larger);
    return larger.flops;
}

static double by_rates(const struct ops_rate *rate, double f32_times, const struct ops *ops,
                       const struct ops_case *c)
{
    struct ops_call call = {0};
    ops_find_op(c->op)->describe(ops, c, &call);
    double bytes = bytes_of(c, &call), flops = flops_of(ops, c, &call);
    double work = rate->flops_per_second > 0 ? flops / rate->flops_per_second : 0.0;
    if (ops->type == DTYPE_F32 && f32_times > 0)
        work *= f32_times;
    double memory = rate->bytes_per_second > 0 ? bytes / rate->bytes_per_second : 0.0;
    return rate->call + fmax(work, memory);
}

/* What calls of an op are scaled by: their price by rates, or, without any, what they do. */
static double cost(const struct ops_prices *prices, const struct ops *ops, const struct ops_case *c)
{
    static const struct ops_rate even = {.flops_per_second = 1e11, .bytes_per_second = 1e10};
    enum ops_kind kind = ops_kind_of(c->op);
    const struct ops_rate *rate = &prices->rates[kind];
    return by_rates(rate->flops_per_second > 0 || rate->bytes_per_second > 0 ? rate : &even,
                    prices->f32_times[kind], ops, c);
}

static double price_as(const struct ops_prices *prices, const struct ops *ops, struct ops_case c,
                       const char *op)
{
    c.op = op;
    return ops_price(prices, ops, &c);
}

double ops_price(const struct ops_prices *prices, const struct ops *ops, const struct ops_case *c)
{
    const struct ops_measured *m = find_exact(prices, ops->type, c);
    if (m)
        return m->seconds;
    m = find_nearest(prices, ops->type, c);
    if (!m && strcmp(c->op, "attention_backward_rope") == 0)
        return price_as(prices, ops, *c, "attention_backward") +
               price_as(prices, ops, *c, "rope_inverse");
    enum ops_kind kind = ops_kind_of(c->op);
    if (!m)
        return by_rates(&prices->rates[kind], prices->f32_times[kind], ops, c);
    double of_measured = cost(prices, ops, &m->shape);
    return of_measured > 0 ? m->seconds * cost(prices, ops, c) / of_measured : m->seconds;
}
