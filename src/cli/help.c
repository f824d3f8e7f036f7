/* help -- pages for people and shells, made from the list of commands and their option tables.
 *
 * Only what works is listed: a page is made by binding the command's own tables, so it cannot
 * promise an option that is not parsed. Texts that are about the whole command (overview, exit
 * codes) are here and nowhere else.
 */
#include "cli/help.h"
#include <ctype.h>
#include <string.h>

enum { WIDTH_MAX = 100 };

static const char about[] = "train GPT-2 and Llama language models in C, on one rank or many";

static const char overview_examples[] =
    "  sifr train configs/tiny.yaml --data.path=notes.txt     # train a small model on a text "
    "file\n"
    "  sifr sample runs/tiny \"Once upon a time\"               # generate text with it\n"
    "  sifr train --help                                      # every configuration key\n";

static const struct {
    const char *code, *meaning;
} exit_codes[] = {
    {"0", "success"},
    {"1", "failure, or terminated without saving; also an unreadable, empty or damaged file"},
    {"2",
     "wrong usage or configuration; also a missing file, or settings that do not fit the data"},
    {"3", "training diverged, or the model produced values that are not finite"},
    {"4", "not enough memory, or no progress after a signal to stop"},
    {"75", "stopped early by a signal or a limit; rerun the same command to resume"},
};
enum { EXIT_CODE_COUNT = sizeof exit_codes / sizeof exit_codes[0] };

static int page_width(const struct cli *cli)
{
    return cli->console->width < WIDTH_MAX ? cli->console->width : WIDTH_MAX;
}

/* Print and free. */
static enum status show(struct cli *cli, struct text *text)
{
    enum status st = text->status;
    if (st == STATUS_OK)
        console_write(cli->console, text_string(text), text->bytes);
    text_free(text);
    return st;
}

static void heading(struct cli *cli, struct text *text, const char *title)
{
    text_printf(text, "\n%s%s%s\n", console_style(cli->console, STYLE_BOLD), title,
                console_style(cli->console, STYLE_PLAIN));
}

/* --- overview, version ---------------------------------------------------------------------- */

enum status help_overview(struct cli *cli)
{
    struct text text;
    text_init(&text, cli->env);
    text_printf(&text, "%ssifr%s %s: %s\n", console_style(cli->console, STYLE_BOLD),
                console_style(cli->console, STYLE_PLAIN), SIFR_VERSION, about);
    heading(cli, &text, "Usage");
    text_add(&text, "  sifr COMMAND [ARGUMENT ...] [--section.key=value ...]\n");
    heading(cli, &text, "Commands");
    for (int i = 0; i < command_count; i++)
        text_printf(&text, "  %-16s %s\n", commands[i]->name, commands[i]->summary);
    for (int i = 0; i < page_command_count; i++)
        text_printf(&text, "  %-16s %s\n", page_commands[i].usage, page_commands[i].summary);
    heading(cli, &text, "Examples");
    text_add(&text, overview_examples);
    heading(cli, &text, "Exit codes");
    for (int i = 0; i < EXIT_CODE_COUNT; i++)
        text_printf(&text, "  %-3s %s\n", exit_codes[i].code, exit_codes[i].meaning);
    return show(cli, &text);
}

enum status help_version(struct cli *cli)
{
    console_line(cli->console, "sifr %s", SIFR_VERSION);
    return STATUS_OK;
}

/* --- one command ---------------------------------------------------------------------------- */

/* Paragraphs, which end with a blank line, broken to `width` columns; their own line breaks are spaces. */
static void wrap(struct text *text, const char *words, int width)
{
    int at = 0;
    while (*words) {
        int bytes = (int)strcspn(words, " \n");
        const char *separator = at == 0 ? "" : at + 1 + bytes > width ? "\n" : " ";
        at = *separator == ' ' ? at + 1 + bytes : bytes;
        text_printf(text, "%s%.*s", separator, bytes, words);
        words += bytes;
        if (strncmp(words, "\n\n", 2) == 0) {
            text_add(text, "\n\n");
            at = 0;
        }
        words += strspn(words, " \n");
    }
    text_add(text, "\n");
}

