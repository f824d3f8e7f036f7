/* options_yaml -- configuration files, and lists as YAML flow text, parsed from libyaml's events.
 *
 * The tables say what may come next, so the reader follows tables and events together: a key is an
 * option (then its value follows), a section (then a mapping follows) or an error. Nesting is never
 * deeper than the known keys, a file has at most FILE_BYTES and a list at most ITEMS_MAX items, so
 * the cost of a hostile file is bounded before it is read. Anchors, aliases and tags are refused,
 * except !!binary for a string that is not UTF-8. A key may occur once per file, whether nested or
 * written with dots.
 */
#include <stdio.h>
#include <string.h>
#include <yaml.h>
#include "base/file.h"
#include "base/options_impl.h"

enum { FILE_BYTES = 1 << 20, ITEMS_MAX = 4096 };
static const char YAML_BINARY[] = "tag:yaml.org,2002:binary";

struct reader {
    struct options *options;
    yaml_parser_t parser;
    yaml_event_t event;      /* the current event; YAML_NO_EVENT before the first */
    struct option_site site; /* where the current event is */
    bool lines;              /* sites have line numbers */
    const char *text;        /* the whole text, borrowed */
    size_t bytes;
};

/* --- events --------------------------------------------------------------------------------- */

/* YAML allows no control characters except tab and line ends. */
static bool is_readable(uint32_t code)
{
    return code == '\t' || code == '\n' || code == '\r' || code == 0x85 ||
           (code >= 0x20 && code != 0x7f && (code < 0x80 || code >= 0xa0));
}

/* Report the first byte that YAML cannot read, in a text that has one. */
static enum status fail_unreadable(struct reader *reader, struct option_site *site)
{
    size_t at = 0, length;
    uint32_t code = 0;
    site->line = 1;
    while (at < reader->bytes &&
           (length = text_utf8(reader->text + at, reader->bytes - at, &code)) > 0 &&
           is_readable(code)) {
        site->line += code == '\n';
        at += length;
    }
    site->line = reader->lines ? site->line : 0;
    if (at == reader->bytes)
        return options_fail(reader->options, site, "not valid YAML: %s",
                            reader->parser.problem ? reader->parser.problem : "unreadable");
    bool control = text_utf8(reader->text + at, reader->bytes - at, &code) > 0;
    return options_fail(
        reader->options, site,
        control ? "not valid YAML: the control character 0x%02x; remove it"
                : "not valid YAML: the byte 0x%02x is not UTF-8; save the file as UTF-8, or write "
                  "the value as !!binary and its bytes in base64",
        (unsigned char)reader->text[at]);
}

/* The column, from 1, of a tab that indents line `line`; 0 = no tab. */
static int tab_column(const struct reader *reader, size_t line)
{
    const char *s = reader->text, *end = s + reader->bytes;
    for (; line > 0 && s < end; s++)
        line -= *s == '\n';
    const char *start = s;
    while (s < end && *s == ' ')
        s++;
    return s < end && *s == '\t' ? (int)(s - start) + 1 : 0;
}

static enum status fail_syntax(struct reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    if (parser->error == YAML_MEMORY_ERROR)
        return FAIL(reader->options->env, MEMORY, "out of memory reading %s", reader->site.origin);
    struct option_site site = reader->site;
    site.key = NULL;
    if (parser->error == YAML_READER_ERROR)
        return fail_unreadable(reader, &site);
    if (reader->lines)
        site.line = (int)parser->problem_mark.line + 1;
    int column = tab_column(reader, parser->problem_mark.line);
    if (column > 0)
        return options_fail(reader->options, &site,
                            "a tab in column %d indents this line: YAML takes spaces only; replace "
                            "it",
                            column);
    return options_fail(reader->options, &site, "not valid YAML: %s%s%s",
                        parser->problem ? parser->problem : "unreadable",
                        parser->context ? " " : "", parser->context ? parser->context : "");
}

