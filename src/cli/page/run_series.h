/* run_series -- figures of a run as columns of bounded size.
 *
 * A record (a step) adds a row. When SERIES_ROWS rows are full, neighbours are merged in pairs, so
 * a row then stands for 2, 4, 8, ... records: their mean, their least and their largest value. The
 * shape of a curve survives any number of steps, and memory and the size of a page do not grow.
 */
#ifndef CLI_RUN_SERIES_H
#define CLI_RUN_SERIES_H
#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"

enum { SERIES_ROWS = 12288 }; /* even */

struct series {
    struct env *env;          /* borrowed */
    const char *const *names; /* (columns) borrowed */
    int columns;
    int64_t rows;           /* in use; the last one may still grow */
    int64_t stride;         /* records per row */
    int64_t in_last;        /* records in the last row */
    double *mean;           /* (columns, SERIES_ROWS); NaN = no value */
    float *least, *largest; /* the same */
    int *known;             /* (columns) records of the last row that have a value */
};

enum status series_create(struct env *env, const char *const *names, int columns,
                          struct series *series);
void series_free(struct series *series); /* does nothing if all zero */
void series_clear(struct series *series);

/* values (columns): NaN, and what a float cannot hold = no value. True if rows were merged: earlier row numbers no longer hold. */
bool series_add(struct series *series, const double *values);
/* Merge rows in pairs. */
void series_merge(struct series *series);
double series_last(const struct series *series, int column); /* mean of the last row; NaN = none */

/* Append {"at":FIRST,"rows":R,"stride":S,"in_last":L,"columns":{NAME:{...}, ...}} with the rows from
 * `first` on. Of a column:
 *     "c": V             every row has this value
 *     "k": V, "d": D     row i has V + i D
 *     "f" or "g"         base64 of floats or doubles, little-endian
 *     "l", "h"           base64 of floats: the least and the largest value; only if the stride is
 *                        above 1 and they differ from the mean
 * Columns without any value are left out. */
void series_print(const struct series *series, int64_t first, struct text *text);
/* The same of all rows, merged until a column has at most `most` values. `series` is unchanged. */
enum status series_print_most(const struct series *series, int64_t most, struct text *text);

#endif
