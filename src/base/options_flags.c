/* options_flags -- the command line.
 *
 *     --key=value   --key value   --key   --no-key   -n 4   -n4   -jn4   word   -- word word
 *
 * Some keys also have a shorter flag: --threads=4 is --run.threads=4. A boolean does not take the
 * next argument, nor does a flag with an optional value. Every other flag takes it unless it starts with "--", so that a forgotten value is
 * reported and does not swallow the next flag. In a flag '-' may replace '_' (--train.eval-every).
 * If a flag is repeated, the last one wins.
 */
#include <stdio.h>
#include <string.h>
#include "base/options_impl.h"

struct arguments {
    struct options *options;
    int argc, at;
    char *const *argv;
};

static enum status fail_usage(struct options *options, const char *flag, const char *what,
                              const char *near)
{
    if (near)
        return FAIL(options->env, USAGE, "%s '%.80s' (did you mean '--%s'?)", what, flag, near);
    return FAIL(options->env, USAGE, "%s '%.80s'", what, flag);
}

/* Find the option of a flag as written, then with '-' replaced by '_'. */
static struct binding *find_flag(struct options *options, const char *name)
{
    char key[OPTION_KEY_BYTES];
    struct binding *binding = options_find(options, name);
    for (int i = 0; !binding && i < options->count; i++) {
        const char *also = options->bindings[i].option->also;
        if (also && strcmp(also, name) == 0)
            binding = &options->bindings[i];
    }
    if (binding || strlen(name) >= sizeof key)
        return binding;
    for (int i = 0; (key[i] = name[i]); i++)
        if (key[i] == '-')
            key[i] = '_';
    return options_find(options, key);
}

/* The most similar flag, for "did you mean"; NULL = none is similar. */
static const char *nearest_flag(const struct options *options, const char *name)
{
    const char *near = options_nearest(name, options->keys, options->count);
    for (int i = 0; !near && i < options->count; i++) {
        const char *also = options->bindings[i].option->also;
        near = also ? options_nearest(name, &also, 1) : NULL;
    }
    return near;
}

/* The next argument as the value of `flag`, which is spelled as typed. */
static enum status take_value(struct arguments *args, const struct option *option, const char *flag,
                              const char **value)
{
    const char *next = args->at < args->argc ? args->argv[args->at] : NULL;
    if (!next || strncmp(next, "--", 2) == 0)
        return FAIL(args->options->env, USAGE, "%s wants a value: %s%c%s", flag, flag,
                    flag[1] == '-' ? '=' : ' ', option_value_name(option));
    *value = next;
    args->at++;
    return STATUS_OK;
}

static enum status give(struct arguments *args, struct binding *binding, const char *flag,
                        const char *value)
{
    const struct option_site site = {
        .origin = flag, .source = SOURCE_FLAG, .key = binding->option->key};
    return options_give(args->options, binding, value, &site);
}

/* --name, --name=value, --no-name */
static enum status read_long(struct arguments *args, const char *argument)
{
    char flag[OPTION_KEY_BYTES + 8];
    const char *equals = strchr(argument, '=');
    size_t bytes = equals ? (size_t)(equals - argument) : strlen(argument);
    if (bytes >= sizeof flag)
        return fail_usage(args->options, argument, "unknown flag", NULL);
    memcpy(flag, argument, bytes);
    flag[bytes] = 0;

    const char *name = flag + 2, *value = equals ? equals + 1 : NULL;
    struct binding *binding = find_flag(args->options, name);
    if (!binding && strncmp(name, "no-", 3) == 0) {
        binding = find_flag(args->options, name + 3);
        if (binding && (binding->option->type != OPTION_BOOL || value))
            return fail_usage(args->options, argument, "only a bare boolean has a --no- form, not",
                              NULL);
        value = "false";
    }
    if (!binding)
        return fail_usage(args->options, flag, "unknown flag", nearest_flag(args->options, name));
    if (!value)
        value = binding->option->type == OPTION_BOOL ? "true" : binding->option->bare;
    if (!value)
        TRY(take_value(args, binding->option, flag, &value));
    return give(args, binding, flag, value);
}

static struct binding *find_letter(const struct options *options, char letter)
{
    for (int i = 0; i < options->count; i++)
        if (options->bindings[i].option->letter == letter)
            return &options->bindings[i];
    return NULL;
}

/* -n4, -n 4, and combined booleans: -jn4 */
static enum status read_letters(struct arguments *args, const char *argument)
{
    for (const char *c = argument + 1; *c; c++) {
        char flag[3] = {'-', *c, 0};
        struct binding *binding = find_letter(args->options, *c);
        if (!binding)
            return FAIL(args->options->env, USAGE,
                        "unknown flag '%.80s'; a text that begins with '-' goes after --",
                        argument);
        if (binding->option->type == OPTION_BOOL) {
            TRY(give(args, binding, flag, "true"));
            continue;
        }
        const char *value = c + 1;
        if (!*value)
            TRY(take_value(args, binding->option, flag, &value));
        return give(args, binding, flag, value);
    }
    return STATUS_OK;
}

bool options_takes_next(struct options *options, const char *argument)
{
    const struct binding *binding = NULL;
    if (strncmp(argument, "--", 2) == 0)
        binding = find_flag(options, argument + 2);
    else if (argument[0] == '-' && argument[1])
        binding = find_letter(options, argument[strlen(argument) - 1]);
    return binding && binding->option->type != OPTION_BOOL && !binding->option->bare;
}

enum status options_load_flags(struct options *options, int argc, char *const *argv,
                               const char **words, int *word_count)
{
    struct arguments args = {.options = options, .argc = argc, .argv = argv};
    bool flags = true;
    *word_count = 0;
    while (args.at < argc) {
        const char *argument = argv[args.at++];
        if (flags && strcmp(argument, "--") == 0)
            flags = false;
        else if (flags && strncmp(argument, "--", 2) == 0)
            TRY(read_long(&args, argument));
        else if (flags && argument[0] == '-' && argument[1])
            TRY(read_letters(&args, argument));
        else
            words[(*word_count)++] = argument;
    }
    return STATUS_OK;
}
