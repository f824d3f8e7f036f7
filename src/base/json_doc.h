/* json_doc -- JSON parsed into jansson's tree, with size limits, memory accounting, and a clear
 * distinction between bad syntax and lack of memory.
 *
 * All JSON input is parsed here. A text is counted first and refused when it
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

/* --- scanning ------------------------------------------------------------------------------- */

/* The memory that a text would need as a tree, and whether it is valid, without building the tree:
 * a tree takes up to 77 times the bytes of its text ("{}," is three bytes and becomes a hash
 * table). One pass, without allocating. Every count is an upper bound for any bytes, JSON or not: a
 * parser that stops at an error has created no more than that. */
struct json_count {
    int64_t values; /* of any kind, including arrays and objects */
    int64_t arrays, objects;
    int64_t strings, keys; /* keys are strings too */
    size_t bytes;          /* of the text */
    size_t longest;        /* longest string, in bytes of the text */
};

struct json_count json_scan_count(const char *text, size_t bytes);
/* Whether the text is one array or object by the grammar. Strings need not be UTF-8, and numbers
 * may be out of range. */
bool json_scan_is_valid(const char *text, size_t bytes);

#endif
