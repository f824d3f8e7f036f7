/* json_doc -- JSON parsed into jansson's tree, with size limits, memory accounting, and a clear
 * distinction between bad syntax and lack of memory.
 *
 * All JSON input is parsed here. A text is counted first (base/json_scan.h) and refused when it
 * exceeds the limits of its kind, which real files never reach. While the tree exists, an upper
 * bound of its size is in the memory account (other, "json"). jansson limits the depth to 2048, and
 * its time is linear, even with duplicate keys.
 */
#ifndef BASE_JSON_DOC_H
#define BASE_JSON_DOC_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

struct json_rules {
    int64_t values; /* most values of any kind */
    int64_t lists;  /* most arrays and objects */
    size_t flags;   /* of jansson */
};

struct json_doc {
    struct env *env;    /* borrowed */
    json_t *root;       /* NULL after a failure */
    json_error_t error; /* after STATUS_FORMAT: what is wrong, and where */
    bool too_large;     /* the text exceeds the rules */
    size_t counted;
};

/* STATUS_FORMAT: not JSON, or above the limits; nothing has been logged, and the caller reports the
 * file and doc->error. STATUS_MEMORY has been logged. */
enum status json_doc_open(struct env *env, const char *text, size_t bytes,
                          const struct json_rules *rules, struct json_doc *doc);
/* "not valid JSON" or "too large", for a message that continues with doc->error.text. */
const char *json_doc_fault(const struct json_doc *doc);
void json_doc_close(struct json_doc *doc); /* also after a failure, and for an all-zero doc */

#endif
