#include "train/run/records.h"
#include <string.h>
#include "base/file.h"

enum { RECORD_BYTES = 1 << 20 };
static const struct json_rules RULES = {.values = 1000000, .lists = 100000};

bool line_next(const char *data, size_t bytes, size_t *at, struct line *line)
{
    if (*at >= bytes)
        return false;
    const char *text = data + *at, *newline = memchr(text, '\n', bytes - *at);
    *line = (struct line){text, newline ? (size_t)(newline - text) : bytes - *at, newline != NULL};
    *at += line->bytes + line->ended;
    return true;
}

bool line_previous(const char *data, size_t *at, struct line *line)
{
    if (*at == 0)
        return false;
    bool ended = data[*at - 1] == '\n';
    size_t end = *at - ended;
    const char *newline = memrchr(data, '\n', end);
    *at = newline ? (size_t)(newline - data) + 1 : 0;
    *line = (struct line){data + *at, end - *at, ended};
    return true;
}

/* Text that is not JSON is skipped, and counted in *bad (may be NULL). *goes_on: `read` wants more. */
static enum status read_text(struct env *env, const char *text, size_t bytes, records_fn *read,
                             void *user, bool *goes_on, int64_t *bad)
{
    struct json_doc doc;
    if (bytes == 0)
        return STATUS_OK;
    enum status st = json_doc_open(env, text, bytes, &RULES, &doc);
    if (st == STATUS_FORMAT && bad)
        ++*bad;
    if (st != STATUS_OK)
        return st == STATUS_FORMAT ? STATUS_OK : st;
    *goes_on = read(user, doc.root);
    json_doc_close(&doc);
    return STATUS_OK;
}

static enum status read_lines(struct env *env, const struct file_map *map,
                              const struct records_query *query, records_fn *read, void *user)
{
    const char *data = (const char *)map->data, *text = query->contains;
    size_t at = query->backward ? map->bytes : 0;
    bool goes_on = true;
    struct line line;
    while (goes_on && (query->backward ? line_previous(data, &at, &line)
                                       : line_next(data, map->bytes, &at, &line)))
        if (line.ended && (!text || memmem(line.text, line.bytes, text, strlen(text))))
            TRY(read_text(env, line.text, line.bytes, read, user, &goes_on, query->bad));
    return STATUS_OK;
}

enum status records_read(struct env *env, const char *path, const struct records_query *query,
                         records_fn *read, void *user)
{
    static const struct records_query all = {0};
    struct file_map map;
    TRY(file_map_open(env, path, &map));
    enum status st = read_lines(env, &map, query ? query : &all, read, user);
    file_map_close(&map);
    return st;
}

enum status record_read(struct env *env, const char *path, records_fn *read, void *user)
{
    struct file_map map;
    bool goes_on = true;
    TRY(file_map_open(env, path, &map));
    enum status st = read_text(env, (const char *)map.data, map.bytes, read, user, &goes_on, NULL);
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
