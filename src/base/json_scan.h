/* json_scan -- the memory that a JSON text would need as a tree, and whether it is valid, without
 * building the tree.
 *
 * A tree takes up to 77 times the bytes of its text ("{}," is three bytes and becomes a hash
 * table). So texts are counted first, in one pass and without allocating. Every count is an upper
 * bound for any bytes, JSON or not: a parser that stops at an error has created no more than that.
 */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_count {
    int64_t values; /* of any kind, including arrays and objects */
    int64_t arrays, objects;
    int64_t strings, keys; /* keys are strings too */
    size_t bytes;          /* of the text */
    size_t longest;        /* longest string, in bytes of the text */
};

struct json_count json_scan_count(const char *text, size_t bytes);
/* Upper bound of the bytes that jansson allocates for the tree, including what it needs while
 * parsing (64-bit, with glibc's overhead). */
size_t json_scan_tree_bytes(const struct json_count *count);
/* Whether the text is one array or object by the grammar. Strings need not be UTF-8, and numbers
 * may be out of range. */
bool json_scan_is_valid(const char *text, size_t bytes);

#endif
