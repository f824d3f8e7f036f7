/* ops_meter -- calls of a dry device, each noted once with its price, found again by a hash. */
#include <string.h>
#include "ops/ops_price_impl.h"

enum { PLACES = 2048, MOST = PLACES / 2 }; /* a step has some hundred different calls */

struct noted {
    struct ops_case call;
    int64_t numbers[OPS_CASE_NUMBERS];
    double seconds;
};

struct ops_meter {
    struct env *env;                 /* borrowed */
    const struct ops_prices *prices; /* borrowed; NULL: calls take no time */
    struct noted *noted;             /* (MOST) in the order in which they came */
    int16_t *places;                 /* (PLACES) 1 + the number of a case; 0: none */
    int count;
    bool full; /* there was one more */
};

enum status ops_meter_create(struct env *env, const struct ops_prices *prices,
                             struct ops_meter **meter)
{
    enum status st;
    struct ops_meter *m;
    TRY(mem_alloc(env, MEM_OTHER, "meter", sizeof *m, &m));
    *m = (struct ops_meter){.env = env, .prices = prices};
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "meter", MOST, sizeof *m->noted, &m->noted));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "meter", PLACES, sizeof *m->places, &m->places));
    *meter = m;
    return STATUS_OK;
undo:
    ops_meter_destroy(m);
    return st;
}

void ops_meter_destroy(struct ops_meter *meter)
{
    if (meter == NULL)
        return;
    mem_free(meter->env, meter->places);
    mem_free(meter->env, meter->noted);
    mem_free(meter->env, meter);
}

int ops_meter_count(const struct ops_meter *meter, bool *all)
{
    *all = !meter->full;
    return meter->count;
}

const struct ops_case *ops_meter_case(const struct ops_meter *meter, int i)
{
    CHECK(i >= 0 && i < meter->count);
    return &meter->noted[i].call;
}

static uint64_t hash(const char *op, const int64_t *numbers)
{
    uint64_t h = 0;
    for (; *op != '\0'; op++)
        h = h * 31 + (unsigned char)*op;
    for (int i = 0; i < OPS_CASE_NUMBERS; i++)
        h = (h ^ (uint64_t)numbers[i]) * 0x9e3779b97f4a7c15u;
    return h >> 40;
}

static bool is_noted(const struct noted *noted, const char *op, const int64_t *numbers)
{
    return memcmp(noted->numbers, numbers, sizeof noted->numbers) == 0 &&
           strcmp(noted->call.op, op) == 0;
}

/* The price of a call, which is noted if it is new and there is room. */
static double price(struct ops_meter *meter, const struct ops *ops, const struct ops_case *c)
{
    int64_t numbers[OPS_CASE_NUMBERS];
    ops_case_numbers(c, numbers);
    uint64_t place = hash(c->op, numbers) % PLACES;
    for (; meter->places[place] != 0; place = (place + 1) % PLACES) {
        const struct noted *found = &meter->noted[meter->places[place] - 1];
        if (is_noted(found, c->op, numbers))
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
    meter->places[place] = (int16_t)meter->count;
    return seconds;
}

void ops_spend(struct ops *ops, struct stream *stream, const struct ops_case *c)
{
    if (ops->meter != NULL && !stream_failed(stream))
        stream_spend(stream, price(ops->meter, ops, c));
}
