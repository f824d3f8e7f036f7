#include "cli/infer/prompts.h"
#include <string.h>
#include "base/file.h"
#include "base/json_doc.h"
#include "base/named.h"

#define BYTES_MAX ((size_t)1 << 30) /* of a file */

const char *prompts_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

enum status prompts_read(struct env *env, const char *path, struct text *text)
{
    char *data;
    size_t bytes;
    bool input = strcmp(path, "-") == 0;
    if (!input)
        TRY(path_exists(env, "--prompts", path));
    TRY(file_read(env, input ? "/dev/stdin" : path, BYTES_MAX, &data, &bytes));
    text_add_bytes(text, data, bytes);
    mem_free(env, data);
    return text->status;
}

/* --- one line ------------------------------------------------------------------------------- */

struct line {
    struct env *env;
    const char *name; /* of the file */
    int64_t number;   /* from 1 */
    const char *data;
    size_t bytes;
};

#define BAD(line, format, ...)                                                             \
    FAIL((line)->env, FORMAT, "%s:%lld: " format, (line)->name, (long long)(line)->number, \
         __VA_ARGS__)

static enum status take_plain(const struct line *line, struct generate_config *item)
{
    char *copy;
    if (line->bytes == 0)
        return BAD(line, "%s",
                   "the line is empty; remove it, or write {\"prompt\": \"\"} and make "
                   "every line an object");
    if (memchr(line->data, 0, line->bytes))
        return BAD(line, "%s", "the line has a NUL byte; a prompt is text");
    TRY(mem_alloc(line->env, MEM_OTHER, "prompt", line->bytes + 1, &copy));
    memcpy(copy, line->data, line->bytes);
    item->prompt = copy;
    return STATUS_OK;
}

/* A number of an object, between the limits that the flag has, too. */
static enum status take_number(const struct line *line, const char *key, const json_t *value,
                               bool whole, double most, double *number)
{
    bool fits = whole ? json_is_integer(value) : json_is_number(value);
    *number = json_number_value(value);
    if (fits && *number >= 0 && *number <= most)
        return STATUS_OK;
    return BAD(line, "\"%s\" is not a %snumber from 0 to %g", key, whole ? "whole " : "", most);
}

static enum status take_key(const struct line *line, const char *key, const json_t *value,
                            struct generate_config *item)
{
    double number = 0;
    if (strcmp(key, "prompt") == 0) {
        char *copy;
        if (!json_is_string(value))
            return BAD(line, "%s", "\"prompt\" is not a string");
        TRY(mem_strdup(line->env, json_string_value(value), &copy));
        item->prompt = copy;
        return STATUS_OK;
    }
    if (strcmp(key, "temperature") == 0)
        return take_number(line, key, value, false, 100, &item->temperature);
    if (strcmp(key, "tokens") == 0) {
        TRY(take_number(line, key, value, true, 1e9, &number));
        item->tokens = (int64_t)number;
        return STATUS_OK;
    }
    if (strcmp(key, "seed") == 0) {
        TRY(take_number(line, key, value, true, 9e18, &number));
        item->seed = (int64_t)json_integer_value(value);
        return STATUS_OK;
    }
    return BAD(line, "unknown key \"%s\"; known are prompt, tokens, temperature and seed", key);
}

static enum status take_keys(const struct line *line, json_t *root, struct generate_config *item)
{
    const char *key;
    json_t *value;
    if (!json_is_object(root))
        return BAD(line, "%s", "not an object; the first line of the file is one, so all must be");
    item->prompt = NULL;
    json_object_foreach(root, key, value) TRY(take_key(line, key, value, item));
    return item->prompt ? STATUS_OK : BAD(line, "%s", "the object has no \"prompt\"");
}

static enum status take_object(const struct line *line, struct generate_config *item)
{
    static const struct json_rules rules = {
        .values = 1 << 10, .lists = 1 << 8, .flags = JSON_REJECT_DUPLICATES};
    struct json_doc doc;
    enum status st = json_doc_open(line->env, line->data, line->bytes, &rules, &doc);
    if (st == STATUS_FORMAT)
        st = BAD(line, "%s: %s; every line is an object with \"prompt\", as the first one is",
                 json_doc_fault(&doc), doc.error.text);
    else if (st == STATUS_OK)
        st = take_keys(line, doc.root, item);
    json_doc_close(&doc);
    return st;
}

/* --- all lines ------------------------------------------------------------------------------ */

static size_t count_lines(const struct text *text)
{
    size_t count = 1; /* the last one may lack its newline */
    for (size_t i = 0; i < text->bytes; i++)
        count += text->data[i] == '\n';
    return count;
}

static enum status take_lines(struct line *line, const struct text *text,
                              const struct generate_config *defaults, struct prompts *prompts)
{
    const char *at = text_string(text), *end = at + text->bytes;
    bool objects = *at == '{';
    TRY(mem_alloc_array(line->env, MEM_OTHER, "prompts", count_lines(text), sizeof *prompts->items,
                        &prompts->items));
    for (; at < end; at += line->bytes + 1) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        line->number++;
        line->data = at;
        line->bytes = (size_t)((stop ? stop : end) - at);
        struct line content = *line;
        if (content.bytes > 0 && at[content.bytes - 1] == '\r')
            content.bytes--;
        struct generate_config *item = &prompts->items[prompts->count++];
        *item = *defaults;
        item->prompt = NULL;
        TRY(objects ? take_object(&content, item) : take_plain(&content, item));
    }
    return STATUS_OK;
}

enum status prompts_parse(struct env *env, const char *path, const struct text *text,
                          const struct generate_config *defaults, struct prompts *prompts)
{
    struct line line = {.env = env, .name = prompts_name(path)};
    *prompts = (struct prompts){.env = env};
    enum status st = take_lines(&line, text, defaults, prompts);
    if (st == STATUS_OK && prompts->count == 0)
        st = FAIL(env, FORMAT, "%s has no prompts; write one per line", line.name);
    if (st != STATUS_OK)
        prompts_free(prompts);
    return st;
}

void prompts_free(struct prompts *prompts)
{
    for (int64_t i = 0; i < prompts->count; i++)
        mem_free(prompts->env, (char *)prompts->items[i].prompt);
    if (prompts->env)
        mem_free(prompts->env, prompts->items);
    *prompts = (struct prompts){0};
}
