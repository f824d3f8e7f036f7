/* ops_price -- what calls of the ops take on a machine, so that a step can be timed without running
 * it.
 *
 * A call is described as everywhere (ops_cases.h): its floating-point operations and bytes follow.
 * Its seconds are those that were measured for that very call, where there is such a line; else
 * those of the nearest call of the same op that was measured, scaled (of attention's backward pass that
 * turns, those of the two ops it stands for, where no such call was measured); else
 *
 *     call + max(operations / flops_per_second, bytes / bytes_per_second)
 *
 * with the rates of its kind, of which operations in f32 may have a part only. An ops table on a dry
 * device that keeps time (device_keep_time) spends so much on the stream in place of the work.
 */
#ifndef OPS_OPS_PRICE_H
#define OPS_OPS_PRICE_H
#include "ops/ops_cases.h"

enum ops_kind {
    OPS_KIND_PRODUCT,   /* linear, and what is fused with it */
    OPS_KIND_ATTENTION, /* forward */
    OPS_KIND_ATTENTION_BACKWARD,
    OPS_KIND_MEMORY, /* all else: as fast as memory is read and written */
    OPS_KIND_COUNT
};

struct ops_rate {
    double call; /* seconds of any call */
    double flops_per_second, bytes_per_second;
};

/* One call as it was measured. */
struct ops_measured {
    struct ops_case shape;
    enum dtype type; /* the compute type */
    double seconds;
};

struct ops_prices {
    struct ops_rate rates[OPS_KIND_COUNT];
    /* Operations that compute in f32 take so many times as long as by the rates; 0: as long. */
    double f32_times[OPS_KIND_COUNT];
    struct ops_measured *measured; /* owned by whoever made it; sorted by ops_prices_sort */
    int measured_count;
};

enum ops_kind ops_kind_of(const char *op);
const char *ops_kind_word(enum ops_kind kind); /* "product" */
void ops_prices_sort(struct ops_prices *prices);
double ops_price(const struct ops_prices *prices, const struct ops *ops, const struct ops_case *c);

/* The same call? Where values lie (eps, what is not finite) does not count. */
bool ops_case_equal(const struct ops_case *a, const struct ops_case *b);

/* --- a meter: what the calls on a dry device take ------------------------------------------- */

/* Notes each call once, with its price, so that a walk of many equal layers is quick. */
struct ops_meter;
/* `prices` is borrowed; NULL: calls are noted and take no time. The caller destroys *meter. */
enum status ops_meter_create(struct env *env, const struct ops_prices *prices,
                             struct ops_meter **meter);
void ops_meter_destroy(struct ops_meter *meter); /* NULL is fine */
/* Different calls so far; more than fit are not noted: then *all is false. */
int ops_meter_count(const struct ops_meter *meter, bool *all);
const struct ops_case *ops_meter_case(const struct ops_meter *meter, int i);

/* Spend on the stream what such a call takes, where ops have a meter: the faces do. */
void ops_spend(struct ops *ops, struct stream *stream, const struct ops_case *c);

#endif
