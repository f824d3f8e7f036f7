/* options_value -- converts text to a checked value of the option's type, or reports what is
 * allowed.
 *
 * Values from all sources are parsed here, so flags, YAML keys and variables have the same grammar.
 * Numbers are parsed as in the C locale, whatever the program's locale is.
 */
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/options_impl.h"

enum { MESSAGE_BYTES = 1024 };

/* snprintf at the end of the string in `out`; text that does not fit is dropped. */
__attribute__((format(printf, 3, 4))) static void append(char *out, size_t bytes,
                                                         const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, bytes - used, format, args);
    va_end(args);
}

/* --- messages ------------------------------------------------------------------------------- */

enum status options_fail(struct options *options, const struct option_site *site,
                         const char *format, ...)
{
    char message[MESSAGE_BYTES] = "";
    append(message, sizeof message, "%s", site->origin);
    if (site->line > 0)
        append(message, sizeof message, ":%d", site->line);
    /* A flag or variable identifies the option; a file needs the key as well. */
    bool named = site->source == SOURCE_ENVIRONMENT || site->origin[0] == '-';
    if (!site->key)
        append(message, sizeof message, ": ");
    else if (!named)
        append(message, sizeof message, ": %s", site->key);
    if (site->field)
        append(message, sizeof message, "[%d].%s", site->item, site->field);
    if (site->key)
        append(message, sizeof message, " ");

    size_t used = strlen(message);
    va_list args;
    va_start(args, format);
    vsnprintf(message + used, sizeof message - used, format, args);
    va_end(args);
    if (site->source == SOURCE_FLAG)
        return FAIL(options->env, USAGE, "%s", message);
    return FAIL(options->env, CONFIG, "%s", message);
}

/* By type: the value's name in help, what a value must be, and its size in the target. */
static const struct {
    const char *value_name, *wanted;
    size_t bytes;
} types[] = {
    [OPTION_BOOL] = {"BOOL", "true or false", sizeof(bool)},
    [OPTION_INT] = {"N", "a whole number", sizeof(int64_t)},
    [OPTION_REAL] = {"X", "a number", sizeof(double)},
    [OPTION_STRING] = {"TEXT", "a text", sizeof(const char *)},
    [OPTION_CHOICE] = {"NAME", "one of ", sizeof(int)},
    [OPTION_LIST] = {"LIST", "a list of ", sizeof(struct option_list)},
};

const char *option_value_name(const struct option *option)
{
    return option->value_name ? option->value_name : types[option->type].value_name;
}

size_t option_value_bytes(const struct option *option)
{
    return option->unset && option->type == OPTION_BOOL ? sizeof(int) : types[option->type].bytes;
}

const char *option_default_text(const struct option *option)
{
    return option->fallback ? option->fallback : option->unset;
}

bool option_is_unset(const struct option *option, const char *target)
{
    union option_value value;
    if (!option->unset)
        return false;
    memcpy(&value, target + option->offset, option_value_bytes(option));
    return option->type == OPTION_REAL ? isnan(value.real) : value.choice < 0;
}

void option_describe_fields(const struct option *option, char *out, size_t bytes)
{
    snprintf(out, bytes, "{");
    for (int i = 0; i < option->field_count; i++)
        append(out, bytes, "%s%s: %s", i ? ", " : "", option->fields[i].key,
               option_value_name(&option->fields[i]));
    append(out, bytes, "}");
}

static void describe_range(const struct option *option, char *out, size_t bytes)
{
    /* A bound of 2^63 or more does not limit an int64. */
    bool low = option->ranged && option->min > -0x1p63,
         high = option->ranged && option->max < 0x1p63;
    if (low && high)
        append(out, bytes, " from %.15g to %.15g", option->min, option->max);
    else if (low)
        append(out, bytes, " of at least %.15g", option->min);
    else if (high)
        append(out, bytes, " of at most %.15g", option->max);
}

enum status options_fail_type(struct options *options, const struct option *option,
                              const struct option_site *site, const char *given)
{
    char wanted[512], fields[256];
    snprintf(wanted, sizeof wanted, "%s%s%s", option->unset ? option->unset : "",
             option->unset ? " or " : "", types[option->type].wanted);
    for (int i = 0; option->type == OPTION_CHOICE && option->choices[i]; i++)
        append(wanted, sizeof wanted, "%s%s", i ? ", " : "", option->choices[i]);
    if (option->type == OPTION_LIST) {
        option_describe_fields(option, fields, sizeof fields);
        append(wanted, sizeof wanted, "%s", fields);
    }
    if (option->type == OPTION_INT || option->type == OPTION_REAL)
        describe_range(option, wanted, sizeof wanted);
    return options_fail(options, site, "must be %s, not %s", wanted, given);
}

/* "16GB" and "16GiB" were probably meant as "16G": units are not accepted. */
static void suggest_integer(const char *text, char *given, size_t bytes)
{
    char plain[32];
    int64_t value;
    size_t length = strlen(text);
    if (length < 3 || length >= sizeof plain ||
        (text[length - 1] != 'B' && text[length - 1] != 'b'))
        return;
    length -= text[length - 2] == 'i' ? 2 : 1;
    snprintf(plain, sizeof plain, "%.*s", (int)length, text);
    if (options_read_integer(plain, &value))
        append(given, bytes, " (did you mean '%s'?)", plain);
}

