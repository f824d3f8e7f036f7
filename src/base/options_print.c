/* options_print -- the resolved configuration as YAML.
 *
 * Keys are grouped by section in the order of the tables; lists are written in block style. Parsing
 * the text gives the same values: reals are in their shortest exact form, and strings are quoted
 * where YAML would read another type. YAML is UTF-8 text, so a string that is not UTF-8, such as a
 * file name in another encoding, is written as !!binary in base64, which preserves its bytes.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include "base/options_impl.h"

/* Words and numbers that some YAML parser reads as another type. */
static bool looks_typed(const char *text)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return text[strspn(text, "0123456789+-.eE_:xXoO")] == 0;
}

static bool is_plain(const char *text)
{
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    return *text && !strchr("-.+", *text) && text[strspn(text, safe)] == 0 && !looks_typed(text);
}

/* Characters that need no escape inside double quotes: printable, and not a line break in YAML. */
static bool stands_quoted(uint32_t code)
{
    if (code < 0x7f)
        return code >= 0x20 && code != '"' && code != '\\';
    return code >= 0xa0 && code != 0x2028 && code != 0x2029 && code != 0xfeff && code != 0xfffe &&
           code != 0xffff;
}

static void print_quoted(struct text *text, const char *string)
{
    size_t left = strlen(string);
    text_add(text, "\"");
    while (left > 0) {
        uint32_t code = 0;
        size_t bytes = text_utf8(string, left, &code);
        if (stands_quoted(code))
            text_add_bytes(text, string, bytes);
        else if (code == '"' || code == '\\')
            text_printf(text, "\\%c", (char)code);
        else
            text_printf(text, code == '\n' ? "\\n" : "\\u%04" PRIx32, code);
        string += bytes;
        left -= bytes;
    }
    text_add(text, "\"");
}

static bool is_utf8(const char *string)
{
    uint32_t code;
    size_t bytes = 1;
    for (size_t left = strlen(string); left > 0 && bytes > 0; left -= bytes, string += bytes)
        bytes = text_utf8(string, left, &code);
    return bytes > 0;
}

static void print_string(struct text *text, const char *string)
{
    if (is_plain(string)) {
        text_add(text, string);
    } else if (is_utf8(string)) {
        print_quoted(text, string);
    } else {
        text_add(text, "!!binary \"");
        text_base64(text, string, strlen(string));
        text_add(text, "\"");
    }
}

static void print_real(struct text *text, double value)
{
    if (isfinite(value))
        text_json_real(text, value);
    else
        text_add(text, value < 0 ? "-.inf" : ".inf");
}

static void print_scalar(struct text *text, const struct option *option, const char *target)
{
    union option_value value;
    memcpy(&value, target + option->offset, option_value_bytes(option));
    if (option_is_unset(option, target)) {
        print_string(text, option->unset);
        return;
    }
    switch (option->type) {
    case OPTION_BOOL:
        text_add(text, (option->unset ? value.choice : value.boolean) ? "true" : "false");
        break;
    case OPTION_INT: text_printf(text, "%" PRId64, value.integer); break;
    case OPTION_REAL: print_real(text, value.real); break;
    case OPTION_STRING: print_string(text, value.string); break;
    case OPTION_CHOICE: print_string(text, option->choices[value.choice]); break;
    case OPTION_LIST: break;
    }
}

static void print_list(struct text *text, const struct option *list, const char *target,
                       const char *indent)
{
    struct option_list items;
    memcpy(&items, target + list->offset, sizeof items);
    if (items.count == 0)
        text_add(text, " []");
    for (int i = 0; i < items.count; i++) {
        const char *item = (const char *)items.items + (size_t)i * list->element_bytes;
        for (int j = 0; j < list->field_count; j++) {
            if (option_is_unset(&list->fields[j], item))
                continue;
            text_printf(text, "\n%s  %s %s: ", indent, j ? " " : "-", list->fields[j].key);
            print_scalar(text, &list->fields[j], item);
        }
    }
    text_add(text, "\n");
}

static void print_binding(struct text *text, const struct binding *binding, const char *name,
                          const char *indent)
{
    text_printf(text, "%s%s:", indent, name);
    if (binding->option->type == OPTION_LIST) {
        print_list(text, binding->option, binding->target, indent);
        return;
    }
    text_add(text, " ");
    print_scalar(text, binding->option, binding->target);
    text_add(text, "\n");
}

/* Length of the section's name; 0 = the key has no section. */
static size_t section_bytes(const char *key)
{
    size_t bytes = strcspn(key, ".");
    return key[bytes] ? bytes : 0;
}

static bool same_section(const char *a, const char *b)
{
    size_t bytes = section_bytes(a);
    return bytes == section_bytes(b) && memcmp(a, b, bytes) == 0;
}

static bool is_printed(const struct option *option)
{
    return !option->flag_only && !option->removed;
}

/* Print the whole section of binding `first`, if that is the first one printed of its section. */
static void print_section(const struct options *options, struct text *text, int first)
{
    const char *key = options->keys[first];
    for (int i = 0; i < first; i++)
        if (is_printed(options->bindings[i].option) && same_section(options->keys[i], key))
            return;
    size_t bytes = section_bytes(key);
    if (bytes)
        text_printf(text, "%.*s:\n", (int)bytes, key);
    for (int i = first; i < options->count; i++)
        if (is_printed(options->bindings[i].option) && same_section(options->keys[i], key))
            print_binding(text, &options->bindings[i], options->keys[i] + (bytes ? bytes + 1 : 0),
                          bytes ? "  " : "");
}

void options_print_yaml(const struct options *options, struct text *text)
{
    for (int i = 0; i < options->count; i++)
        if (is_printed(options->bindings[i].option))
            print_section(options, text, i);
}
