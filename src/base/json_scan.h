/* json_scan -- what a JSON text would cost as a tree, and whether it is JSON at all, without making one.
 *
 * A tree takes up to 77 times the bytes of its text ("{}," is three bytes and becomes a hash table).
 * So texts are counted first, in one pass and without memory. Every count is an upper bound for any
 * bytes, JSON or not: a parser that stops at an error has made no more than that.
 */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_count {
    int64_t values; /* of any kind, lists and objects with them */
    int64_t arrays, objects;
    int64_t strings, keys; /* keys are strings too */
    size_t bytes;          /* of the text */
    size_t longest;        /* string, in bytes of the text */
};

struct json_count json_scan_count(const char *text, size_t bytes);
/* At most so many bytes does jansson take for its tree, and while it makes it (on 64 bits, with glibc's
 * overhead). */
size_t json_scan_tree_bytes(const struct json_count *count);
/* Is it one list or object by the grammar? Bytes of strings need not be UTF-8, and numbers may be too
 * large to hold. */
bool json_scan_is_valid(const char *text, size_t bytes);

#endif
