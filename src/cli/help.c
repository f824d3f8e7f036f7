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

static const char about[] = "trains GPT-2 and Llama language models, in C, on one rank or many";

static const char overview_examples[] =
    "  sifr train configs/tiny.yaml --data.path=notes.txt     train a small model on a text file\n"
    "  sifr sample runs/tiny \"Once upon a time\"               let it write\n"
    "  sifr train --help                                      every key, with its default\n";

static const struct {
    const char *code, *meaning;
} exit_codes[] = {
    {"0", "done"},
    {"1", "failed, or ended at once; also a file that cannot be read, is empty or damaged"},
    {"2",
     "wrong usage or configuration; also a name where nothing is, settings that do not fit the "
     "data"},
    {"3", "training diverged, or a model gives numbers that are not finite"},
    {"4", "does not fit in memory"},
    {"75", "stopped by a signal or a limit: the same command goes on"},
};
enum { EXIT_CODE_COUNT = sizeof exit_codes / sizeof exit_codes[0] };

static const struct {
    const char *name, *usage, *summary, *examples;
} other_commands[] = {
    {"help", "help COMMAND", "the page of one command",
     "  sifr help train\n"
     "  sifr train --help                                  the same\n"},
    {"man", "man", "the manual page: sifr man | man -l -",
     "  sifr man | man -l -                                read it\n"
     "  sifr man > ~/.local/share/man/man1/sifr.1          from then on: man sifr\n"},
    {"completion", "completion bash", "for the shell: source <(sifr completion bash)",
     "  source <(sifr completion bash)                     in this shell\n"
     "  echo 'source <(sifr completion bash)' >> ~/.bashrc in every new one\n"},
};
enum { OTHER_COUNT = sizeof other_commands / sizeof other_commands[0] };

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
    for (int i = 0; i < OTHER_COUNT; i++)
        text_printf(&text, "  %-16s %s\n", other_commands[i].usage, other_commands[i].summary);
    heading(cli, &text, "Examples");
    text_add(&text, overview_examples);
    heading(cli, &text, "Exit codes");
    for (int i = 0; i < EXIT_CODE_COUNT; i++)
        text_printf(&text, "  %s  %s\n", exit_codes[i].code, exit_codes[i].meaning);
    return show(cli, &text);
}

enum status help_version(struct cli *cli)
{
    console_line(cli->console, "sifr %s", SIFR_VERSION);
    return STATUS_OK;
}

/* --- one command ---------------------------------------------------------------------------- */

enum status help_command(struct cli *cli, const struct command_call *call)
{
    const struct command *command = call->command;
    struct text text;
    text_init(&text, cli->env);
    text_printf(&text, "%ssifr %s%s: %s\n", console_style(cli->console, STYLE_BOLD), command->name,
                console_style(cli->console, STYLE_PLAIN), command->summary);
    heading(cli, &text, "Usage");
    text_printf(&text, "  sifr %s %s\n\n%s", command->name, command->usage, command->description);
    heading(cli, &text, "Examples");
    text_add(&text, command->examples);
    text_add(&text, "\n");
    options_print_help(call->options, &text, page_width(cli));
    return show(cli, &text);
}

static void show_other(struct cli *cli, int i)
{
    struct text text;
    text_init(&text, cli->env);
    text_printf(&text, "%ssifr %s%s: %s\n", console_style(cli->console, STYLE_BOLD),
                other_commands[i].name, console_style(cli->console, STYLE_PLAIN),
                other_commands[i].summary);
    heading(cli, &text, "Usage");
    text_printf(&text, "  sifr %s\n", other_commands[i].usage);
    heading(cli, &text, "Examples");
    text_add(&text, other_commands[i].examples);
    show(cli, &text);
}

bool help_other(struct cli *cli, const char *name)
{
    for (int i = 0; i < OTHER_COUNT; i++) {
        if (strcmp(other_commands[i].name, name) == 0) {
            show_other(cli, i);
            return true;
        }
    }
    return false;
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
    for (int i = 0; i < OTHER_COUNT; i++)
        man_entry(&text, other_commands[i].usage, other_commands[i].summary);
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
    text_add(&text, ".SH ENVIRONMENT\nEvery key is also a variable: \\fBSIFR_TRAIN_STEPS\\fR for "
                    "\\fBtrain.steps\\fR. It stands against a file and yields to a flag. "
                    "\\fBNO_COLOR\\fR turns colours off.\n");
    return show(cli, &text);
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
    text_add(&text, " help completion man\" -- \"$cur\"))\n"
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
                    "    esac\n"
                    "    if [[ $cur == -* || ${COMP_WORDS[1]} == @(help|completion) ]]; then\n"
                    "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                    "        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n"
                    "    fi\n"
                    "}\n"
                    "complete -o default -F _sifr sifr\n");
    return show(cli, &text);
}
