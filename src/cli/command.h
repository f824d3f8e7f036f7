/* command -- the description of a command, and the context that every command receives.
 *
 * A command declares its options as tables (bind) and its work as a function (run). help.c and
 * main.c generate help, man page, reference, completion and parsing from the tables, so a command
 * cannot have an option that its help does not show.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include <signal.h>
#include "base/options.h"
#include "cli/console.h"

/* Answers to the first signal are up to the command (stop_words). This is the addition for Ctrl-C;
 * and the answers to the second one. */
#define CLI_AGAIN       "; press Ctrl-C again to terminate immediately"
#define CLI_ENDED       "terminated by a signal"
#define CLI_ENDED_SAVED CLI_ENDED " after everything was saved; rerun the same command to resume"
#define CLI_ENDED_UNSAVED \
    CLI_ENDED " after the last step, which is not saved (checkpoint.final: false)"

/* A SIGINT within this time counts as the same one: timeout(1) sends it to the process and to its
 * group. */
enum { CLI_SAME_CTRL_C_MS = 100 };

/* What a stop does now. */
enum cli_stepping {
    CLI_NOT_STEPPING,
    CLI_STEPPING,         /* it waits for the current step and saves */
    CLI_STEPPING_UNSAVED, /* it waits for the current step */
    CLI_STEPPINGS
};

struct cli {
    struct env *env;
    struct console *console;
    const volatile sig_atomic_t *stop; /* not 0 = stop gracefully */
    const char *const *stop_words;     /* of the command */
    volatile sig_atomic_t *stepping;   /* enum cli_stepping */
    volatile sig_atomic_t *saved; /* set = all is saved, terminating loses nothing; may be NULL */
    int argc;                     /* argv[0] is the name of the command */
    char *const *argv;
    /* Limit how long a stop may take, now or later: after `seconds` without progress the process
     * exits. 0 = no limit. */
    void (*watch)(struct cli *cli, int rank, double seconds);
    /* Exit the process while other threads still run: after a reported failure, when a rank that is
     * a thread does not return. Does not return. */
    void (*quit)(struct cli *cli, enum status st);
};

struct command {
    const char *name;
    const char *usage;       /* after the name: "[FILE.yaml] [--section.key=value ...]" */
    const char *summary;     /* one line, lower case, no full stop */
    const char *description; /* sentences; a blank line ends a paragraph; help wraps the lines */
    const char *examples;    /* lines */
    size_t settings_bytes;   /* size of the struct for bind and run; starts zeroed */
    int least_words, most_words;
    bool config_file; /* the first word is a YAML file with the configuration */
    /* Signals ask it to stop, and the first is answered with one of these words, by enum
     * cli_stepping. NULL = signals terminate it ... */
    const char *const *stop_words;
    bool says_end; /* ... and a line says so, as a supervisor of several ranks does */
    const struct option_table *flags; /* COMMAND_FLAGS; bound to the settings */
    /* Bind further tables; may be NULL. */
    enum status (*bind)(struct options *options, void *settings);
    enum status (*run)(struct cli *cli, struct options *options, void *settings,
                       const char *const *words, int word_count);
};

extern const char *const command_stop_train[CLI_STEPPINGS]; /* stop_words of commands that train */

enum { COMMAND_MOST_RANKS = 65536 }; /* of -n */

/* A struct option begins with the flag --word, which is stored in a field of struct `settings`. */
#define COMMAND_FLAG(word, settings, field, kind)          \
    .key = word, .type = OPTION_##kind, .flag_only = true, \
    .offset = offsetof(struct settings, field)
#define COMMAND_RANGE(low, high) .ranged = true, .min = (low), .max = (high)
#define COMMAND_FLAGS(title, list)                  \
    &(const struct option_table)                    \
    {                                               \
        title, list, sizeof(list) / sizeof(list)[0] \
    }

extern const struct command command_train, command_plan, command_eval, command_sample,
    command_tokenize, command_export, command_inspect, command_bench, command_doctor, command_batch;

extern const struct command *const commands[];
extern const int command_count;
const struct command *command_find(const char *name); /* NULL = no such command */

/* Words after `sifr` that print a page about the command itself (help.c). They have no option
 * tables. */
struct page_command {
    const char *name, *usage, *summary, *examples;
    int most_words; /* after the name */
};
extern const struct page_command page_commands[];
extern const int page_command_count;
const struct page_command *page_command_find(const char *name); /* NULL = no such page */

/* FAIL with the nearest command's name; STATUS_USAGE. */
enum status command_unknown(struct env *env, const char *name);

/* One call of a command: an options object with its tables and the general options, and its
 * settings. command_close frees both. */
#define COMMAND_GENERAL "general" /* title of the options that every command has */
struct command_general {
    bool help, verbose;
};
struct command_call {
    const struct command *command;
    struct options *options;
    void *settings;
    struct command_general general;
};
enum status command_open(struct env *env, const struct command *command, struct command_call *call);
void command_close(struct env *env, struct command_call *call);
/* Load the arguments after the command's name, the configuration file among them, and the
 * environment. The arguments that are no flags go to `words`, which has room for argc. */
enum status command_load(struct env *env, struct command_call *call, int argc, char *const *argv,
                         const char **words, int *word_count);

/* --- help.c: pages about the command itself, from the option tables --------------------------- */

enum status help_overview(struct cli *cli);
enum status help_version(struct cli *cli);
enum status help_command(struct cli *cli, const struct command_call *call);
enum status help_page(struct cli *cli, const struct page_command *page);
enum status help_man(struct cli *cli);       /* troff with the man macros */
enum status help_reference(struct cli *cli); /* Markdown: docs/reference.md */
enum status help_completion_bash(struct cli *cli);

/* --- the command that a user would type to resume a run --------------------------------------- */

#define COMMAND_LINE_VARIABLE "SIFR_LAUNCH_COMMAND" /* set by a supervisor for its ranks */

/* Append a space and the word, quoted where a shell needs it. */
void command_line_add_word(struct text *text, const char *word);

/* Append this command without --fresh, as one line for a shell. Appends nothing under another
 * launcher, whose command line is not known. */
void command_line_again(const struct cli *cli, struct text *text);
/* Store the command line in the environment, for ranks that will be started. */
enum status command_line_hand_on(const struct cli *cli);

#endif
