/* peak -- what a GPU can do at best, by its name: what a run's rate is held against (mfu). */
#ifndef PLAN_PEAK_H
#define PLAN_PEAK_H
#include "base/dtype.h"

/* Dense products with operands of `type`, in floating-point operations a second; 0 = not known. */
double peak_of_gpu(const char *name, enum dtype type);

#endif