static bool is_binary(const yaml_event_t *event)
{
    const char *tag = (const char *)event->data.scalar.tag;
    return tag && strcmp(tag, YAML_BINARY) == 0;
}

/* What is forbidden about an event: an alias, anchor or tag; NULL = nothing. */
static const char *forbidden(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_ALIAS_EVENT: return "an alias";
    case YAML_SCALAR_EVENT:
        return event->data.scalar.anchor                     ? "an anchor"
               : event->data.scalar.tag && !is_binary(event) ? "a tag"
                                                             : NULL;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.anchor ? "an anchor"
               : event->data.sequence_start.tag  ? "a tag"
                                                 : NULL;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.anchor ? "an anchor"
               : event->data.mapping_start.tag  ? "a tag"
                                                : NULL;
    default: return NULL;
    }
}

static enum status next(struct reader *reader)
{
    yaml_event_delete(&reader->event);
    if (!yaml_parser_parse(&reader->parser, &reader->event))
        return fail_syntax(reader);
    if (reader->lines)
        reader->site.line = (int)reader->event.start_mark.line + 1;
    const char *what = forbidden(&reader->event);
    struct option_site site = reader->site;
    site.key = NULL;
    if (what)
        return options_fail(reader->options, &site, "%s is not allowed here: write the value out",
                            what);
    if (reader->event.type == YAML_SCALAR_EVENT &&
        memchr(reader->event.data.scalar.value, 0, reader->event.data.scalar.length))
        return options_fail(reader->options, &site, "a text may not hold a zero byte");
    return STATUS_OK;
}

static const char *scalar(const struct reader *reader)
{
    return (const char *)reader->event.data.scalar.value;
}

/* A plain scalar that YAML defines as null. */
static bool is_null(const struct reader *reader)
{
    const char *text = scalar(reader);
    return reader->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 ||
            strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0);
}

/* The event in words, for "must be a number, not ...". */
static const char *event_word(const struct reader *reader)
{
    switch (reader->event.type) {
    case YAML_SEQUENCE_START_EVENT: return "a list";
    case YAML_MAPPING_START_EVENT: return "a mapping";
    default: return is_null(reader) ? "nothing" : "a single value";
    }
}

/* --- values --------------------------------------------------------------------------------- */

/* A string that is not UTF-8, as written by options_print. */
static enum status read_binary(struct reader *reader, const struct option *option,
                               const struct option_site *site, union option_value *value)
{
    struct text text;
    text_init(&text, reader->options->env);
    bool good = text_base64_decode(&text, scalar(reader));
    enum status st = text.status;
    if (st == STATUS_OK && (!good || option->type != OPTION_STRING))
        st = options_fail(reader->options, site,
                          good ? "is no text: !!binary does not go with it"
                               : "has !!binary before what is not base64");
    else if (st == STATUS_OK && memchr(text_string(&text), 0, text.bytes))
        st = options_fail(reader->options, site, "may not hold a zero byte");
    if (st == STATUS_OK)
        st = options_parse_scalar(reader->options, option, text_string(&text), site, value);
    text_free(&text);
    return st;
}

/* The current event as the value of an option that is not a list. */
static enum status read_scalar(struct reader *reader, const struct option *option,
                               const struct option_site *site, union option_value *value)
{
    bool single = reader->event.type == YAML_SCALAR_EVENT;
    if (single && is_binary(&reader->event))
        return read_binary(reader, option, site, value);
    if (single && is_null(reader) && (option->unset || option->type == OPTION_STRING))
        return options_parse_scalar(reader->options, option, option->unset ? option->unset : "",
                                    site, value);
    if (!single || is_null(reader))
        return options_fail_type(reader->options, option, site, event_word(reader));
    return options_parse_scalar(reader->options, option, scalar(reader), site, value);
}

