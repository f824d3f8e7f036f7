/* options_help -- the tables in readable form: --help, the OPTIONS section of the man page, the
 * reference in Markdown, and flags for shell completion.
 *
 *     Training:
 *       -n, --train.steps=N        optimizer steps to take [1000]
 *           --train.schedule=NAME  how the learning rate moves; one of constant, linear,
 *                                  cosine, wsd [cosine]
 *
 * Tables with the same title form one group, in the order of binding. The help column is the same
 * for the whole page; a flag that is too long for it gets a line of its own.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/options_impl.h"

enum { LEFT_BYTES = 192, COLUMN_MAX = 36, WIDTH_MIN = 40 };

/* A boolean for which --no-key makes a difference. */
static bool may_be_denied(const struct option *option)
{
    const char *text = option_default_text(option);
    return option->type == OPTION_BOOL && text && strcmp(text, "false") != 0;
}

/* "--train.steps=N", "--[no-]train.shuffle", "--threads, --run.threads=N" */
static void describe_flag(const struct option *option, char *out, size_t bytes)
{
    bool boolean = option->type == OPTION_BOOL;
    snprintf(out, bytes, "%s%s%s--%s%s%s%s%s", option->also ? "--" : "",
             option->also ? option->also : "", option->also ? ", " : "",
             may_be_denied(option) ? "[no-]" : "", option->key,
             boolean        ? ""
             : option->bare ? "[="
                            : "=",
             boolean ? "" : option_value_name(option), option->bare ? "]" : "");
}

/* "how the rate moves; one of constant, linear, cosine" */
static void describe_meaning(const struct option *option, struct text *help)
{
    const char *before = option->help ? "; " : "";
    text_add(help, option->help ? option->help : "");
    for (int i = 0; option->type == OPTION_CHOICE && option->choices[i]; i++)
        text_printf(help, "%s%s%s", i ? ", " : before, i ? "" : "one of ", option->choices[i]);
    if (option->type == OPTION_LIST) {
        char fields[256];
        option_describe_fields(option, fields, sizeof fields);
        text_printf(help, "%sa list of %s", before, fields);
    }
}

/* "how the rate moves; one of constant, linear, cosine [cosine]" */
static void describe_help(const struct option *option, struct text *help)
{
    describe_meaning(option, help);
    const char *text = option_default_text(option);
    if (text && *text && !(option->type == OPTION_BOOL && strcmp(text, "false") == 0))
        text_printf(help, "%s[%s]", help->bytes ? " " : "", text);
}

static bool is_shown(const struct option *option)
{
    return !option->hidden && !option->removed;
}

/* Whether binding `i` is the first shown option with its title. */
static bool opens_group(const struct options *options, int i)
{
    if (!is_shown(options->bindings[i].option))
        return false;
    for (int j = 0; j < i; j++)
        if (is_shown(options->bindings[j].option) &&
            strcmp(options->bindings[j].title, options->bindings[i].title) == 0)
            return false;
    return true;
}

typedef void visit_fn(void *user, const struct option *option);

/* Visit the options in the group of binding `first`, in order. */
static void each_of_group(const struct options *options, int first, visit_fn *visit, void *user)
{
    for (int i = first; i < options->count; i++)
        if (is_shown(options->bindings[i].option) &&
            strcmp(options->bindings[i].title, options->bindings[first].title) == 0)
            visit(user, options->bindings[i].option);
}

/* --- help ----------------------------------------------------------------------------------- */

struct page {
    struct text *text;
    struct text help; /* of the current option */
    int width, column;
    bool letters; /* some option has a letter: reserve a column */
};

static int describe_left(const struct page *page, const struct option *option, char *out)
{
    char flag[LEFT_BYTES - 16];
    describe_flag(option, flag, sizeof flag);
    if (option->letter)
        return snprintf(out, LEFT_BYTES, "  -%c, %s", option->letter, flag);
    return snprintf(out, LEFT_BYTES, "  %s%s", page->letters ? "    " : "", flag);
}

/* Bytes up to the next possible line break: a word, or "name: VALUE". */
static int chunk_bytes(const char *words)
{
    size_t bytes = strcspn(words, " ");
    while (bytes > 0 && words[bytes - 1] == ':' && words[bytes])
        bytes += 1 + strcspn(words + bytes + 1, " ");
    return (int)bytes;
}

