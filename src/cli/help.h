/* help -- every page about the command itself, all from the same tables: overview, command, man,
 * completion. */
#ifndef CLI_HELP_H
#define CLI_HELP_H
#include "cli/command.h"

enum status help_overview(struct cli *cli);
enum status help_version(struct cli *cli);
/* The line of a word that is no command of the list: "man"; false = there is none. */
bool help_other(struct cli *cli, const char *name);
enum status help_command(struct cli *cli, const struct command_call *call);
enum status help_man(struct cli *cli); /* troff with the man macros */
enum status help_completion_bash(struct cli *cli);

#endif
