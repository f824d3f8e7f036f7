/* jsonl.c -- parses one JSON object per line, strictly: a duplicate key, a wrong type or a missing
 * key is an error.
 *
 * The length of a line is limited, and the parser limits the depth. Strings may contain any
 * character, including U+0000.
 */
#include "train/data/jsonl.h"
#include <stdbool.h>
#include <string.h>
#include "base/file.h"
#include "base/json_doc.h"

struct position {
    struct env *env;
    const char *origin;
    int64_t line;
    size_t offset;
};

#define FAIL_LINE(at, reason, ...)                                                          \
    FAIL((at)->env, FORMAT, "'%s' line %lld: " reason, (at)->origin, (long long)(at)->line, \
         __VA_ARGS__)

static enum status string_get(const struct position *at, const json_t *object, const char *key,
                              const char **text, size_t *bytes)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return FAIL_LINE(at, "\"%s\" is not a string", key);
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return STATUS_OK;
}

static enum status document_read(const struct position *at, const json_t *object,
                                 struct jsonl_document *document)
{
    bool text = json_object_get(object, "text"), prompt = json_object_get(object, "prompt");
    bool completion = json_object_get(object, "completion");
    *document = (struct jsonl_document){.line = at->line, .offset = at->offset};
    if (!json_is_object(object) || !(text ? !prompt && !completion : prompt && completion))
        return FAIL_LINE(at, "needs %s",
                         "{\"text\": ...} or {\"prompt\": ..., \"completion\": ...}");
    if (text)
        return string_get(at, object, "text", &document->text, &document->text_bytes);
    TRY(string_get(at, object, "prompt", &document->prompt, &document->prompt_bytes));
    return string_get(at, object, "completion", &document->text, &document->text_bytes);
}

static enum status line_parse(const struct position *at, const char *line, size_t bytes,
                              jsonl_visit_fn *visit, void *user)
{
    struct jsonl_document document;
    static const struct json_rules rules = {
        .values = 8000000, .lists = 500000, .flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL};
    struct json_doc doc;
    if (bytes > JSONL_LINE_BYTES_MAX)
        return FAIL_LINE(at, "%zu bytes are above the limit of %zu", bytes, JSONL_LINE_BYTES_MAX);
    enum status st = json_doc_open(at->env, line, bytes, &rules, &doc);
    if (st == STATUS_FORMAT)
        return FAIL_LINE(at, "%s: %s", json_doc_fault(&doc), doc.error.text);
    TRY(st);
    st = document_read(at, doc.root, &document);
    if (st == STATUS_OK)
        st = visit(user, &document);
    json_doc_close(&doc);
    return st;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

enum status jsonl_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                        jsonl_visit_fn *visit, void *user)
{
    if (bytes == 0)
        return STATUS_OK;
    struct position at = {.env = env, .origin = origin};
    const char *start = data, *end = data + bytes;
    if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        data += 3; /* skip the byte order mark */
    while (data < end) {
        const char *newline = memchr(data, '\n', (size_t)(end - data));
        size_t length = (size_t)((newline ? newline : end) - data);
        at.line++;
        at.offset = (size_t)(data - start);
        if (newline == NULL) /* a failed read returns zeros up to the end of the file */
            TRY(file_map_check(env, origin, data));
        if (!is_blank(data, length))
            TRY(line_parse(&at, data, length, visit, user));
        data = newline ? newline + 1 : end;
    }
    return file_map_check(env, origin, start);
}
