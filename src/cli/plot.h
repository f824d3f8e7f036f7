/* plot -- a curve in the terminal, drawn with braille dots: two columns and four rows of dots in
 * every character. */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H
#include <stdbool.h>
#include "cli/console.h"

struct plot_point {
    double x, y; /* points whose y no float can hold are skipped */
};

/* A further line. Where there are no colours, its cells are this letter. */
struct plot_line {
    const struct plot_point *points;
    int count;
    const char *on; /* escape sequence */
    char letter;
};

struct plot {
    int width, height;             /* in characters, axis labels included */
    const struct plot_point *line; /* in order of x; several in one column are averaged */
    int line_count;
    const struct plot_line *others; /* drawn below `line` */
    int other_count;
    char letter;                    /* of `line`, where there are others and no colours */
    const struct plot_point *marks; /* single points, drawn as ● over the line */
    int mark_count;
    const char *line_on, *mark_on, *off; /* escape sequences, "" without colour */
    bool ascii;                          /* a star for each cell of dots, o for marks */
    bool log_x, log_y; /* logarithmic axes; points with a value that is not positive are skipped */
};

/* An empty plot in the width, at most `width_max`, and the colours of a console. */
struct plot plot_on(const struct console *console, int width_max, int height);
/* Append the picture; each row ends in a newline. Draws nothing with fewer than two points on the
 * line. */
void plot_draw(const struct plot *plot, struct text *text);

/* A loss curve in fixed memory: when it is full, neighbours are averaged and the resolution
 * halves. */
enum { CURVE_POINTS = 1024 };

struct curve { /* starts as { 0 } */
    struct plot_point points[CURVE_POINTS];
    int count;
    int64_t stride;        /* values per point; 0 before the first */
    struct plot_point sum; /* of the values not yet in a point */
    int64_t pending;
};

void curve_add(struct curve *curve, double x, double y); /* skips y that no float can hold */
/* All points, the incomplete last one included; returns their number, at most CURVE_POINTS. */
int curve_points(const struct curve *curve, struct plot_point *out);
/* Append the picture of a curve and marks, in the width and colours of the console. */
void curve_draw(const struct curve *curve, const struct plot_point *marks, int mark_count,
                const struct console *console, struct text *text);

#endif