static enum status fail_unknown_field(struct reader *reader, const struct option *list,
                                      const struct option_site *site)
{
    const char *keys[OPTION_FIELDS], *word = scalar(reader);
    for (int i = 0; i < list->field_count; i++)
        keys[i] = list->fields[i].key;
    const char *near = options_nearest(word, keys, list->field_count);
    if (near)
        return options_fail(reader->options, site, "has no field '%.64s' (did you mean '%s'?)",
                            word, near);
    char fields[256];
    option_describe_fields(list, fields, sizeof fields);
    return options_fail(reader->options, site, "has no field '%.64s': an item is %s", word, fields);
}

/* One {field: value, ...} into `item`; the current event starts the mapping. */
static enum status read_item(struct reader *reader, const struct option *list,
                             struct option_site site, char *item)
{
    uint64_t seen = 0;
    for (int i = 0; i < list->field_count; i++)
        TRY(options_set_default(reader->options, &list->fields[i], item));
    for (;;) {
        TRY(next(reader));
        site.line = reader->site.line;
        site.field = NULL;
        if (reader->event.type == YAML_MAPPING_END_EVENT)
            return STATUS_OK;
        if (reader->event.type != YAML_SCALAR_EVENT)
            return options_fail(reader->options, &site, "has a field whose name is %s",
                                event_word(reader));
        int i = 0;
        while (i < list->field_count && strcmp(list->fields[i].key, scalar(reader)) != 0)
            i++;
        if (i == list->field_count)
            return fail_unknown_field(reader, list, &site);
        const struct option *field = &list->fields[i];
        site.field = field->key;
        if (seen >> i & 1)
            return options_fail(reader->options, &site, "is given twice");
        seen |= (uint64_t)1 << i;

        union option_value value;
        TRY(next(reader));
        TRY(read_scalar(reader, field, &site, &value));
        memcpy(item + field->offset, &value, option_value_bytes(field));
    }
}

static enum status read_items(struct reader *reader, const struct option *list,
                              struct option_site site, struct option_list *items)
{
    for (int room = 0;;) {
        TRY(next(reader));
        site.line = reader->site.line;
        if (reader->event.type == YAML_SEQUENCE_END_EVENT)
            return STATUS_OK;
        if (reader->event.type != YAML_MAPPING_START_EVENT)
            return options_fail_type(reader->options, list, &site, "a list of something else");
        if (items->count == ITEMS_MAX)
            return options_fail(reader->options, &site, "has more than %d items", ITEMS_MAX);
        if (items->count == room) {
            room = room ? 2 * room : 4;
            TRY(mem_grow_array(reader->options->env, MEM_OTHER, "options", (size_t)room,
                               list->element_bytes, &items->items));
        }
        site.item = items->count;
        char *item = (char *)items->items + (size_t)items->count * list->element_bytes;
        TRY(read_item(reader, list, site, item));
        items->count++;
    }
}

/* The current event as the value of a list option. */
static enum status read_list(struct reader *reader, const struct option *list,
                             const struct option_site *site, union option_value *value)
{
    memset(value, 0, sizeof *value);
    if (reader->event.type == YAML_SCALAR_EVENT && is_null(reader))
        return STATUS_OK;
    if (reader->event.type != YAML_SEQUENCE_START_EVENT)
        return options_fail_type(reader->options, list, site, event_word(reader));
    struct option_list items = {0};
    enum status st = read_items(reader, list, *site, &items);
    if (st != STATUS_OK) {
        mem_free(reader->options->env, items.items);
        return st;
    }
    if (items.items)
        TRY(options_own(reader->options, items.items));
    value->list = items;
    return STATUS_OK;
}

/* --- keys and sections ---------------------------------------------------------------------- */

/* The first binding of section `key`; NULL = there is no such section. */
static struct binding *find_section(const struct options *options, const char *key)
{
    size_t bytes = strlen(key);
    for (int i = 0; i < options->count; i++)
        if (strncmp(options->keys[i], key, bytes) == 0 && options->keys[i][bytes] == '.')
            return &options->bindings[i];
    return NULL;
}

