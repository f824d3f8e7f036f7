/* options -- tables of options that give defaults, YAML keys, flags, environment, help, man page
 * and completion.
 *
 * A layer describes its configuration once, as a const table of options over an open struct; a
 * command binds the tables it needs and the values arrive in the structs. Order of strength,
 * weakest first: default, YAML file, environment (SIFR_TRAIN_STEPS), flag (--train.steps=100),
 * whatever the order in which they are loaded. Unknown keys are errors with their place (file:line)
 * and the nearest known key. Values are checked against type, range and choices where they are
 * given.
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
    OPTION_LIST,   /* struct option_list of element structs described by `fields`; a flag takes YAML
                      flow text */
};

struct option_list {
    void *items; /* count elements of element_bytes each; owned by the options object */
    int count;
};

struct option {
    const char *key; /* "train.steps", or "out" for a flag without a section */
    enum option_type type;
    size_t offset;          /* offsetof(struct ..., field) */
    const char *fallback;   /* the default as text; NULL = zero / "" / empty list */
    const char *help;       /* one line, lower case, no full stop */
    const char *value_name; /* for help: "N", "DIR"; NULL = by type */
    bool ranged;            /* numbers: min <= value <= max is required */
    double min, max;
    const char *const *choices;  /* OPTION_CHOICE: NULL-terminated */
    const struct option *fields; /* OPTION_LIST */
    int field_count;
    size_t element_bytes;
    char letter;      /* 'n' for -n N; 0 = none */
    const char *also; /* "threads": a shorter flag for the same, --threads=4; NULL = none */
    bool hidden;      /* not in help: for tests */
    bool flag_only;   /* --out, --json: not a YAML key, not in the printed configuration */
};

struct option_table {
    const char *title; /* heading in help: "training" */
    const struct option *options;
    int count;
};

struct options;

enum status options_create(struct env *env, struct options **options);
void options_destroy(struct options *options); /* frees every string and list handed out */

/* Bind a table to `target` and set its defaults. Tables and targets outlive the object. */
enum status options_bind(struct options *options, const struct option_table *table, void *target);

/* STATUS_CONFIG also when there is no such file. */
enum status options_load_yaml(struct options *options, const char *path);
/* The same from memory, for the fuzzer and tests; `origin` stands for the path in messages. */
enum status options_load_yaml_text(struct options *options, const char *text, size_t bytes,
                                   const char *origin);
/* SIFR_SECTION_KEY for every bound option that is not flag_only; an empty variable counts as none.
 */
enum status options_load_environment(struct options *options);
/* Warn about variables that look like a key and are none: near to one, or of a section that has
 * keys. */
void options_warn_environment(struct options *options);
/* Arguments without the program's name. Flags: --key=value, --key value, bare --key for booleans
 * (and --no-key), -n 4 and -n4; "--" ends them. What is not a flag goes to `words` (at least argc
 * places). */
enum status options_load_flags(struct options *options, int argc, char *const *argv,
                               const char **words, int *word_count);
/* Whether a flag as it stands in argv takes the next argument: "--key" and "-n", not "--key=value",
 * not booleans. */
bool options_takes_next(struct options *options, const char *argument);
/* One value from anywhere, as text and as strong as a flag; `origin` for messages ("--train.steps",
 * "the checkpoint"). */
enum status options_set(struct options *options, const char *key, const char *value,
                        const char *origin);

/* A copy of `text` that lives as long as the object, for a field whose value is worked out. */
enum status options_keep(struct options *options, const char *text, const char **copy);

bool options_is_set(const struct options *options,
                    const char *key); /* given by anybody, not the default */
const char *options_origin(const struct options *options,
                           const char *key); /* "default", "tiny.yaml:12", "--x" */

/* Keys whose values are the environment's, one a call, in the order of the tables: the key, and the
 * variable's text; NULL after the last. *next begins with 0. */
const char *options_next_variable(const struct options *options, int *next, const char **text);

/* The resolved configuration as YAML that options_load_yaml reads back to the same values
 * (flag_only left out). */
void options_print_yaml(const struct options *options, struct text *text);
/* `width` columns; keys with their value names, help and default, grouped by table title. */
void options_print_help(const struct options *options, struct text *text, int width);
void options_print_man(const struct options *options,
                       struct text *text); /* the OPTIONS section, troff man macros */
/* For the reference: configuration keys, or options that are only flags; hidden ones are left out. */
enum option_kind { OPTIONS_KEYS, OPTIONS_FLAGS };
/* Titles of tables that have options of this kind, one a call; NULL after the last. *next begins with 0. */
const char *options_next_title(const struct options *options, enum option_kind kind, int *next);
/* A Markdown table of the options of this kind under one title, or under all titles (NULL). */
void options_print_markdown(const struct options *options, enum option_kind kind, const char *title,
                            struct text *text);
int options_count_keys(const struct options *options);
void options_print_flags(const struct options *options,
                         struct text *text); /* one flag a line, for completion */

/* The candidate nearest to `word` by edit distance, NULL when none is near: "did you mean". */
const char *options_nearest(const char *word, const char *const *candidates, int count);

#endif
