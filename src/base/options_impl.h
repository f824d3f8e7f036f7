/* options_impl -- what the files of options share: the object, one bound option, and where a value
 * was given.
 *
 *     options.c           the object, binding, strength, environment
 *     options_value.c     text to a checked value, and the message when it is none
 *     options_yaml.c      files and flow text
 *     options_flags.c     argv
 *     options_print.c     the resolved configuration as YAML
 *     options_help.c      help, man page, completion
 *     options_nearest.c   "did you mean"
 */
#ifndef BASE_OPTIONS_IMPL_H
#define BASE_OPTIONS_IMPL_H
#include "base/options.h"

enum { OPTION_KEY_BYTES = 128 }; /* longest key, its NUL counted */

/* Who gave a value; a weaker source never replaces a stronger one, whatever the order of the
 * calls. */
enum option_source { SOURCE_DEFAULT, SOURCE_YAML, SOURCE_ENVIRONMENT, SOURCE_FLAG };

struct binding {
    const struct option *option; /* borrowed */
    char *target;                /* borrowed */
    const char *title;           /* borrowed */
    enum option_source source;
    const char *origin;     /* owned by the object; NULL = the default */
    int yaml_line;          /* in the file being read; 0 = not seen */
    uint32_t sections_seen; /* bit d: the section that ends before dot d, first in this key */
};

struct options {
    struct env *env; /* borrowed */
    struct binding *bindings;
    const char **keys; /* of the bindings, in order; the strings are borrowed */
    int count, room;
    void **owned; /* strings and lists handed out */
    int owned_count, owned_room;
};

/* Where a value stands: "tiny.yaml:12: optimizer.groups[1].lr_mul", "--train.steps". */
struct option_site {
    const char *origin;
    int line; /* 0 = the origin has no lines */
    enum option_source source;
    const char *key;   /* NULL = no key is meant, only the place */
    int item;          /* place in a list, with its field */
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

struct binding *options_find(const struct options *options, const char *key);

/* Hand a block over to the object: freed by options_destroy, or at once when this fails. */
enum status options_own(struct options *options, void *block);
enum status options_own_string(struct options *options, const char *text, size_t bytes,
                               const char **copy);

/* Log "site must/is ..." as STATUS_USAGE for flags and STATUS_CONFIG for the rest. */
enum status options_fail(struct options *options, const struct option_site *site,
                         const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The message that says what is allowed; `given` is "'abc'" or "a list", for the reader. */
enum status options_fail_type(struct options *options, const struct option *option,
                              const struct option_site *site, const char *given);

size_t option_value_bytes(const struct option *option);
/* Read any option but a list from its text. Strings are copied into the object. */
enum status options_parse_scalar(struct options *options, const struct option *option,
                                 const char *text, const struct option_site *site,
                                 union option_value *value);
/* Read any option from text; a list from YAML flow text. */
enum status options_parse(struct options *options, const struct option *option, const char *text,
                          const struct option_site *site, union option_value *value);
enum status options_parse_list(struct options *options, const struct option *option,
                               const char *text, const struct option_site *site,
                               union option_value *value);
/* Set every option of a table, or every field of a list's element, to its default. */
enum status options_set_defaults(struct options *options, const struct option *table, int count,
                                 void *target);
/* Store a checked value and its origin, unless a stronger source has spoken. */
enum status options_assign(struct options *options, struct binding *binding,
                           const struct option_site *site, const union option_value *value);
/* options_parse and options_assign. */
enum status options_give(struct options *options, struct binding *binding, const char *text,
                         const struct option_site *site);

/* "N", "X", "DIR": what help and messages call the value. */
const char *option_value_name(const struct option *option);
/* "{match: TEXT, lr_mul: X}" */
void option_describe_fields(const struct option *option, char *out, size_t bytes);

/* Edit distance when `a` and `b` are near enough to suggest one for the other, else -1. */
int options_near(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

#endif