enum status help_command(struct cli *cli, const struct command_call *call)
{
    const struct command *command = call->command;
    struct text text;
    text_init(&text, cli->env);
    text_printf(&text, "%ssifr %s%s: %s\n", console_style(cli->console, STYLE_BOLD), command->name,
                console_style(cli->console, STYLE_PLAIN), command->summary);
    heading(cli, &text, "Usage");
    text_printf(&text, "  sifr %s %s\n\n", command->name, command->usage);
    wrap(&text, command->description, page_width(cli));
    heading(cli, &text, "Examples");
    text_add(&text, command->examples);
    text_add(&text, "\n");
    options_print_help(call->options, &text, page_width(cli));
    return show(cli, &text);
}

enum status help_page(struct cli *cli, const struct page_command *page)
{
    struct text text;
    text_init(&text, cli->env);
    text_printf(&text, "%ssifr %s%s: %s\n", console_style(cli->console, STYLE_BOLD), page->name,
                console_style(cli->console, STYLE_PLAIN), page->summary);
    heading(cli, &text, "Usage");
    text_printf(&text, "  sifr %s\n", page->usage);
    heading(cli, &text, "Examples");
    text_add(&text, page->examples);
    return show(cli, &text);
}

/* --- man page ------------------------------------------------------------------------------- */

/* Text as troff shows it: no escapes, hyphens as minus signs, no requests at the start of a
 * line. */
static void troff(struct text *text, const char *string)
{
    for (const char *s = string; *s; s++) {
        bool line_start = s == string || s[-1] == '\n';
        if (line_start && (*s == '.' || *s == '\''))
            text_add(text, "\\&");
        if (*s == '\\')
            text_add(text, "\\e");
        else if (*s == '-')
            text_add(text, "\\-");
        else
            text_add_bytes(text, s, 1);
    }
}

static void man_entry(struct text *text, const char *term, const char *meaning)
{
    text_add(text, ".TP\n\\fB");
    troff(text, term);
    text_add(text, "\\fR\n");
    troff(text, meaning);
    text_add(text, "\n");
}

static void man_example(struct text *text, const char *lines)
{
    text_add(text, ".PP\n.nf\n");
    troff(text, lines);
    text_add(text, ".fi\n");
}

static enum status man_command(struct cli *cli, const struct command *command, struct text *text)
{
    struct command_call call;
    struct text options;
    TRY(command_open(cli->env, command, &call));
    text_add(text, ".SH \"SIFR ");
    for (const char *s = command->name; *s; s++)
        text_printf(text, "%c", toupper((unsigned char)*s));
    text_printf(text, "\"\n\\fBsifr %s\\fR ", command->name);
    troff(text, command->usage);
    text_add(text, "\n.PP\n");
    troff(text, command->description);
    man_example(text, command->examples);
    /* The groups of options come as subsections of this command, without their own section's
     * line. */
    text_init(&options, cli->env);
    options_print_man(call.options, &options);
    const char *body = strchr(text_string(&options), '\n');
    text_add(text, body ? body + 1 : "");
    if (options.status != STATUS_OK)
        text->status = options.status;
    text_free(&options);
    command_close(cli->env, &call);
    return STATUS_OK;
}

