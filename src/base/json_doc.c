/* json_doc -- counts a text, checks that the memory is available, then parses it with jansson. */
#include "base/json_doc.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json_scan.h"
#include "base/printable.h"

static enum status refuse(struct json_doc *doc, int64_t count, const char *what, int64_t most)
{
    doc->error = (json_error_t){.line = 1};
    doc->too_large = true;
    snprintf(doc->error.text, sizeof doc->error.text - 1,
             "it has %" PRId64 " %s where at most %" PRId64 " are allowed", count, what, most);
    return STATUS_FORMAT;
}

static enum status fail_memory(struct env *env, size_t bytes, size_t tree_bytes)
{
    char human[2][32];
    return FAIL(env, MEMORY, "out of memory: JSON of %s may take %s",
                text_human_bytes(human[0], (double)bytes),
                text_human_bytes(human[1], (double)tree_bytes));
}

/* Whether the whole tree fits in memory now. jansson allocates small blocks and does not check one
 * of them (the buffer of a growing string), so a failure there would silently truncate the string.
 * Therefore lack of memory must be found before parsing. */
static bool is_room(size_t bytes)
{
    void *volatile room = malloc(bytes);
    free(room);
    return room != NULL;
}

/* Whether jansson ran out of memory. It reports that, or nothing at all, or, where a string could
 * not be stored, a syntax error in a valid text. */
static bool is_out_of_memory(const struct json_doc *doc, const char *text, size_t bytes)
{
    switch (json_error_code(&doc->error)) {
    case json_error_out_of_memory: return true;
    case json_error_unknown:
    case json_error_invalid_syntax: return json_scan_is_valid(text, bytes);
    default: return false;
    }
}

/* JSON has no NUL bytes, but jansson accepts one after a number. */
static bool has_nul(struct json_doc *doc, const char *text, size_t bytes)
{
    const char *nul = bytes > 0 ? memchr(text, 0, bytes) : NULL;
    if (!nul)
        return false;
    doc->error = (json_error_t){.line = 1, .position = (int)(nul - text)};
    for (const char *at = text; at < nul; at++)
        doc->error.line += *at == '\n';
    snprintf(doc->error.text, sizeof doc->error.text - 1, "it has a NUL byte");
    return true;
}

enum status json_doc_open(struct env *env, const char *text, size_t bytes,
                          const struct json_rules *rules, struct json_doc *doc)
{
    struct json_count count = json_scan_count(text, bytes);
    *doc = (struct json_doc){.env = env};
    if (has_nul(doc, text, bytes))
        return STATUS_FORMAT;
    if (count.arrays + count.objects > rules->lists)
        return refuse(doc, count.arrays + count.objects, "lists and objects", rules->lists);
    if (count.values > rules->values)
        return refuse(doc, count.values, "values", rules->values);
    size_t tree_bytes = json_scan_tree_bytes(&count);
    TRY(mem_count(env, MEM_HOST, MEM_OTHER, "json", tree_bytes));
    doc->counted = tree_bytes;
    if (!is_room(tree_bytes)) {
        json_doc_close(doc);
        return fail_memory(env, bytes, tree_bytes);
    }
    doc->root = json_loadb(text, bytes, rules->flags, &doc->error);
    if (doc->root)
        return STATUS_OK;
    json_doc_close(doc);
    if (is_out_of_memory(doc, text, bytes))
        return fail_memory(env, bytes, tree_bytes);
    return STATUS_FORMAT;
}

const char *json_doc_fault(const struct json_doc *doc)
{
    return doc->too_large ? "too large" : "not valid JSON";
}

void json_doc_close(struct json_doc *doc)
{
    json_decref(doc->root);
    if (doc->counted > 0)
        mem_uncount(doc->env, MEM_HOST, MEM_OTHER, "json", doc->counted);
    doc->root = NULL;
    doc->counted = 0;
}
