/* options_object -- the object itself: what it owns, its bindings by key, and assignment.
 *
 * Strings and lists are freed only with the object, so a pointer that was read early stays valid
 * when the value is replaced.
 */
#include <stdio.h>
#include <string.h>
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

/* --- ownership ------------------------------------------------------------------------------ */

enum status options_own(struct options *options, void *block)
{
    if (options->owned_count == options->owned_room) {
        int room = options->owned_room ? 2 * options->owned_room : 64;
        enum status st = mem_grow_array(options->env, MEM_OTHER, "options", (size_t)room,
                                        sizeof *options->owned, &options->owned);
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

enum status options_keep(struct options *options, const char *text, const char **copy)
{
    return options_own_string(options, text, strlen(text), copy);
}

enum status options_keep_memory(struct options *options, size_t bytes, void *block)
{
    void *memory;
    TRY(mem_alloc(options->env, MEM_OTHER, "options", bytes, &memory));
    TRY(options_own(options, memory));
    *(void **)block = memory;
    return STATUS_OK;
}

/* --- bindings ------------------------------------------------------------------------------- */

struct binding *options_find(const struct options *options, const char *key)
{
    for (int i = 0; i < options->count; i++)
        if (strcmp(options->keys[i], key) == 0)
            return &options->bindings[i];
    return NULL;
}

enum status options_assign(struct options *options, struct binding *binding,
                           const struct option_site *site, const union option_value *value)
{
    if (site->source < binding->source)
        return STATUS_OK;
    char line[16] = "", *origin;
    if (site->line > 0)
        snprintf(line, sizeof line, ":%d", site->line);
    size_t bytes = strlen(site->origin) + strlen(line) + 1;
    TRY(mem_alloc(options->env, MEM_OTHER, "options", bytes, &origin));
    snprintf(origin, bytes, "%s%s", site->origin, line);
    TRY(options_own(options, origin));
    binding->origin = origin;
    binding->source = site->source;
    const struct option *option = binding->option;
    if (!option->removed)
        memcpy(binding->target + option->offset, value, option_value_bytes(option));
    return STATUS_OK;
}
