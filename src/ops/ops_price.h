/* ops_price -- the time of calls on a machine, so that a step can be timed without running it.
 *
 * A call is a struct ops_case, whose description (ops_cases.h) gives its floating-point operations
 * and bytes. Its price in seconds is, in this order:
 *
 *   1. the measured time of exactly this call
 *   2. the measured times of calls of the same op, scaled, the nearest ones first
 *      (attention_backward_rope if never measured: the sum of attention_backward and rope_inverse;
 *      products with SwiGLU if never measured, where swiglu_alone or where the product was
 *      measured: the sum of the product and SwiGLU)
 *   3. call + max(operations / flops_per_second, bytes / bytes_per_second), with the rates of its
 *      kind; the rate of operations in f32 may be lower (f32_times)
 *
 * On a dry device that keeps time (device_keep_time), an op with a meter adds its price to the
 * stream's clock instead of doing the work.
 */
#ifndef OPS_OPS_PRICE_H
#define OPS_OPS_PRICE_H
#include "ops/ops_cases.h"

enum ops_kind {
    OPS_KIND_PRODUCT,   /* linear, with what is fused into it; orthogonalize */
    OPS_KIND_ATTENTION, /* forward */
    OPS_KIND_ATTENTION_BACKWARD,
    OPS_KIND_MEMORY, /* all others: limited by memory bandwidth */
    OPS_KIND_COUNT
};

struct ops_rate {
    double call; /* fixed seconds of each call */
    double flops_per_second, bytes_per_second;
};

/* One measured call. */
struct ops_measured {
    struct ops_case shape;
    enum dtype type; /* the compute type */
    double seconds;
};

struct ops_prices {
    struct ops_rate rates[OPS_KIND_COUNT];
    /* Factor on the time of operations in f32; 0: 1. */
    double f32_times[OPS_KIND_COUNT];
    bool swiglu_alone;             /* no kernels for products with SwiGLU */
    struct ops_measured *measured; /* owned by the caller; sorted by ops_prices_sort */
    int measured_count;
};

enum ops_kind ops_kind_of(const char *op);
const char *ops_kind_word(enum ops_kind kind); /* "product" */
void ops_prices_sort(struct ops_prices *prices);
double ops_price(const struct ops_prices *prices, const struct ops *ops, const struct ops_case *c);

/* Whether two calls have the same shape. Values (eps, the index of a non-finite element) are
 * ignored. */
bool ops_case_equal(const struct ops_case *a, const struct ops_case *b);

/* --- a meter: the prices of calls on a dry device ------------------------------------------- */

/* Remembers each different call with its price, so that a walk over many equal layers is quick. Set
 * ops->meter to use it. */
struct ops_meter;
/* `prices` is borrowed; NULL: calls are remembered and take no time. The caller destroys *meter. */
enum status ops_meter_create(struct env *env, const struct ops_prices *prices,
                             struct ops_meter **meter);
void ops_meter_destroy(struct ops_meter *meter); /* NULL is fine */
/* The number of different calls so far. *all is false if there were more than the meter can
 * hold. */
int ops_meter_count(const struct ops_meter *meter, bool *all);
const struct ops_case *ops_meter_case(const struct ops_meter *meter, int i);

#endif
