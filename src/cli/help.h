/* help -- every page about the command itself, generated from the option tables: overview,
 * commands, man page, reference, completion. */
#ifndef CLI_HELP_H
#define CLI_HELP_H
#include "cli/command.h"

enum status help_overview(struct cli *cli);
enum status help_version(struct cli *cli);
enum status help_command(struct cli *cli, const struct command_call *call);
enum status help_page(struct cli *cli, const struct page_command *page);
enum status help_man(struct cli *cli);       /* troff with the man macros */
enum status help_reference(struct cli *cli); /* Markdown: docs/reference.md */
enum status help_completion_bash(struct cli *cli);

#endif
