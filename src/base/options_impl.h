/* options_impl -- shared by the files of options: the object, a bound option, and where a value was
 * given. A file calls only those above it in this list:
 *
 *     options_nearest.c   edit distance, for "did you mean"
 *     options_object.c    the object: what it owns, its bindings, assignment by precedence
 *     options_value.c     text to a checked scalar, and the error messages
 *     options_yaml.c      YAML files, and lists as YAML flow text
 *     options.c           binding tables, the environment
 *     options_flags.c     the command line
 *     options_print.c     the resolved configuration as YAML
 *     options_help.c      help, man page, reference, completion
 */
#ifndef BASE_OPTIONS_IMPL_H
#define BASE_OPTIONS_IMPL_H
#include "base/options.h"

enum { OPTION_KEY_BYTES = 128 }; /* longest key, with its NUL */
enum { OPTION_FIELDS = 64 };     /* most fields of a list */

/* Sources by precedence, weakest first. A weaker source never replaces the value of a stronger one,
 * whatever the order of the calls. */
enum option_source { SOURCE_DEFAULT, SOURCE_YAML, SOURCE_ENVIRONMENT, SOURCE_FLAG };

struct binding {
    const struct option *option; /* borrowed */
    char *target;                /* borrowed */
    const char *title;           /* borrowed */
    enum option_source source;   /* of the current value */
    const char *origin;          /* owned by the object; NULL = the default */
    int yaml_line;               /* in the file being read; 0 = not seen */
    /* In the file being read. Bit d: the section that ends before dot d was seen; only in the first
     * binding of a section. */
    uint32_t sections_seen;
};

struct options {
    struct env *env; /* borrowed */
    struct binding *bindings;
    const char **keys; /* of the bindings, in order; the strings are borrowed */
    int count;
    void **owned; /* strings and lists handed out */
    int owned_count, owned_room;
};

/* Where a value was given: "tiny.yaml:12: optimizer.groups[1].lr_mul", "--train.steps". */
struct option_site {
    const char *origin;
    int line; /* 0 = the origin has no lines */
    enum option_source source;
    const char *key;   /* NULL = messages name only the location */
    int item;          /* index in a list, with its field */
    const char *field; /* NULL = not in a list */
};

union option_value {
    bool boolean;
    int64_t integer;
    double real;
    const char *string;
    int choice;
    struct option_list list;
};

/* --- options_nearest.c ---------------------------------------------------------------------- */

/* Edit distance of `a` and `b` when they are similar enough for a suggestion, else -1. */
int options_near(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* --- options_object.c ----------------------------------------------------------------------- */

/* Hand a block over to the object. It is freed by options_destroy, or immediately on failure. */
enum status options_own(struct options *options, void *block);
enum status options_own_string(struct options *options, const char *text, size_t bytes,
                               const char **copy);
struct binding *options_find(const struct options *options, const char *key); /* or NULL */
/* Store a checked value and its origin, unless a stronger source has set the option. */
enum status options_assign(struct options *options, struct binding *binding,
                           const struct option_site *site, const union option_value *value);

/* --- options_value.c ------------------------------------------------------------------------ */

/* Log "SITE MESSAGE". Returns STATUS_USAGE for flags and STATUS_CONFIG for other sources. */
enum status options_fail(struct options *options, const struct option_site *site,
                         const char *format, ...) __attribute__((format(printf, 3, 4)));
/* "SITE must be ..., not GIVEN", where `given` is "'abc'" or "a list". */
enum status options_fail_type(struct options *options, const struct option *option,
                              const struct option_site *site, const char *given);
const char *option_value_name(const struct option *option); /* "N", "X", "DIR" */
/* "{match: TEXT, lr_mul: X}" */
void option_describe_fields(const struct option *option, char *out, size_t bytes);
size_t option_value_bytes(const struct option *option);
const char *option_default_text(const struct option *option);          /* NULL = zero or "" */
bool option_is_unset(const struct option *option, const char *target); /* in this struct */
/* Parse any option but a list. Strings are copied into the object. */
enum status options_parse_scalar(struct options *options, const struct option *option,
                                 const char *text, const struct option_site *site,
                                 union option_value *value);
/* The default value; a list is empty. */
enum status options_default(struct options *options, const struct option *option,
                            union option_value *value);
/* Set the field of an option in `target` to its default. */
enum status options_set_default(struct options *options, const struct option *option, char *target);

/* --- options_yaml.c ------------------------------------------------------------------------- */

/* Parse a list from YAML flow text. */
enum status options_parse_list(struct options *options, const struct option *option,
                               const char *text, const struct option_site *site,
                               union option_value *value);

/* --- options.c ------------------------------------------------------------------------------ */

/* Parse the text and assign the value. */
enum status options_give(struct options *options, struct binding *binding, const char *text,
                         const struct option_site *site);

#endif