/* Print text from `column` on, wrapped at the page width. */
static void print_wrapped(struct page *page, const char *words)
{
    int at = page->column;
    while (*words) {
        int bytes = chunk_bytes(words);
        bool first = at == page->column;
        if (!first && at + 1 + bytes > page->width) {
            text_printf(page->text, "\n%*s", page->column, "");
            at = page->column;
            first = true;
        }
        text_printf(page->text, "%s%.*s", first ? "" : " ", bytes, words);
        at += bytes + !first;
        words += bytes + (words[bytes] == ' ');
    }
}

static void print_help_line(void *user, const struct option *option)
{
    struct page *page = user;
    char left[LEFT_BYTES];
    int used = describe_left(page, option, left);
    text_clear(&page->help);
    describe_help(option, &page->help);
    text_add(page->text, left);
    if (page->help.bytes > 0) {
        if (used + 2 > page->column)
            text_printf(page->text, "\n%*s", page->column, "");
        else
            text_printf(page->text, "%*s", page->column - used, "");
        print_wrapped(page, text_string(&page->help));
    }
    text_add(page->text, "\n");
}

static void find_column(struct page *page, const struct options *options)
{
    char left[LEFT_BYTES];
    int limit = page->width / 2 < COLUMN_MAX ? page->width / 2 : COLUMN_MAX;
    for (int i = 0; i < options->count; i++)
        page->letters |=
            options->bindings[i].option->letter && is_shown(options->bindings[i].option);
    for (int i = 0; i < options->count; i++) {
        int column = describe_left(page, options->bindings[i].option, left) + 2;
        if (is_shown(options->bindings[i].option) && column <= limit && column > page->column)
            page->column = column;
    }
    page->column = page->column ? page->column : limit;
}

void options_print_help(const struct options *options, struct text *text, int width)
{
    struct page page = {.text = text, .width = width < WIDTH_MIN ? WIDTH_MIN : width};
    text_init(&page.help, options->env);
    find_column(&page, options);
    bool any = false;
    for (int i = 0; i < options->count; i++) {
        if (!opens_group(options, i))
            continue;
        const char *title = options->bindings[i].title;
        text_printf(text, "%s%c%s:\n", any ? "\n" : "", toupper((unsigned char)title[0]),
                    *title ? title + 1 : "");
        each_of_group(options, i, print_help_line, &page);
        any = true;
    }
    text_free(&page.help);
}

/* --- man page ------------------------------------------------------------------------------- */

/* Text with troff's special characters escaped. */
static void print_troff(struct text *text, const char *string)
{
    if (*string == '.' || *string == '\'')
        text_add(text, "\\&");
    for (; *string; string++) {
        if (*string == '\\')
            text_add(text, "\\e");
        else if (*string == '-')
            text_add(text, "\\-");
        else
            text_add_bytes(text, string, 1);
    }
}

static void print_man_entry(void *user, const struct option *option)
{
    struct text *text = user, help;
    text_add(text, ".TP\n");
    if (option->letter)
        text_printf(text, "\\fB\\-%c\\fR, ", option->letter);
    if (option->also) {
        text_add(text, "\\fB\\-\\-");
        print_troff(text, option->also);
        text_add(text, "\\fR, ");
    }
    bool boolean = option->type == OPTION_BOOL;
    text_printf(text, "\\fB\\-\\-%s", may_be_denied(option) ? "[no\\-]" : "");
    print_troff(text, option->key);
    text_add(text, "\\fR");
    if (!boolean) {
        text_add(text, option->bare ? "[=\\fI" : "=\\fI");
        print_troff(text, option_value_name(option));
        text_add(text, option->bare ? "\\fR]" : "\\fR");
    }
    text_add(text, "\n");
    text_init(&help, text->env);
    describe_help(option, &help);
    print_troff(text, text_string(&help));
    text_add(text, "\n");
    text_free(&help);
}

void options_print_man(const struct options *options, struct text *text)
{
    text_add(text, ".SH OPTIONS\n");
    for (int i = 0; i < options->count; i++) {
        if (!opens_group(options, i))
            continue;
        const char *title = options->bindings[i].title;
        text_printf(text, ".SS %c", toupper((unsigned char)title[0]));
        print_troff(text, *title ? title + 1 : "");
        text_add(text, "\n");
        each_of_group(options, i, print_man_entry, text);
    }
}

