/* command_line -- a command as a person would type it to go on with a run. */
#ifndef CLI_COMMAND_LINE_H
#define CLI_COMMAND_LINE_H
#include "cli/command.h"

#define COMMAND_LINE_VARIABLE "SIFR_LAUNCH_COMMAND" /* the supervisor's, for its ranks */

/* A word, and a space before it; in quotes where a shell would read something else. */
void command_line_add_word(struct text *text, const char *word);

/* This command without --fresh, in one line for a shell; "" = not known: somebody else has started
 * the ranks. */
void command_line_again(const struct cli *cli, struct text *text);
/* Put it in the environment of ranks that will be started. */
enum status command_line_hand_on(const struct cli *cli);

#endif
