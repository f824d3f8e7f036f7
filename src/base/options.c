/* options -- the object: which options are bound to which structs, and whose word stands.
 *
 * A binding ties one option of a table to the struct it fills and remembers the strongest source
 * that spoke. Values are parsed and checked always, also when they lose: a wrong key in a file is
 * an error even under a flag. Strings and lists handed out are kept until the object goes, so that
 * a pointer read early stays valid when the value is given again. What parses, reads and prints is
 * in the files listed in options_impl.h.
 */
#include "base/options.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/options_impl.h"

enum status options_create(struct env *env, struct options **options)
{
    TRY(mem_alloc(env, MEM_OTHER, "options", sizeof **options, options));
    (*options)->env = env;
    return STATUS_OK;
}

void options_destroy(struct options *options)
{
    if (!options)
        return;
    struct env *env = options->env;
    for (int i = 0; i < options->owned_count; i++)
        mem_free(env, options->owned[i]);
    mem_free(env, options->owned);
    mem_free(env, options->bindings);
    mem_free(env, options->keys);
    mem_free(env, options);
}

/* --- what the object owns ------------------------------------------------------------------- */

/* Make *array, of `room` elements, hold at least `needed`. */
static enum status reserve(struct env *env, void *array, int needed, int room, size_t size)
{
    void *old;
    memcpy(&old, array, sizeof old);
    if (old && needed <= room)
        return STATUS_OK;
    return mem_grow_array(env, MEM_OTHER, "options", (size_t)needed, size, array);
}

enum status options_own(struct options *options, void *block)
{
    if (options->owned_count == options->owned_room) {
        int room = options->owned_room ? 2 * options->owned_room : 64;
        enum status st = reserve(options->env, &options->owned, room, options->owned_room,
                                 sizeof *options->owned);
        if (st != STATUS_OK) {
            mem_free(options->env, block);
            return st;
        }
        options->owned_room = room;
    }
    options->owned[options->owned_count++] = block;
    return STATUS_OK;
}

enum status options_own_string(struct options *options, const char *text, size_t bytes,
                               const char **copy)
{
    char *block;
    TRY(mem_alloc(options->env, MEM_OTHER, "options", bytes + 1, &block));
    memcpy(block, text, bytes);
    TRY(options_own(options, block));
    *copy = block;
    return STATUS_OK;
}

/* --- binding -------------------------------------------------------------------------------- */

struct binding *options_find(const struct options *options, const char *key)
{
    for (int i = 0; i < options->count; i++)
        if (strcmp(options->keys[i], key) == 0)
            return &options->bindings[i];
    return NULL;
}

/* The default of one option; a default that does not parse is a mistake in the table. */
static enum status set_default(struct options *options, const struct option *option, char *target)
{
    const struct option_site site = {.origin = "default", .key = option->key};
    union option_value value;
    if (option->removed)
        return STATUS_OK;
    memset(&value, 0, sizeof value);
    if (option->type == OPTION_STRING)
        value.string = option->fallback ? option->fallback : "";
    else if (option->fallback) {
        enum status st = options_parse(options, option, option->fallback, &site, &value);
        CHECK(st == STATUS_OK || st == STATUS_MEMORY);
        TRY(st);
    }
    memcpy(target + option->offset, &value, option_value_bytes(option));
    return STATUS_OK;
}

enum status options_set_defaults(struct options *options, const struct option *table, int count,
                                 void *target)
{
    for (int i = 0; i < count; i++)
        TRY(set_default(options, &table[i], target));
    return STATUS_OK;
}

/* What a table must keep to; broken, it is our mistake and not the user's. */
static void check_option(const struct options *options, const struct option *option)
{
    CHECK_LT(strlen(option->key), OPTION_KEY_BYTES);
    CHECK(options_find(options, option->key) == NULL);
    CHECK(option->type != OPTION_CHOICE || option->choices != NULL);
    CHECK_LE(option->field_count, 64);
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
    int needed = options->count + table->count;
    TRY(reserve(options->env, &options->bindings, needed, options->room,
                sizeof *options->bindings));
    TRY(reserve(options->env, &options->keys, needed, options->room, sizeof *options->keys));
    options->room = needed > options->room ? needed : options->room;
    TRY(options_set_defaults(options, table->options, table->count, target));
    for (int i = 0; i < table->count; i++) {
        check_option(options, &table->options[i]);
        options->keys[options->count] = table->options[i].key;
        options->bindings[options->count++] =
            (struct binding){.option = &table->options[i], .target = target, .title = table->title};
    }
    return STATUS_OK;
}

/* --- giving values -------------------------------------------------------------------------- */

enum status options_assign(struct options *options, struct binding *binding,
                           const struct option_site *site, const union option_value *value)
{
    if (site->source < binding->source)
        return STATUS_OK;
    char line[16] = "";
    if (site->line > 0)
        snprintf(line, sizeof line, ":%d", site->line);
    size_t origin_bytes = strlen(site->origin), line_bytes = strlen(line);
    char *origin;
    TRY(mem_alloc(options->env, MEM_OTHER, "options", origin_bytes + line_bytes + 1, &origin));
    memcpy(origin, site->origin, origin_bytes);
    memcpy(origin + origin_bytes, line, line_bytes);
    TRY(options_own(options, origin));
    binding->origin = origin;
    binding->source = site->source;
    const struct option *option = binding->option;
    if (!option->removed)
        memcpy(binding->target + option->offset, value, option_value_bytes(option));
    return STATUS_OK;
}

enum status options_give(struct options *options, struct binding *binding, const char *text,
                         const struct option_site *site)
{
    union option_value value;
    TRY(options_parse(options, binding->option, text, site, &value));
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

enum status options_keep(struct options *options, const char *text, const char **copy)
{
    return options_own_string(options, text, strlen(text), copy);
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

/* What one variable, "SIFR_X=...", is to a key: 2 = its own, 1 = of the same section, 0 = nothing;
 * and its distance, -1 = not near. */
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
        log_warn(options->env, "the variable %.*s names no key (did you mean %s?)", (int)bytes,
                 variable, variable_name(nearest, name));
    else if (section)
        log_warn(options->env, "the variable %.*s names no key", (int)bytes, variable);
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

/* --- questions ------------------------------------------------------------------------------ */

bool options_is_set(const struct options *options, const char *key)
{
    const struct binding *binding = options_find(options, key);
    CHECK(binding != NULL);
    return binding->source != SOURCE_DEFAULT;
}

const char *options_origin(const struct options *options, const char *key)
{
    const struct binding *binding = options_find(options, key);
    CHECK(binding != NULL);
    return binding->origin ? binding->origin : "default";
}
