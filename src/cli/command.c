/* command -- the list of commands, and the options object of one. */
#include "cli/command.h"
#include <string.h>

const struct command *const commands[] = {
    &command_train,  &command_plan,    &command_eval,  &command_sample, &command_tokenize,
    &command_export, &command_inspect, &command_bench, &command_doctor,
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };
const int command_count = COMMAND_COUNT;

/* Words that are no commands of the list but are understood in its place. */
static const char *const other_words[] = {"help", "completion", "man"};
enum { OTHER_COUNT = sizeof other_words / sizeof other_words[0] };

const struct command *command_find(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

enum status command_unknown(struct env *env, const char *name)
{
    const char *candidates[COMMAND_COUNT + OTHER_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++)
        candidates[i] = commands[i]->name;
    for (int i = 0; i < OTHER_COUNT; i++)
        candidates[COMMAND_COUNT + i] = other_words[i];
    const char *near = options_nearest(name, candidates, COMMAND_COUNT + OTHER_COUNT);
    if (near)
        return FAIL(env, USAGE, "there is no command '%s'; did you mean '%s'?", name, near);
    return FAIL(env, USAGE, "there is no command '%s'; `sifr --help` lists them", name);
}

/* --- the options of a call ------------------------------------------------------------------ */

static const struct option general_list[] = {
    {.key = "help",
     .letter = 'h',
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct command_general, help),
     .help = "print this help"},
    {.key = "verbose",
     .letter = 'v',
     .type = OPTION_BOOL,
     .flag_only = true,
     .offset = offsetof(struct command_general, verbose),
     .help = "print more on stderr, and the source location of every error"},
};
static const struct option_table general_options = {"general", general_list,
                                                    sizeof general_list / sizeof general_list[0]};

enum status command_open(struct env *env, const struct command *command, struct command_call *call)
{
    enum status st;
    *call = (struct command_call){.command = command};
    TRY(mem_alloc(env, MEM_OTHER, "settings", command->settings_bytes, &call->settings));
    TRY_OR(undo, options_create(env, &call->options));
    TRY_OR(undo, command->bind(call->options, call->settings));
    TRY_OR(undo, options_bind(call->options, &general_options, &call->general));
    return STATUS_OK;
undo:
    command_close(env, call);
    return st;
}

void command_close(struct env *env, struct command_call *call)
{
    options_destroy(call->options);
    mem_free(env, call->settings);
    *call = (struct command_call){0};
}