/* --- Markdown ------------------------------------------------------------------------------- */

/* Text with Markdown's special characters escaped. */
static void print_markdown(struct text *text, const char *string, const char *special)
{
    for (; *string; string++) {
        if (strchr(special, *string))
            text_add(text, "\\");
        text_add_bytes(text, string, 1);
    }
}

static void print_markdown_type(struct text *text, const struct option *option)
{
    char fields[256];
    switch (option->type) {
    case OPTION_BOOL: text_add(text, "boolean"); break;
    case OPTION_INT: text_add(text, "integer"); break;
    case OPTION_REAL: text_add(text, "number"); break;
    case OPTION_STRING: text_add(text, "string"); break;
    case OPTION_CHOICE:
        for (int i = 0; option->choices[i]; i++)
            text_printf(text, "%s`%s`", i ? ", " : "", option->choices[i]);
        break;
    case OPTION_LIST:
        option_describe_fields(option, fields, sizeof fields);
        text_printf(text, "list of `%s`", fields);
        break;
    }
}

/* The row of a key has a column for its type. A flag shows the type in its name, as in --help. */
static void print_markdown_row(const struct option *option, enum option_kind kind,
                               struct text *text)
{
    char flag[LEFT_BYTES];
    struct text meaning;
    const char *fallback = option_default_text(option);
    text_init(&meaning, text->env);
    text_add(text, "| ");
    if (kind == OPTIONS_KEYS) {
        text_printf(text, "`%s` | ", option->key);
        print_markdown_type(text, option);
        text_add(&meaning, option->help ? option->help : "");
        if (!fallback && option->type != OPTION_STRING && option->type != OPTION_LIST)
            fallback = option->type == OPTION_BOOL ? "false" : "0";
    } else {
        describe_flag(option, flag, sizeof flag);
        if (option->letter)
            text_printf(text, "`-%c`, ", option->letter);
        text_add(text, "`");
        print_markdown(text, flag, "|");
        text_add(text, "`");
        describe_meaning(option, &meaning);
    }
    text_printf(text, fallback && *fallback ? " | `%s` | " : " | %s | ", fallback ? fallback : "");
    print_markdown(text, text_string(&meaning), "|*<\\");
    text_add(text, " |\n");
    if (meaning.status != STATUS_OK)
        text->status = meaning.status;
    text_free(&meaning);
}

static bool is_listed(const struct binding *binding, enum option_kind kind, const char *title)
{
    return is_shown(binding->option) && binding->option->flag_only == (kind == OPTIONS_FLAGS) &&
           (!title || strcmp(binding->title, title) == 0);
}

const char *options_next_title(const struct options *options, enum option_kind kind, int *next)
{
    while (*next < options->count) {
        int i = (*next)++, j = 0;
        const char *title = options->bindings[i].title;
        while (j < i && !is_listed(&options->bindings[j], kind, title))
            j++;
        if (j == i && is_listed(&options->bindings[i], kind, title))
            return title;
    }
    return NULL;
}

void options_print_markdown(const struct options *options, enum option_kind kind, const char *title,
                            struct text *text)
{
    text_add(text, kind == OPTIONS_KEYS ? "| key | type | default | meaning |\n|---|---|---|---|\n"
                                        : "| option | default | meaning |\n|---|---|---|\n");
    for (int i = 0; i < options->count; i++) {
        if (is_listed(&options->bindings[i], kind, title))
            print_markdown_row(options->bindings[i].option, kind, text);
    }
    text_add(text, "\n");
}

int options_count_keys(const struct options *options)
{
    int count = 0;
    for (int i = 0; i < options->count; i++)
        count += is_listed(&options->bindings[i], OPTIONS_KEYS, NULL);
    return count;
}

/* --- completion ----------------------------------------------------------------------------- */

void options_print_flags(const struct options *options, struct text *text)
{
    for (int i = 0; i < options->count; i++) {
        const struct option *option = options->bindings[i].option;
        const char *equals = option->type == OPTION_BOOL || option->bare ? "" : "=";
        if (is_shown(option))
            text_printf(text, "--%s%s\n", option->key, equals);
        if (is_shown(option) && option->also)
            text_printf(text, "--%s%s\n", option->also, equals);
    }
}
