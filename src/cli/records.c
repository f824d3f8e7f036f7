#include "cli/records.h"
#include <string.h>
#include "base/file.h"

enum { RECORD_BYTES = 1 << 20 };
static const struct json_rules RULES = {.values = 1000000, .lists = 100000};

static enum status read_line(struct env *env, const char *line, size_t bytes, records_fn *read,
                             void *user)
{
    struct json_doc doc;
    enum status st = json_doc_open(env, line, bytes, &RULES, &doc);
    if (st != STATUS_OK)
        return st == STATUS_FORMAT ? STATUS_OK : st;
    read(user, doc.root);
    json_doc_close(&doc);
    return STATUS_OK;
}

enum status records_read(struct env *env, const char *path, records_fn *read, void *user)
{
    struct file_map map;
    enum status st = STATUS_OK;
    TRY(file_map_open(env, path, &map));
    const char *s = (const char *)map.data, *end = s + map.bytes, *newline;
    while (st == STATUS_OK && s < end && (newline = memchr(s, '\n', (size_t)(end - s)))) {
        st = read_line(env, s, (size_t)(newline - s), read, user);
        s = newline + 1;
    }
    file_map_close(&map);
    return st;
}

enum status record_open(struct env *env, const char *path, struct json_doc *doc)
{
    char *text;
    size_t bytes;
    TRY(file_read(env, path, RECORD_BYTES, &text, &bytes));
    enum status st = json_doc_open(env, text, bytes, &RULES, doc);
    if (st == STATUS_FORMAT || (st == STATUS_OK && !json_is_object(doc->root)))
        st = FAIL(env, FORMAT, "%s:%d: %s", path, st == STATUS_OK ? 1 : doc->error.line,
                  st == STATUS_OK ? "must be a JSON object" : doc->error.text);
    if (st != STATUS_OK)
        json_doc_close(doc);
    mem_free(env, text);
    return st;
}