static enum status fail_text(struct options *options, const struct option *option,
                             const struct option_site *site, const char *text)
{
    char given[160];
    snprintf(given, sizeof given, strlen(text) > 64 ? "'%.64s...'" : "'%.64s'", text);
    if (option->type == OPTION_CHOICE) {
        int count = 0;
        while (option->choices[count])
            count++;
        const char *near = options_nearest(text, option->choices, count);
        if (near)
            append(given, sizeof given, " (did you mean '%s'?)", near);
    }
    if (option->type == OPTION_INT)
        suggest_integer(text, given, sizeof given);
    return options_fail_type(options, option, site, given);
}

/* --- parsing -------------------------------------------------------------------------------- */

static bool read_bool(const char *text, bool *value)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *value = i % 2;
            return true;
        }
    }
    return false;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The power of ten of a suffix at *c: k, M, G, e9 or e+9; 0 = none. Advances *c past it. */
static int read_power(const char **c)
{
    int power = **c == 'k' || **c == 'K' ? 3 : **c == 'M' ? 6 : **c == 'G' ? 9 : 0;
    const char *digits = *c + 1 + ((*c)[0] && (*c)[1] == '+');
    if (power) {
        ++*c;
    } else if ((**c == 'e' || **c == 'E') && is_digit(*digits)) {
        for (*c = digits; is_digit(**c); ++*c)
            power = power > 99 ? power : 10 * power + **c - '0';
    }
    return power;
}

/* [+-] digits, with single underscores between them, then an optional power of ten. With one, a
 * fraction is allowed when the result is an integer: 1.5M, 2.5e4. */
bool options_read_integer(const char *text, int64_t *value)
{
    bool negative = *text == '-', overflow = false;
    const char *c = text + (*text == '-' || *text == '+'), *point = NULL;
    int64_t total = 0;
    if (!is_digit(*c))
        return false;
    for (; is_digit(*c) || *c == '_' || (*c == '.' && !point); c++) {
        if (!is_digit(*c) && !is_digit(c[1]))
            return false;
        if (*c == '_' && point)
            return false;
        if (*c == '_')
            continue;
        if (*c == '.') {
            point = c;
            continue;
        }
        int digit = *c - '0';
        overflow |= __builtin_mul_overflow(total, 10, &total);
        overflow |= __builtin_add_overflow(total, negative ? -digit : digit, &total);
    }
    int locations = point ? (int)(c - point) - 1 : 0, power = read_power(&c);
    if (power < locations)
        return false;
    for (power -= locations; power > 0 && total != 0 && !overflow; power--)
        overflow |= __builtin_mul_overflow(total, 10, &total);
    *value = total;
    return *c == 0 && !overflow;
}

/* A decimal number, or an integer as above: 1k, 1_000. */
static bool read_real(const char *text, double *value)
{
    int64_t integer;
    const char *unsigned_text = text + (*text == '-' || *text == '+');
    if (strcmp(unsigned_text, "inf") == 0 || strcmp(unsigned_text, ".inf") == 0) {
        *value = *text == '-' ? -INFINITY : INFINITY;
        return true;
    }
    if (*text == 0 || text[strspn(text, "0123456789+-.eE")] != 0) {
        bool read = options_read_integer(text, &integer);
        *value = read ? (double)integer : 0;
        return read;
    }
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return false;
    char *end;
    *value = strtod_l(text, &end, plain);
    freelocale(plain);
    return *end == 0 && isfinite(*value);
}

static bool read_choice(const char *text, const char *const *choices, int *value)
{
    for (*value = 0; choices[*value]; ++*value)
        if (strcmp(text, choices[*value]) == 0)
            return true;
    return false;
}

static bool in_range(const struct option *option, double value)
{
    return !option->ranged || (option->min <= value && value <= option->max);
}

enum status options_parse_scalar(struct options *options, const struct option *option,
                                 const char *text, const struct option_site *site,
                                 union option_value *value)
{
    bool read = false, boolean;
    if (option->unset && strcmp(text, option->unset) == 0) {
        if (option->type == OPTION_REAL)
            value->real = NAN;
        else
            value->choice = -1;
        return STATUS_OK;
    }
    switch (option->type) {
    case OPTION_BOOL:
        read = read_bool(text, &boolean);
        if (read && option->unset)
            value->choice = boolean;
        else if (read)
            value->boolean = boolean;
        break;
    case OPTION_INT:
        read =
            options_read_integer(text, &value->integer) && in_range(option, (double)value->integer);
        break;
    case OPTION_REAL: read = read_real(text, &value->real) && in_range(option, value->real); break;
    case OPTION_STRING: return options_own_string(options, text, strlen(text), &value->string);
    case OPTION_CHOICE: read = read_choice(text, option->choices, &value->choice); break;
    case OPTION_LIST: break;
    }
    return read ? STATUS_OK : fail_text(options, option, site, text);
}

enum status options_default(struct options *options, const struct option *option,
                            union option_value *value)
{
    const struct option_site site = {.origin = "default", .key = option->key};
    const char *text = option_default_text(option);
    memset(value, 0, sizeof *value);
    if (option->type == OPTION_STRING)
        value->string = text ? text : "";
    else if (text) {
        enum status st = options_parse_scalar(options, option, text, &site, value);
        CHECK(st == STATUS_OK || st == STATUS_MEMORY); /* otherwise the table is wrong */
        TRY(st);
    }
    return STATUS_OK;
}

enum status options_set_default(struct options *options, const struct option *option, char *target)
{
    union option_value value;
    if (option->removed)
        return STATUS_OK;
    TRY(options_default(options, option, &value));
    memcpy(target + option->offset, &value, option_value_bytes(option));
    return STATUS_OK;
}