enum status help_man(struct cli *cli)
{
    struct text text;
    text_init(&text, cli->env);
    text_printf(&text, ".TH SIFR 1 \"\" \"sifr %s\" \"User Commands\"\n.SH NAME\nsifr \\- ",
                SIFR_VERSION);
    troff(&text, about);
    text_add(&text, "\n.SH SYNOPSIS\n\\fBsifr\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...] "
                    "[\\fB\\-\\-section.key=\\fR\\fIvalue\\fR ...]\n.SH COMMANDS\n");
    for (int i = 0; i < command_count; i++)
        man_entry(&text, commands[i]->name, commands[i]->summary);
    for (int i = 0; i < page_command_count; i++)
        man_entry(&text, page_commands[i].usage, page_commands[i].summary);
    text_add(&text, ".SH EXAMPLES\n");
    man_example(&text, overview_examples);
    for (int i = 0; i < command_count; i++) {
        enum status st = man_command(cli, commands[i], &text);
        if (st != STATUS_OK) {
            text_free(&text);
            return st;
        }
    }
    text_add(&text, ".SH \"EXIT STATUS\"\n");
    for (int i = 0; i < EXIT_CODE_COUNT; i++)
        man_entry(&text, exit_codes[i].code, exit_codes[i].meaning);
    text_add(&text,
             ".SH ENVIRONMENT\nEvery key is also an environment variable: "
             "\\fBSIFR_TRAIN_STEPS\\fR for \\fBtrain.steps\\fR. It overrides a "
             "configuration file; a flag overrides it. \\fBNO_COLOR\\fR turns colours off.\n");
    return show(cli, &text);
}

/* --- reference ------------------------------------------------------------------------------ */

static const char reference_start[] =
    "# Reference\n\n"
    "<!-- Written by `sifr man --markdown`; do not edit. To update: `sifr man --markdown > "
    "docs/reference.md` -->\n\n"
    "Every configuration key and every command. `sifr man --markdown` writes this page from the "
    "tables that parse the\noptions.\n\n"
    "## Configuration keys\n\n"
    "A key can be set in three ways; each overrides the ones before it:\n\n"
    "| where | example |\n|---|---|\n"
    "| configuration file | `train:` and, indented below it, `steps: 2000` |\n"
    "| environment | `SIFR_TRAIN_STEPS=2000` |\n"
    "| command line | `--train.steps=2000` |\n\n"
    "Integers may be written `2k`, `4M`, `1G`, `1e9` or `1_000`. A boolean key is a flag: "
    "`--data.special`, `--no-checkpoint.async`.\n"
    "Run folders contain the resolved configuration of their run in `config.yaml`.\n\n";

/* Lines without their indent of two columns, as a block of shell commands. */
static void reference_examples(struct text *text, const char *lines)
{
    text_add(text, "```sh\n");
    while (*lines) {
        lines += strncmp(lines, "  ", 2) == 0 ? 2 : 0;
        size_t bytes = strcspn(lines, "\n") + 1;
        text_add_bytes(text, lines, bytes);
        lines += bytes;
    }
    text_add(text, "```\n\n");
}

static enum status reference_command(struct cli *cli, const struct command *command, int all_keys,
                                     struct text *text)
{
    struct command_call call;
    const char *title;
    TRY(command_open(cli->env, command, &call));
    text_printf(text, "### sifr %s\n\n`sifr %s %s`\n\n%c%s.\n\n%s\n", command->name, command->name,
                command->usage, toupper((unsigned char)command->summary[0]), command->summary + 1,
                command->description);
    reference_examples(text, command->examples);
    for (int next = 0; (title = options_next_title(call.options, OPTIONS_FLAGS, &next));) {
        if (strcmp(title, COMMAND_GENERAL) != 0)
            options_print_markdown(call.options, OPTIONS_FLAGS, title, text);
    }
    int keys = options_count_keys(call.options);
    if (keys == all_keys)
        text_add(text, "Also takes every [configuration key](#configuration-keys).\n\n");
    else if (keys > 0)
        options_print_markdown(call.options, OPTIONS_KEYS, NULL, text);
    command_close(cli->env, &call);
    return STATUS_OK;
}

