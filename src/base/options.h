/* options -- tables of options: one description for defaults, YAML keys, flags, environment
 * variables, help, man page and completion.
 *
 * A layer describes its configuration once, as a const table over an open struct. A command binds
 * the tables it needs, and values are written to the structs. Precedence, weakest first: default,
 * YAML file, environment (SIFR_TRAIN_STEPS), flag (--train.steps=100), in whatever order they are
 * loaded. An unknown key is an error with its location (file:line) and the nearest known key. Every
 * value is checked against its type, range and choices.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/text.h"

enum option_type {
    OPTION_BOOL,   /* bool; true/false, yes/no, on/off, 1/0; as a flag also bare: --json */
    OPTION_INT,    /* int64_t; 1k, 4M, 2G suffixes (powers of 1000), 1e9 and 1_000 accepted */
    OPTION_REAL,   /* double */
    OPTION_STRING, /* const char *, never NULL: "" when unset */
    OPTION_CHOICE, /* int: index into choices */
    /* struct option_list of elements described by `fields`; a flag takes YAML flow text */
    OPTION_LIST,
};

struct option_list {
    void *items; /* count elements of element_bytes each; owned by the options object */
    int count;
};

struct option {
    const char *key; /* "train.steps", or "out" for a flag without a section */
    enum option_type type;
    size_t offset;          /* offsetof(struct ..., field) */
    const char *fallback;   /* the default as text; NULL = zero or ""; a list defaults to empty */
    const char *help;       /* one line, lower case, no full stop */
    const char *value_name; /* for help: "N", "DIR"; NULL = by type */
    bool ranged;            /* for numbers: min <= value <= max */
    double min, max;
    const char *const *choices;  /* OPTION_CHOICE: NULL-terminated */
    const struct option *fields; /* OPTION_LIST */
    int field_count;
    size_t element_bytes;
    char letter;      /* 'n' for -n N; 0 = none */
    const char *bare; /* the value of the flag without one, which then does not take the next
                         argument: --page, --page=8080; NULL = a value is needed. Not with a letter */
    const char *also; /* "threads": a shorter flag for the same option, --threads=4; or NULL */
    bool hidden;      /* left out of help; for tests */
    bool flag_only;   /* --out, --json: not a YAML key, not in the printed configuration */
    /* The word for "no value", such as "auto"; NULL = there is always a value. A real is then NaN
     * and a choice -1; a boolean is an int, and -1. Without a fallback this is the default. YAML
     * also takes null. In a list, fields without a value are not printed. */
    const char *unset;
    const char *removed; /* a key of earlier versions: its value is checked by type and ignored
                            (options_warn_removed prints this text); not in help or printed YAML */
};

struct option_table {
    const char *title; /* the heading in help: "training" */
    const struct option *options;
    int count;
};

struct options;

enum status options_create(struct env *env, struct options **options);
void options_destroy(struct options *options); /* frees all strings and lists */

/* Bind a table to `target` and set its defaults. Table and target must outlive the object. */
enum status options_bind(struct options *options, const struct option_table *table, void *target);

/* A missing file is STATUS_CONFIG, too. */
enum status options_load_yaml(struct options *options, const char *path);
/* The same from memory, for tests; `origin` replaces the path in messages. */
enum status options_load_yaml_text(struct options *options, const char *text, size_t bytes,
                                   const char *origin);
/* Read SIFR_SECTION_KEY for every bound option that is not flag_only. Empty variables are
 * ignored. */
enum status options_load_environment(struct options *options);
/* Warn about SIFR_ variables that match no key but are similar to one or name its section. */
void options_warn_environment(struct options *options);
/* Warn about removed keys that were given, one line each. */
void options_warn_removed(const struct options *options);
/* Parse the arguments after the program's name. Flags: --key=value, --key value, bare --key for
 * booleans (and --no-key), -n 4 and -n4; "--" ends them. Other arguments go to `words`, which has
 * room for argc. */
enum status options_load_flags(struct options *options, int argc, char *const *argv,
                               const char **words, int *word_count);
/* Whether a flag in argv takes the next argument: "--key" and "-n" do; "--key=value" and booleans
 * do not. */
bool options_takes_next(struct options *options, const char *argument);
/* Set one value from text, with the precedence of a flag. `origin` is for messages
 * ("--train.steps", "the checkpoint"). */
enum status options_set(struct options *options, const char *key, const char *value,
                        const char *origin);

/* A copy of `text` owned by the object, for a field whose value is computed. */
enum status options_keep(struct options *options, const char *text, const char **copy);
/* Memory of `bytes` zeros that the object frees. */
enum status options_keep_memory(struct options *options, size_t bytes, void *block);

/* Whether any source but the default has set the key. */
bool options_is_set(const struct options *options, const char *key);
/* Whether a real, integer, choice or boolean has its default value, whatever source set it. */
bool options_is_default(struct options *options, const char *key);
/* "default", "tiny.yaml:12", "--x" */
const char *options_origin(const struct options *options, const char *key);

/* Iterate over the keys whose values come from the environment, in table order: returns the key and
 * the variable's text, NULL after the last. *next starts at 0. */
const char *options_next_variable(const struct options *options, int *next, const char **text);

/* The resolved configuration as YAML, without flag_only options. options_load_yaml parses it back
 * to the same values. */
void options_print_yaml(const struct options *options, struct text *text);
/* Keys with value name, help and default, grouped by table title, wrapped at `width` columns. */
void options_print_help(const struct options *options, struct text *text, int width);
/* The OPTIONS section in troff man macros. */
void options_print_man(const struct options *options, struct text *text);
/* For the reference: configuration keys, or options that are only flags; hidden ones are left
 * out. */
enum option_kind { OPTIONS_KEYS, OPTIONS_FLAGS };
/* Titles of tables that have options of this kind, one per call; NULL after the last. *next starts
 * at 0. */
const char *options_next_title(const struct options *options, enum option_kind kind, int *next);
/* A Markdown table of the options of this kind under one title, or under all titles (NULL). */
void options_print_markdown(const struct options *options, enum option_kind kind, const char *title,
                            struct text *text);
int options_count_keys(const struct options *options);
/* One flag per line, for shell completion. */
void options_print_flags(const struct options *options, struct text *text);

/* Parse `text` like the value of an OPTION_INT; false if it is not a whole number. */
bool options_read_integer(const char *text, int64_t *value);

/* The candidate with the smallest edit distance to `word`, NULL when none is similar. */
const char *options_nearest(const char *word, const char *const *candidates, int count);

#endif