static enum status fail_unknown_key(struct reader *reader, const char *key)
{
    const struct options *options = reader->options;
    struct option_site site = reader->site;
    site.key = NULL;
    const char *near = options_nearest(key, options->keys, options->count);
    int near_bytes = near ? (int)strlen(near) : 0;
    for (int i = 0; !near && i < options->count; i++) {
        size_t section_bytes = strcspn(options->keys[i], ".");
        if (options->keys[i][section_bytes] == '.' &&
            options_near(key, strlen(key), options->keys[i], section_bytes) >= 0) {
            near = options->keys[i];
            near_bytes = (int)section_bytes;
        }
    }
    if (near)
        return options_fail(reader->options, &site, "unknown key '%s' (did you mean '%.*s'?)", key,
                            near_bytes, near);
    return options_fail(reader->options, &site, "unknown key '%s'", key);
}

static enum status read_mapping(struct reader *reader, const char *prefix);

/* The value of a section: a mapping, or nothing. */
static enum status read_section(struct reader *reader, struct binding *first, const char *key)
{
    struct option_site site = reader->site;
    site.key = key;
    int depth = 0;
    for (const char *c = key; *c; c++)
        depth += *c == '.';
    if (first->sections_seen >> depth & 1)
        return options_fail(reader->options, &site, "is given twice in this file");
    first->sections_seen |= (uint32_t)1 << depth;
    TRY(next(reader));
    if (reader->event.type == YAML_MAPPING_START_EVENT)
        return read_mapping(reader, key);
    if (reader->event.type == YAML_SCALAR_EVENT && is_null(reader))
        return STATUS_OK;
    return options_fail(reader->options, &site, "is a section: it holds keys such as %s, not %s",
                        first->option->key, event_word(reader));
}

static enum status read_option(struct reader *reader, struct binding *binding)
{
    struct option_site site = reader->site;
    site.key = binding->option->key;
    if (binding->option->flag_only)
        return options_fail(reader->options, &site, "is a flag, not a key: give --%s instead",
                            binding->option->key);
    if (binding->yaml_line > 0)
        return options_fail(reader->options, &site, "is given twice: first in line %d",
                            binding->yaml_line);
    binding->yaml_line = site.line;
    union option_value value;
    TRY(next(reader));
    site.line = reader->site.line;
    TRY(binding->option->type == OPTION_LIST ? read_list(reader, binding->option, &site, &value)
                                             : read_scalar(reader, binding->option, &site, &value));
    return options_assign(reader->options, binding, &site, &value);
}

/* The keys of a mapping, all below `prefix` ("" at the top); the current event starts the mapping.
 * Recursion is bounded by the dots in the known keys: an unknown section is an error before it is
 * entered. */
static enum status read_mapping(struct reader *reader, const char *prefix)
{
    for (;;) {
        TRY(next(reader));
        if (reader->event.type == YAML_MAPPING_END_EVENT)
            return STATUS_OK;
        struct option_site site = reader->site;
        site.key = NULL;
        if (reader->event.type != YAML_SCALAR_EVENT)
            return options_fail(reader->options, &site, "a key must be a word, not %s",
                                event_word(reader));
        char key[2 * OPTION_KEY_BYTES];
        snprintf(key, sizeof key, "%s%s%.*s", prefix, *prefix ? "." : "", OPTION_KEY_BYTES,
                 scalar(reader));
        struct binding *binding = options_find(reader->options, key);
        /* A flag and a section of keys may share a name: --checkpoint and checkpoint.every. */
        bool is_key = binding && !binding->option->flag_only;
        struct binding *section = is_key ? NULL : find_section(reader->options, key);
        if (section)
            TRY(read_section(reader, section, key));
        else if (binding)
            TRY(read_option(reader, binding));
        else
            return fail_unknown_key(reader, key);
    }
}

