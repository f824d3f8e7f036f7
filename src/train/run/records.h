/* records -- reads what a run has written about itself: metrics.jsonl and summary.json. The run may
 * still be running. */
#ifndef TRAIN_RECORDS_H
#define TRAIN_RECORDS_H
#include <stdbool.h>
#include <stddef.h>
#include "base/json_doc.h"

/* --- lines in memory ------------------------------------------------------------------------ */

struct line {
    const char *text;
    size_t bytes; /* without the newline */
    bool ended;   /* false: the last line of the text, without a newline */
};

/* The line that begins at *at, which moves to the beginning of the next one. False at the end. */
bool line_next(const char *data, size_t bytes, size_t *at, struct line *line);
/* The line that ends before *at, which moves to its beginning. False at 0. */
bool line_previous(const char *data, size_t *at, struct line *line);

/* --- records -------------------------------------------------------------------------------- */

/* Return false to read no more. */
typedef bool records_fn(void *user, const json_t *record);

struct records_query {
    const char *contains; /* skip lines without this text; NULL = none */
    bool backward;        /* from the last line to the first */
    int64_t *bad;         /* counts the lines that are not JSON; NULL = no matter */
};

/* Call `read` for each line of metrics.jsonl that is JSON. A last line without a newline is still
 * being written and is skipped. `query` may be NULL: all lines, from the first. */
enum status records_read(struct env *env, const char *path, const struct records_query *query,
                         records_fn *read, void *user);

/* Call `read` once if the whole file is JSON, such as summary.json. */
enum status record_read(struct env *env, const char *path, records_fn *read, void *user);

/* Open a file with one object, such as summary.json. STATUS_FORMAT, logged, if it is not one. The
 * caller closes the doc after success. */
enum status record_open(struct env *env, const char *path, struct json_doc *doc);

#endif
