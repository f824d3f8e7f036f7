/* json_doc -- JSON as jansson's tree, within limits, counted, and with out of memory told from bad syntax.
 *
 * Every JSON that is read passes here. It is counted first (base/json_scan.h) and refused above the
 * limits of its kind, which real files never reach; what the tree may take at most is in the account
 * (other, "json") while there is one. jansson bounds depth (2048) by itself, and its time is linear,
 * also with a key twice.
 */
#ifndef BASE_JSON_DOC_H
#define BASE_JSON_DOC_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

struct json_rules {
    int64_t values; /* at most, of any kind */
    int64_t lists;  /* of them, lists and objects */
    size_t flags;   /* jansson's */
};

struct json_doc {
    struct env *env;    /* borrowed */
    json_t *root;       /* NULL after a failure */
    json_error_t error; /* after STATUS_FORMAT: what and where */
    bool too_large;     /* it is the rules that it breaks */
    size_t counted;
};

/* STATUS_FORMAT: not JSON, or above the rules; nothing has been logged, the caller says which file it is and
 * what doc->error says. STATUS_MEMORY has been logged. */
enum status json_doc_open(struct env *env, const char *text, size_t bytes,
                          const struct json_rules *rules, struct json_doc *doc);
/* "not valid JSON", or "too large": for a message with doc->error.text behind it. */
const char *json_doc_fault(const struct json_doc *doc);
void json_doc_close(struct json_doc *doc); /* after a failure too, and when it is all zeros */

#endif