/* --- documents ------------------------------------------------------------------------------ */

static enum status reader_open(struct reader *reader, struct options *options, const char *text,
                               size_t bytes, const struct option_site *site)
{
    *reader = (struct reader){.options = options, .site = *site, .text = text, .bytes = bytes};
    if (!yaml_parser_initialize(&reader->parser))
        return FAIL(options->env, MEMORY, "out of memory reading %s", site->origin);
    yaml_parser_set_input_string(&reader->parser, (const unsigned char *)text, bytes);
    return STATUS_OK;
}

static void reader_close(struct reader *reader)
{
    yaml_event_delete(&reader->event);
    yaml_parser_delete(&reader->parser);
}

/* Advance to the root of the first document; *empty = the file has no document. */
static enum status enter_document(struct reader *reader, bool *empty)
{
    TRY(next(reader));
    TRY(next(reader));
    *empty = reader->event.type == YAML_STREAM_END_EVENT;
    return *empty ? STATUS_OK : next(reader);
}

static enum status leave_document(struct reader *reader)
{
    TRY(next(reader));
    TRY(next(reader));
    struct option_site site = reader->site;
    site.key = NULL;
    if (reader->event.type != YAML_STREAM_END_EVENT)
        return options_fail(reader->options, &site, "a second document: one is read");
    return STATUS_OK;
}

static enum status read_file(struct reader *reader)
{
    bool empty;
    TRY(enter_document(reader, &empty));
    if (empty)
        return STATUS_OK;
    bool nothing = reader->event.type == YAML_SCALAR_EVENT && is_null(reader);
    if (reader->event.type == YAML_MAPPING_START_EVENT)
        TRY(read_mapping(reader, ""));
    else if (!nothing)
        return options_fail(reader->options, &reader->site,
                            "a configuration is a mapping of keys to values, not %s",
                            event_word(reader));
    return leave_document(reader);
}

enum status options_load_yaml_text(struct options *options, const char *text, size_t bytes,
                                   const char *origin)
{
    const struct option_site site = {.origin = origin, .source = SOURCE_YAML};
    struct reader reader;
    for (int i = 0; i < options->count; i++) {
        options->bindings[i].yaml_line = 0;
        options->bindings[i].sections_seen = 0;
    }
    if (bytes > FILE_BYTES)
        return options_fail(options, &site, "too large: a configuration has at most 1 MiB");
    TRY(reader_open(&reader, options, text, bytes, &site));
    reader.lines = true;
    enum status st = read_file(&reader);
    reader_close(&reader);
    return st;
}

enum status options_load_yaml(struct options *options, const char *path)
{
    char *text;
    size_t bytes;
    enum status st = file_read(options->env, path, FILE_BYTES, &text, &bytes);
    if (st == STATUS_IO || st == STATUS_FORMAT) /* the user named it as a configuration */
        return STATUS_CONFIG;
    TRY(st);
    st = options_load_yaml_text(options, text, bytes, path);
    mem_free(options->env, text);
    return st;
}

static enum status read_flow(struct reader *reader, const struct option *option,
                             union option_value *value)
{
    bool empty;
    TRY(enter_document(reader, &empty));
    if (empty)
        return STATUS_OK;
    TRY(read_list(reader, option, &reader->site, value));
    return leave_document(reader);
}

enum status options_parse_list(struct options *options, const struct option *option,
                               const char *text, const struct option_site *site,
                               union option_value *value)
{
    struct reader reader;
    memset(value, 0, sizeof *value);
    if (strlen(text) > FILE_BYTES)
        return options_fail(options, site, "is too large: a list has at most 1 MiB of text");
    TRY(reader_open(&reader, options, text, strlen(text), site));
    enum status st = read_flow(&reader, option, value);
    reader_close(&reader);
    return st;
}
