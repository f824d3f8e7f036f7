/* options_case -- two bound tables with every type of option, for the tests and the fuzzer of
 * options. */
#ifndef TESTS_BASE_OPTIONS_CASE_H
#define TESTS_BASE_OPTIONS_CASE_H
#include <math.h>
#include "base/options.h"

struct case_group {
    const char *match;
    double lr_mul;
    int64_t first;
    int mode;
    bool frozen;
};

struct case_train {
    int64_t steps, seed;
    double lr, ratio;
    const char *data, *note;
    int schedule;
    bool shuffle, dry;
    struct option_list groups;
    int64_t deep;
};

struct case_command {
    const char *out;
    int64_t count;
    bool json, quiet;
};

static const char *const case_modes[] = {"none", "selective", "full", NULL};
static const char *const case_schedules[] = {"constant", "linear", "cosine", "wsd", NULL};

#define FIELD(f) .offset = offsetof(struct case_group, f)
static const struct option case_fields[] = {
    {.key = "match", .type = OPTION_STRING, FIELD(match), .fallback = "*", .value_name = "GLOB"},
    {.key = "lr_mul", .type = OPTION_REAL, FIELD(lr_mul), .fallback = "1"},
    {.key = "first", .type = OPTION_INT, FIELD(first), .ranged = true, .max = 10},
    {.key = "mode", .type = OPTION_CHOICE, FIELD(mode), .choices = case_modes},
    {.key = "frozen", .type = OPTION_BOOL, FIELD(frozen)},
};
#undef FIELD

#define TRAIN(f) .offset = offsetof(struct case_train, f)
static const struct option case_train_options[] = {
    {.key = "train.steps",
     .type = OPTION_INT,
     TRAIN(steps),
     .fallback = "1000",
     .letter = 'n',
     .help = "optimizer steps to take",
     .ranged = true,
     .min = 1,
     .max = INFINITY},
    {.key = "train.seed",
     .also = "seed",
     .type = OPTION_INT,
     TRAIN(seed),
     .help = "where randomness begins"},
    {.key = "train.lr",
     .type = OPTION_REAL,
     TRAIN(lr),
     .fallback = "3e-4",
     .help = "peak learning rate",
     .ranged = true,
     .min = 0,
     .max = 10},
    {.key = "train.ratio", .type = OPTION_REAL, TRAIN(ratio), .hidden = true},
    {.key = "data.path",
     .type = OPTION_STRING,
     TRAIN(data),
     .value_name = "FILES",
     .help = "text to learn from"},
    {.key = "data.note", .type = OPTION_STRING, TRAIN(note), .fallback = "a note"},
    {.key = "train.schedule",
     .type = OPTION_CHOICE,
     TRAIN(schedule),
     .choices = case_schedules,
     .fallback = "cosine",
     .help = "how the learning rate moves after the warm-up"},
    {.key = "train.shuffle",
     .type = OPTION_BOOL,
     TRAIN(shuffle),
     .fallback = "true",
     .help = "take samples in random order"},
    {.key = "train.dry", .type = OPTION_BOOL, TRAIN(dry), .help = "only look"},
    {.key = "optimizer.groups",
     .type = OPTION_LIST,
     TRAIN(groups),
     .fields = case_fields,
     .field_count = sizeof case_fields / sizeof case_fields[0],
     .element_bytes = sizeof(struct case_group),
     .help = "rates by parameter name; the last match wins"},
    {.key = "data.cache.deep", .type = OPTION_INT, TRAIN(deep), .help = "a key of three parts"},
};
#undef TRAIN

#define COMMAND(f) .offset = offsetof(struct case_command, f), .flag_only = true
static const struct option case_command_options[] = {
    {.key = "out", .type = OPTION_STRING, COMMAND(out), .value_name = "DIR", .help = "run folder"},
    {.key = "json", .type = OPTION_BOOL, COMMAND(json), .letter = 'j', .help = "print JSON"},
    {.key = "quiet", .type = OPTION_BOOL, COMMAND(quiet), .letter = 'q', .help = "print less"},
    {.key = "count", .type = OPTION_INT, COMMAND(count), .letter = 'c', .help = "how many"},
};
#undef COMMAND

#define TABLE(name, heading, list)            \
    static const struct option_table name = { \
        .title = heading, .options = list, .count = sizeof list / sizeof list[0]}
TABLE(case_train_table, "training", case_train_options);
TABLE(case_command_table, "this command", case_command_options);
#undef TABLE

struct case_values {
    struct case_train train;
    struct case_command command;
};

/* The caller destroys *options. */
static inline enum status case_bind(struct env *env, struct case_values *values,
                                    struct options **options)
{
    enum status st;
    TRY(options_create(env, options));
    TRY_OR(undo_options, options_bind(*options, &case_train_table, &values->train));
    TRY_OR(undo_options, options_bind(*options, &case_command_table, &values->command));
    return STATUS_OK;
undo_options:
    options_destroy(*options);
    return st;
}

#endif