static enum status reference(struct cli *cli, struct text *text)
{
    struct command_call train;
    const char *title;
    text_add(text, reference_start);
    TRY(command_open(cli->env, &command_train, &train));
    for (int next = 0; (title = options_next_title(train.options, OPTIONS_KEYS, &next));) {
        text_printf(text, "### %c%s\n\n", toupper((unsigned char)title[0]), title + 1);
        options_print_markdown(train.options, OPTIONS_KEYS, title, text);
    }
    int all_keys = options_count_keys(train.options);
    text_add(text, "## Commands\n\n| command | purpose |\n|---|---|\n");
    for (int i = 0; i < command_count; i++)
        text_printf(text, "| [`sifr %s`](#sifr-%s) | %s |\n", commands[i]->name, commands[i]->name,
                    commands[i]->summary);
    for (int i = 0; i < page_command_count; i++)
        text_printf(text, "| [`sifr %s`](#sifr-%s) | %s |\n", page_commands[i].name,
                    page_commands[i].name, page_commands[i].summary);
    text_add(text, "\nEvery command also takes:\n\n");
    options_print_markdown(train.options, OPTIONS_FLAGS, COMMAND_GENERAL, text);
    command_close(cli->env, &train);
    for (int i = 0; i < command_count; i++)
        TRY(reference_command(cli, commands[i], all_keys, text));
    for (int i = 0; i < page_command_count; i++) {
        text_printf(text, "### sifr %s\n\n`sifr %s`\n\n", page_commands[i].name,
                    page_commands[i].usage);
        reference_examples(text, page_commands[i].examples);
    }
    text_add(text, "## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (int i = 0; i < EXIT_CODE_COUNT; i++)
        text_printf(text, "| %s | %s |\n", exit_codes[i].code, exit_codes[i].meaning);
    return STATUS_OK;
}

enum status help_reference(struct cli *cli)
{
    struct text text;
    text_init(&text, cli->env);
    enum status st = reference(cli, &text);
    if (st == STATUS_OK)
        return show(cli, &text);
    text_free(&text);
    return st;
}

/* --- completion ----------------------------------------------------------------------------- */

static enum status completion_case(struct cli *cli, const struct command *command,
                                   struct text *text)
{
    struct command_call call;
    struct text flags;
    TRY(command_open(cli->env, command, &call));
    text_init(&flags, cli->env);
    options_print_flags(call.options, &flags);
    text_printf(text, "    %s) words=\"", command->name);
    for (const char *s = text_string(&flags); *s; s++)
        text_add_bytes(text, *s == '\n' ? " " : s, 1);
    text_add(text, "\" ;;\n");
    if (flags.status != STATUS_OK)
        text->status = flags.status;
    text_free(&flags);
    command_close(cli->env, &call);
    return STATUS_OK;
}

enum status help_completion_bash(struct cli *cli)
{
    struct text text;
    text_init(&text, cli->env);
    text_add(&text, "# bash completion for sifr: source <(sifr completion bash)\n"
                    "_sifr() {\n"
                    "    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
                    "    if ((COMP_CWORD == 1)); then\n"
                    "        COMPREPLY=($(compgen -W \"--help --version");
    for (int i = 0; i < command_count; i++)
        text_printf(&text, " %s", commands[i]->name);
    for (int i = 0; i < page_command_count; i++)
        text_printf(&text, " %s", page_commands[i].name);
    text_add(&text, "\" -- \"$cur\"))\n"
                    "        return\n"
                    "    fi\n"
                    "    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < command_count; i++) {
        enum status st = completion_case(cli, commands[i], &text);
        if (st != STATUS_OK) {
            text_free(&text);
            return st;
        }
    }
    text_add(&text, "    help) words=\"");
    for (int i = 0; i < command_count; i++)
        text_printf(&text, "%s ", commands[i]->name);
    text_add(&text, "\" ;;\n"
                    "    completion) words=bash ;;\n"
                    "    man) words=--markdown ;;\n"
                    "    esac\n"
                    "    if [[ $cur == -* || ${COMP_WORDS[1]} == @(help|completion) ]]; then\n"
                    "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                    "        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n"
                    "    fi\n"
                    "}\n"
                    "complete -o default -F _sifr sifr\n");
    return show(cli, &text);
}
