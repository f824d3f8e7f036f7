/* options -- binding tables to structs, and values from the environment and from callers.
 *
 * A value is parsed and checked even when a stronger source overrides it: a wrong value in a file
 * is an error although a flag sets the same key.
 */
#include "base/options.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/options_impl.h"

/* --- binding -------------------------------------------------------------------------------- */

/* The rules for tables. A table that breaks one is a bug in sifr, not a user error. */
static void check_option(const struct options *options, const struct option *option)
{
    CHECK_LT(strlen(option->key), OPTION_KEY_BYTES);
    CHECK(options_find(options, option->key) == NULL);
    CHECK(option->type != OPTION_CHOICE || option->choices != NULL);
    CHECK(!option->unset || option->type == OPTION_REAL || option->type == OPTION_CHOICE ||
          option->type == OPTION_BOOL);
    CHECK_LE(option->field_count, OPTION_FIELDS);
    int dots = 0;
    for (const char *c = option->key; *c; c++)
        dots += *c == '.';
    CHECK_LT(dots, 32);
    for (int i = 0; i < option->field_count; i++)
        CHECK(option->fields[i].type != OPTION_LIST);
    for (int i = 0; option->letter && i < options->count; i++)
        CHECK(options->bindings[i].option->letter != option->letter);
    CHECK(!option->also || !options_find(options, option->also));
    for (int i = 0; i < options->count; i++) {
        const char *also = options->bindings[i].option->also;
        CHECK(!also || strcmp(also, option->key) != 0);
        CHECK(!also || !option->also || strcmp(also, option->also) != 0);
    }
}

enum status options_bind(struct options *options, const struct option_table *table, void *target)
{
    size_t needed = (size_t)(options->count + table->count);
    TRY(mem_grow_array(options->env, MEM_OTHER, "options", needed, sizeof *options->bindings,
                       &options->bindings));
    TRY(mem_grow_array(options->env, MEM_OTHER, "options", needed, sizeof *options->keys,
                       &options->keys));
    for (int i = 0; i < table->count; i++)
        TRY(options_set_default(options, &table->options[i], target));
    for (int i = 0; i < table->count; i++) {
        check_option(options, &table->options[i]);
        options->keys[options->count] = table->options[i].key;
        options->bindings[options->count++] =
            (struct binding){.option = &table->options[i], .target = target, .title = table->title};
    }
    return STATUS_OK;
}

/* --- values --------------------------------------------------------------------------------- */

enum status options_give(struct options *options, struct binding *binding, const char *text,
                         const struct option_site *site)
{
    union option_value value;
    if (binding->option->type == OPTION_LIST)
        TRY(options_parse_list(options, binding->option, text, site, &value));
    else
        TRY(options_parse_scalar(options, binding->option, text, site, &value));
    return options_assign(options, binding, site, &value);
}

enum status options_set(struct options *options, const char *key, const char *value,
                        const char *origin)
{
    struct option_site site = {.origin = origin, .source = SOURCE_FLAG, .key = key};
    struct binding *binding = options_find(options, key);
    if (binding)
        return options_give(options, binding, value, &site);
    const char *near = options_nearest(key, options->keys, options->count);
    site.key = NULL;
    return near ? options_fail(options, &site, "unknown key '%s' (did you mean '%s'?)", key, near)
                : options_fail(options, &site, "unknown key '%s'", key);
}

enum { VARIABLE_BYTES = OPTION_KEY_BYTES + 8 };

/* SIFR_TRAIN_STEPS for train.steps; returns `name`. */
static char *variable_name(const char *key, char name[VARIABLE_BYTES])
{
    char *to = stpcpy(name, "SIFR_");
    for (; *key; key++)
        *to++ = *key == '.' ? '_' : (char)toupper((unsigned char)*key);
    *to = 0;
    return name;
}

