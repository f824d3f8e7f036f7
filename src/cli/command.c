/* command -- the list of commands, the options of one call, and the command for the user to repeat.
 * A supervisor starts its ranks with extra arguments, so it passes its own command line to them in
 * COMMAND_LINE_VARIABLE. */
#include "cli/command.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"

const struct command *const commands[] = {
    &command_train,   &command_plan,  &command_page,   &command_report,   &command_compare,
    &command_batch,   &command_eval,  &command_sample, &command_tokenize, &command_export,
    &command_inspect, &command_bench, &command_doctor,
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };
const int command_count = COMMAND_COUNT;

const char *const command_stop_train[CLI_STEPPINGS] = {
    [CLI_NOT_STEPPING] = "stopping before the first step",
    [CLI_STEPPING] = "stopping after this step; the run will be saved",
    [CLI_STEPPING_UNSAVED] = "stopping after this step, which will not be saved"};

const struct page_command page_commands[] = {
    {"help", "help [COMMAND]", "print the overview, or the page of one command",
     "  sifr help train\n"
     "  sifr train --help                                  # the same page\n",
     1},
    {"man", "man [--markdown]", "print the manual page, or the reference as Markdown",
     "  sifr man | man -l -                                # read it\n"
     "  sifr man > ~/.local/share/man/man1/sifr.1          # install it for `man sifr`\n"
     "  sifr man --markdown > docs/reference.md            # the reference as Markdown\n",
     1},
    {"completion", "completion bash", "print the completion script of bash",
     "  source <(sifr completion bash)                     # for this shell\n"
     "  echo 'source <(sifr completion bash)' >> ~/.bashrc # for every new shell\n",
     1},
};
enum { PAGE_COUNT = sizeof page_commands / sizeof page_commands[0] };
const int page_command_count = PAGE_COUNT;

const struct command *command_find(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

const struct page_command *page_command_find(const char *name)
{
    for (int i = 0; i < PAGE_COUNT; i++) {
        if (strcmp(page_commands[i].name, name) == 0)
            return &page_commands[i];
    }
    return NULL;
}

enum status command_unknown(struct env *env, const char *name)
{
    const char *candidates[COMMAND_COUNT + PAGE_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++)
        candidates[i] = commands[i]->name;
    for (int i = 0; i < PAGE_COUNT; i++)
        candidates[COMMAND_COUNT + i] = page_commands[i].name;
    const char *near = options_nearest(name, candidates, COMMAND_COUNT + PAGE_COUNT);
    if (near)
        return FAIL(env, USAGE, "unknown command '%s'; did you mean '%s'?", name, near);
    return FAIL(env, USAGE, "unknown command '%s'; `sifr --help` lists the commands", name);
}

/* --- the options of a call ------------------------------------------------------------------ */

static const struct option general_list[] = {
    {COMMAND_FLAG("help", command_general, help, BOOL), .letter = 'h', .help = "print this help"},
    {COMMAND_FLAG("verbose", command_general, verbose, BOOL), .letter = 'v',
     .help = "log details to stderr, and where in the source an error was raised"},
    {COMMAND_FLAG("quiet", command_general, quiet, BOOL), .letter = 'q',
     .help = "print only results, warnings and errors: no progress, no figures of the work itself"},
};

enum status command_open(struct env *env, const struct command *command, struct command_call *call)
{
    enum status st;
    *call = (struct command_call){.command = command};
    TRY(mem_alloc(env, MEM_OTHER, "settings", command->settings_bytes, &call->settings));
    TRY_OR(undo, options_create(env, &call->options));
    TRY_OR(undo, options_bind(call->options, command->flags, call->settings));
    if (command->bind)
        TRY_OR(undo, command->bind(call->options, call->settings));
    TRY_OR(undo, options_bind(call->options, COMMAND_FLAGS(COMMAND_GENERAL, general_list),
                              &call->general));
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

static enum status check_words(struct env *env, const struct command *command,
                               const char *const *words, int count)
{
    char most[48];
    snprintf(most, sizeof most, ": there may be %d", command->most_words);
    if (count > command->most_words)
        return FAIL(env, USAGE, "unexpected argument '%s'%s; usage: sifr %s %s",
                    words[command->most_words], command->most_words > 1 ? most : "", command->name,
                    command->usage);
    if (count < command->least_words)
        return FAIL(env, USAGE, "missing argument; usage: sifr %s %s", command->name,
                    command->usage);
    return STATUS_OK;
}

/* A text or a model is easily given in place of a configuration. */
static enum status refuse_data(struct env *env, const char *path)
{
    static const char *const endings[] = {".txt", ".md", ".jsonl", ".bin", ".gz"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (text_ends_with(path, endings[i]))
            return FAIL(
                env, USAGE,
                "'%s' is not a configuration file (FILE.yaml); to train on it, use --data.path=%s",
                path, path);
    if (dir_exists(path))
        return FAIL(env, USAGE,
                    "'%s' is a folder, not a configuration file (FILE.yaml); to start from the "
                    "model in it, use --model.path=%s",
                    path, path);
    return STATUS_OK;
}

/* Flags are loaded before the configuration file because the file is one of the words between them.
 * They override the file whatever the order. */
enum status command_load(struct env *env, struct command_call *call, int argc, char *const *argv,
                         const char **words, int *word_count)
{
    const struct command *command = call->command;
    TRY(options_load_flags(call->options, argc, argv, words, word_count));
    if (call->general.help) /* -qh */
        return STATUS_OK;
    TRY(check_words(env, command, words, *word_count));
    if (command->config_file && *word_count > 0) {
        TRY(refuse_data(env, words[0]));
        TRY(options_load_yaml(call->options, words[0]));
    }
    return options_load_environment(call->options);
}

/* --- the command to repeat -------------------------------------------------------------------- */

enum { MOST_BYTES = 1 << 14 }; /* the system may reject a longer environment variable */

void command_line_add_word(struct text *text, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_./:=,+@%-";
    text_add(text, " ");
    if (*word && word[strspn(word, plain)] == 0) {
        text_add(text, word);
        return;
    }
    text_add(text, "'");
    for (; *word; word++) {
        if (*word == '\'')
            text_add(text, "'\\''");
        else
            text_add_bytes(text, word, 1);
    }
    text_add(text, "'");
}

static void print(const struct cli *cli, struct text *text)
{
    text_add(text, "sifr");
    for (int i = 0; i < cli->argc; i++) {
        /* --fresh must not be repeated: it would start over. */
        if (strcmp(cli->argv[i], "--fresh") != 0 && strncmp(cli->argv[i], "--fresh=", 8) != 0)
            command_line_add_word(text, cli->argv[i]);
    }
}

void command_line_again(const struct cli *cli, struct text *text)
{
    struct launcher launcher;
    const char *handed = getenv(COMMAND_LINE_VARIABLE);
    if (rank_report_wanted())
        text_add(text, handed ? handed : "");
    else if (!launcher_find(&launcher) || launcher.size == 1)
        print(cli, text);
}

enum status command_line_hand_on(const struct cli *cli)
{
    struct text text;
    text_init(&text, cli->env);
    print(cli, &text);
    enum status st = text.status;
    if (st == STATUS_OK && text.bytes < MOST_BYTES)
        setenv(COMMAND_LINE_VARIABLE, text_string(&text), 1);
    text_free(&text);
    return st;
}
