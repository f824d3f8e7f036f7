/* ops_price -- the price of a call: measured, scaled from the nearest measured calls, or by rates;
 * and the meter, which remembers prices.
 *
 * Two calls are compared as lists of numbers: all fields of their cases. Their distance is the sum
 * of |log| of their ratios: twice the rows are as far away as half the columns.
 */
#include "ops/ops_price.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ops/ops_impl.h"

/* --- kinds ---------------------------------------------------------------------------------- */

enum ops_kind ops_kind_of(const char *op)
{
    if (strncmp(op, "linear", 6) == 0 || strcmp(op, "gelu_linear") == 0 ||
        strcmp(op, "swiglu_linear") == 0 || strcmp(op, "orthogonalize") == 0)
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

enum { CASE_NUMBERS = 36 };

static void case_numbers(const struct ops_case *c, int64_t out[CASE_NUMBERS])
{
    const struct attention *a = &c->attention;
    const struct embedding *e = &c->embedding;
    const struct routing *n = &c->routing;
    const int64_t numbers[CASE_NUMBERS] = {
        c->rows,   c->linear.in, c->linear.out,  c->linear.out_in, c->norm.kind,  c->norm.width,
        a->batch,  a->tokens,    a->heads,       a->kv_heads,      a->head_width, e->batch,
        e->tokens, e->width,     e->vocab,       e->positions,     e->id_count,   c->count,
        c->width,  c->past,      c->room,        c->level,         c->from,       c->to,
        c->bias,   c->branch,    c->add,         c->act,           c->columns,    n->in,
        n->groups, n->width,     n->standardise, c->momentum,      a->window,     a->cap > 0,
    };
    memcpy(out, numbers, sizeof numbers);
}

static int compare_cases(const struct ops_case *a, const struct ops_case *b)
{
    int64_t x[CASE_NUMBERS], y[CASE_NUMBERS];
    int order = a->op == b->op ? 0 : strcmp(a->op, b->op);
    if (order != 0)
        return order;
    case_numbers(a, x);
    case_numbers(b, y);
    for (int i = 0; i < CASE_NUMBERS; i++)
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
    int64_t x[CASE_NUMBERS], y[CASE_NUMBERS];
    double sum = 0.0;
    case_numbers(a, x);
    case_numbers(b, y);
    for (int i = 0; i < CASE_NUMBERS; i++)
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

/* Bytes that a call reads and writes; of an embedding table only the rows that are looked up. */
static double bytes_of(const struct ops_case *c, const struct ops_call *call)
{
    double bytes = ops_call_bytes(call);
    if (strcmp(c->op, "embedding") != 0)
        return bytes;
    const struct ops_tensor *out = ops_find_tensor(call, "out");
    return (c->embedding.positions > 0 ? 3.0 : 2.0) * (double)out->count *
           (double)dtype_bytes(out->type);
}

/* How many times as long the product of a linear layer takes as at the machine's rate */
static double product_times(const struct ops_backend *backend, const struct ops_case *c)
{
    const struct linear *l = &c->linear;
    if (!backend->product_times || l->out == 0)
        return 1;
    if (strncmp(c->op, "linear_dw", 9) == 0)
        return backend->product_times(l->in, l->out, c->rows);
    bool dx = strncmp(c->op, "linear_dx", 9) == 0;
    return backend->product_times(c->rows, dx ? l->in : l->out, dx ? l->out : l->in);
}

/* Operations of a call, with its shape rounded up to the tiles that a back end computes, and times
 * what its kernel takes longer than the fastest. */
static double flops_of(const struct ops *ops, const struct ops_case *c, const struct ops_call *call)
{
    const struct ops_backend *backend = ops->backend;
    enum ops_kind kind = ops_kind_of(c->op);
    bool attends = c->attention.tokens > 0 && c->room == 0 && kind != OPS_KIND_MEMORY;
    double flops = call->flops;
    if (attends && backend->attention_tiles) {
        struct ops_case tiles = *c;
        struct ops_call larger = {0};
        tiles.attention = backend->attention_tiles(ops, c->attention);
        ops_find_op(c->op)->describe(ops, &tiles, &larger);
        flops = larger.flops;
    }
    if (attends && backend->attention_times)
        flops *= backend->attention_times(ops, c->attention, kind == OPS_KIND_ATTENTION_BACKWARD);
    return kind == OPS_KIND_PRODUCT ? flops * product_times(backend, c) : flops;
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

/* The measure by which prices of an op are scaled: the price by rates, or by default rates if the
 * machine has none. */
static double cost(const struct ops_prices *prices, const struct ops *ops, const struct ops_case *c)
{
    static const struct ops_rate even = {.flops_per_second = 1e11, .bytes_per_second = 1e10};
    enum ops_kind kind = ops_kind_of(c->op);
    const struct ops_rate *rate = &prices->rates[kind];
    return by_rates(rate->flops_per_second > 0 || rate->bytes_per_second > 0 ? rate : &even,
                    prices->f32_times[kind], ops, c);
}

/* The calls that a call consists of where no kernel does both; their number, 0: it is one. */
static int parts_of(const struct ops_case *c, struct ops_case parts[2])
{
    parts[0] = parts[1] = *c;
    if (strcmp(c->op, "attention_backward_rope") == 0) {
        parts[0].op = "attention_backward";
        parts[1].op = "rope_inverse";
        return 2;
    }
    if (strcmp(c->op, "linear_swiglu") == 0) {
        parts[0].op = "linear";
        parts[0].act = false;
        parts[1] = (struct ops_case){.op = "swiglu", .rows = c->rows, .width = c->linear.out / 2};
        return c->act ? 2 : 1;
    }
    if (strcmp(c->op, "linear_dx_dswiglu") == 0) {
        parts[0].op = "linear_dx";
        parts[1] = (struct ops_case){
            .op = "swiglu_backward", .rows = c->rows, .width = c->linear.in, .act = true};
        return 2;
    }
    return 0;
}

/* Whether a call that was never measured is priced as its parts: attention, if it has any, and a
 * product where the machine has no kernel for both, or where a profile has measured only the parts,
 * as those of earlier versions have. */
static bool are_apart(const struct ops_prices *prices, enum dtype type,
                      const struct ops_case *product)
{
    return ops_kind_of(product->op) != OPS_KIND_PRODUCT || prices->swiglu_alone ||
           find_nearest(prices, type, product);
}

/* By the measured calls of the op, of which `nearest` is one: each is scaled by its cost, and
 * counts more the nearer it is. If only the nearest one counted, prices would jump where another
 * becomes the nearest. Those that are more than FAR times as far away hardly count, and are left
 * out. */
static double by_measured(const struct ops_prices *prices, const struct ops *ops,
                          const struct ops_case *c, const struct ops_measured *nearest)
{
    const double STEEP = 6; /* as good as the nearest alone for measured steps of an H200 */
    const double FAR = 2.5, most = FAR * distance(&nearest->shape, c);
    double sum = 0.0, weights = 0.0, wanted = cost(prices, ops, c);
    for (int i = 0; i < prices->measured_count; i++) {
        const struct ops_measured *m = &prices->measured[i];
        if (m->type != ops->type || strcmp(m->shape.op, c->op) != 0)
            continue;
        double far = distance(&m->shape, c);
        if (far > most)
            continue;
        double of_measured = cost(prices, ops, &m->shape), weight = pow(far, -STEEP);
        sum += weight * m->seconds * (of_measured > 0 ? wanted / of_measured : 1);
        weights += weight;
    }
    return sum / weights;
}

double ops_price(const struct ops_prices *prices, const struct ops *ops, const struct ops_case *c)
{
    const struct ops_measured key = {.shape = *c, .type = ops->type}, *m = NULL;
    if (prices->measured_count > 0)
        m = bsearch(&key, prices->measured, (size_t)prices->measured_count, sizeof key,
                    compare_measured);
    if (m)
        return m->seconds;
    m = find_nearest(prices, ops->type, c);
    struct ops_case parts[2];
    int count = m ? 0 : parts_of(c, parts);
    if (count > 0 && are_apart(prices, ops->type, &parts[0])) {
        double sum = ops_price(prices, ops, &parts[0]);
        return count > 1 ? sum + ops_price(prices, ops, &parts[1]) : sum;
    }
    enum ops_kind kind = ops_kind_of(c->op);
    if (!m)
        return by_rates(&prices->rates[kind], prices->f32_times[kind], ops, c);
    return by_measured(prices, ops, c, m);
}

/* --- the meter ------------------------------------------------------------------------------ */

enum { BUCKETS = 2048, MOST = BUCKETS / 2 }; /* a step has a few hundred different calls */

struct noted {
    struct ops_case call;
    int64_t numbers[CASE_NUMBERS];
    double seconds;
};

struct meter {
    struct ops_meter base;
    struct env *env;                 /* borrowed */
    const struct ops_prices *prices; /* borrowed; NULL: calls take no time */
    struct noted *noted;             /* (MOST) in the order of the first calls */
    int16_t *buckets;                /* (BUCKETS) 1 + an index into noted; 0: empty */
    int count;
    bool full; /* a call was not noted */
};

static uint64_t hash(const char *op, const int64_t *numbers)
{
    uint64_t h = 0;
    for (; *op != '\0'; op++)
        h = h * 31 + (unsigned char)*op;
    for (int i = 0; i < CASE_NUMBERS; i++)
        h = (h ^ (uint64_t)numbers[i]) * 0x9e3779b97f4a7c15u;
    return h >> 40;
}

/* The price of a call. A new call is noted if there is room. */
static double noted_price(struct meter *meter, const struct ops *ops, const struct ops_case *c)
{
    int64_t numbers[CASE_NUMBERS];
    case_numbers(c, numbers);
    uint64_t bucket = hash(c->op, numbers) % BUCKETS;
    for (; meter->buckets[bucket] != 0; bucket = (bucket + 1) % BUCKETS) {
        const struct noted *found = &meter->noted[meter->buckets[bucket] - 1];
        if (memcmp(found->numbers, numbers, sizeof numbers) == 0 &&
            strcmp(found->call.op, c->op) == 0)
            return found->seconds;
    }
    double seconds = meter->prices ? ops_price(meter->prices, ops, c) : 0.0;
    if (meter->count == MOST) {
        meter->full = true;
        return seconds;
    }
    struct noted *new = &meter->noted[meter->count++];
    *new = (struct noted){.call = *c, .seconds = seconds};
    memcpy(new->numbers, numbers, sizeof numbers);
    meter->buckets[bucket] = (int16_t)meter->count;
    return seconds;
}

static void spend(struct ops *ops, struct stream *stream, const struct ops_case *c)
{
    stream_spend(stream, noted_price((struct meter *)ops->meter, ops, c));
}

enum status ops_meter_create(struct env *env, const struct ops_prices *prices,
                             struct ops_meter **meter)
{
    enum status st;
    struct meter *m;
    TRY(mem_alloc(env, MEM_OTHER, "meter", sizeof *m, &m));
    *m = (struct meter){.base = {spend}, .env = env, .prices = prices};
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "meter", MOST, sizeof *m->noted, &m->noted));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "meter", BUCKETS, sizeof *m->buckets, &m->buckets));
    *meter = &m->base;
    return STATUS_OK;
undo:
    ops_meter_destroy(&m->base);
    return st;
}

void ops_meter_destroy(struct ops_meter *meter)
{
    struct meter *m = (struct meter *)meter;
    if (m == NULL)
        return;
    mem_free(m->env, m->buckets);
    mem_free(m->env, m->noted);
    mem_free(m->env, m);
}

int ops_meter_count(const struct ops_meter *meter, bool *all)
{
    const struct meter *m = (const struct meter *)meter;
    *all = !m->full;
    return m->count;
}

const struct ops_case *ops_meter_case(const struct ops_meter *meter, int i)
{
    const struct meter *m = (const struct meter *)meter;
    CHECK(i >= 0 && i < m->count);
    return &m->noted[i].call;
}