enum status options_load_environment(struct options *options)
{
    for (int i = 0; i < options->count; i++) {
        struct binding *binding = &options->bindings[i];
        if (binding->option->flag_only)
            continue;
        char name[VARIABLE_BYTES];
        const char *text = getenv(variable_name(options->keys[i], name));
        if (!text || !*text)
            continue;
        struct option_site site = {
            .origin = name, .source = SOURCE_ENVIRONMENT, .key = options->keys[i]};
        TRY(options_give(options, binding, text, &site));
    }
    return STATUS_OK;
}

const char *options_next_variable(const struct options *options, int *next, const char **text)
{
    while (*next < options->count) {
        int i = (*next)++;
        char name[VARIABLE_BYTES];
        if (options->bindings[i].source != SOURCE_ENVIRONMENT)
            continue;
        *text = getenv(variable_name(options->keys[i], name));
        if (*text)
            return options->keys[i];
    }
    return NULL;
}

/* How the variable "SIFR_X=..." relates to a key: 2 = it is the key's variable, 1 = it names the
 * same section, 0 = unrelated. *distance = edit distance of the names, -1 when not similar. */
static int compare_variable(const char *variable, size_t bytes, const char *key, int *distance)
{
    char name[VARIABLE_BYTES];
    variable_name(key, name);
    if (strlen(name) == bytes && memcmp(name, variable, bytes) == 0)
        return 2;
    *distance = options_near(variable + 5, bytes - 5, name + 5, strlen(name + 5));
    const char *dot = strchr(key, '.');
    return dot && strncmp(name, variable, 5 + (size_t)(dot - key) + 1) == 0;
}

static void warn_variable(struct options *options, const char *variable)
{
    size_t bytes = strcspn(variable, "=");
    const char *nearest = NULL;
    int least = 0;
    bool section = false;
    for (int i = 0; i < options->count; i++) {
        int distance = -1;
        if (options->bindings[i].option->flag_only)
            continue;
        int likeness = compare_variable(variable, bytes, options->keys[i], &distance);
        if (likeness == 2)
            return;
        section |= likeness == 1;
        if (distance >= 0 && (!nearest || distance < least)) {
            nearest = options->keys[i];
            least = distance;
        }
    }
    char name[VARIABLE_BYTES];
    if (nearest)
        log_warn(options->env, "environment variable %.*s matches no key (did you mean %s?)",
                 (int)bytes, variable, variable_name(nearest, name));
    else if (section)
        log_warn(options->env, "environment variable %.*s matches no key", (int)bytes, variable);
}

void options_warn_environment(struct options *options)
{
    for (char *const *variable = environ; *variable; variable++) {
        const char *equals = strchr(*variable, '=');
        if (strncmp(*variable, "SIFR_", 5) == 0 && equals && equals > *variable + 5 && equals[1])
            warn_variable(options, *variable);
    }
}

void options_warn_removed(const struct options *options)
{
    for (int i = 0; i < options->count; i++) {
        const struct binding *binding = &options->bindings[i];
        bool in_file = binding->source == SOURCE_YAML;
        if (binding->option->removed && binding->source != SOURCE_DEFAULT)
            log_warn(options->env, "%s%s%s was removed and is ignored: %s", binding->origin,
                     in_file ? ": " : "", in_file ? binding->option->key : "",
                     binding->option->removed);
    }
}

/* --- queries -------------------------------------------------------------------------------- */

bool options_is_set(const struct options *options, const char *key)
{
    const struct binding *binding = options_find(options, key);
    CHECK(binding != NULL);
    return binding->source != SOURCE_DEFAULT;
}

bool options_is_default(struct options *options, const char *key)
{
    const struct binding *binding = options_find(options, key);
    CHECK(binding != NULL);
    const struct option *option = binding->option;
    CHECK(option->type != OPTION_STRING && option->type != OPTION_LIST);
    union option_value value;
    if (options_default(options, option, &value) != STATUS_OK)
        return false;
    return memcmp(binding->target + option->offset, &value, option_value_bytes(option)) == 0;
}

const char *options_origin(const struct options *options, const char *key)
{
    const struct binding *binding = options_find(options, key);
    CHECK(binding != NULL);
    return binding->origin ? binding->origin : "default";
}
