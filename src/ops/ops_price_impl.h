/* ops_price_impl -- cases as lists of numbers, for who compares or finds them; for src/ops only. */
#ifndef OPS_OPS_PRICE_IMPL_H
#define OPS_OPS_PRICE_IMPL_H
#include "ops/ops_price.h"

enum { OPS_CASE_NUMBERS = 29 };
void ops_case_numbers(const struct ops_case *c, int64_t out[OPS_CASE_NUMBERS]);

#endif
