/* command -- what a word after `sifr` stands for, and what every command is handed.
 *
 * A command says what it takes as option tables (bind) and what it does (run). Help, man page,
 * completion and parsing are made from that by help.c and main.c, so a command cannot have an
 * option that its help does not show.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include <signal.h>
#include "base/options.h"
#include "cli/console.h"

/* What the first signal is answered with, at once: while steps are made, and before; with what the
 * first Ctrl-C adds; and the second. */
#define CLI_STOPPING       "stopping after this step, and all of it will be saved"
#define CLI_STOPPING_EARLY "stopping before the first step"
#define CLI_AGAIN          "; Ctrl-C again to stop at once"
#define CLI_ENDED          "ended at once"
#define CLI_ENDED_SAVED    CLI_ENDED "; all was saved before: the same command goes on"

/* Sooner than this after the first Ctrl-C, another is the same one: timeout(1) sends it to the process
 * and to its group. */
enum { CLI_SAME_CTRL_C_MS = 100 };

struct cli {
    struct env *env;
    struct console *console;
    const volatile sig_atomic_t *stop; /* not 0: end in good order */
    volatile sig_atomic_t *stepping;   /* set: steps are under way, and a stop waits for one */
    volatile sig_atomic_t *saved; /* set: whoever ends the process now loses nothing; or NULL */
    int argc;                     /* the command's name and what follows it */
    char *const *argv;
    /* A stop that has been asked for, or will be, must come on: after `seconds` without progress the process
     * ends. 0 = it may take any time. */
    void (*watch)(struct cli *cli, int rank, double seconds);
    /* End the process though threads of it run on and hold what is theirs: after a failure that has
     * been said, when a rank does not come back. Does not return. */
    void (*quit)(struct cli *cli, enum status st);
};

struct command {
    const char *name;
    const char *usage;       /* what follows the name: "[FILE.yaml] [--section.key=value ...]" */
    const char *summary;     /* one line, lower case, no full stop */
    const char *description; /* sentences; a newline ends a paragraph's line */
    const char *examples;    /* lines */
    size_t settings_bytes;   /* of the struct that bind and run get; zeroed */
    int least_words, most_words;
    bool config_file; /* the first word is a YAML file with the configuration */
    bool graceful;    /* signals only ask it to stop; otherwise they end it ... */
    bool says_end;    /* ... in words, as they do where it has several ranks */
    enum status (*bind)(struct options *options, void *settings);
    enum status (*run)(struct cli *cli, struct options *options, void *settings,
                       const char *const *words, int word_count);
};

extern const struct command command_train, command_plan, command_eval, command_sample,
    command_tokenize, command_export, command_inspect, command_bench, command_doctor;

extern const struct command *const commands[];
extern const int command_count;
const struct command *command_find(const char *name); /* NULL = no such command */

/* Words after `sifr` that print a page about the command itself (help.c). They have no option tables. */
struct page_command {
    const char *name, *usage, *summary, *examples;
    int most_words; /* after the name */
};
extern const struct page_command page_commands[];
extern const int page_command_count;
const struct page_command *page_command_find(const char *name); /* NULL = no such page */

/* FAIL with the nearest command's name; STATUS_USAGE. */
enum status command_unknown(struct env *env, const char *name);

/* An options object with the command's tables and those that every command has; `settings` is
 * the command's struct. Both are freed by command_close. */
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

#endif
