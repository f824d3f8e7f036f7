/* records -- reads what a run has written about itself: metrics.jsonl and summary.json. The run may
 * still be running. */
#ifndef CLI_RECORDS_H
#define CLI_RECORDS_H
#include "base/json_doc.h"

typedef void records_fn(void *user, const json_t *record);
/* Call `read` for each line of metrics.jsonl that is JSON. A last line without a newline is still
 * being written and is skipped. */
enum status records_read(struct env *env, const char *path, records_fn *read, void *user);

/* Open a file with one object, such as summary.json. STATUS_FORMAT, logged, if it is not one. The
 * caller closes the doc after success. */
enum status record_open(struct env *env, const char *path, struct json_doc *doc);

#endif
