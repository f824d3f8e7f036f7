/* curve -- a loss curve in fixed memory: when it is full, neighbours are averaged and the
 * resolution halves. */
#ifndef CLI_CURVE_H
#define CLI_CURVE_H
#include "cli/plot.h"

enum { CURVE_POINTS = 1024 };

struct curve { /* starts as { 0 } */
    struct plot_point points[CURVE_POINTS];
    int count;
    int64_t stride;        /* values per point; 0 before the first */
    struct plot_point sum; /* of the values not yet in a point */
    int64_t pending;
};

void curve_add(struct curve *curve, double x, double y); /* skips y that is not finite */
/* All points, the incomplete last one included; returns their number, at most CURVE_POINTS. */
int curve_points(const struct curve *curve, struct plot_point *out);

#endif
