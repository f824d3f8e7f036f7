/* command_line -- the command that a user would type to resume a run. */
#ifndef CLI_COMMAND_LINE_H
#define CLI_COMMAND_LINE_H
#include "cli/command.h"

#define COMMAND_LINE_VARIABLE "SIFR_LAUNCH_COMMAND" /* set by a supervisor for its ranks */

/* Append a space and the word, quoted where a shell needs it. */
void command_line_add_word(struct text *text, const char *word);

/* Append this command without --fresh, as one line for a shell. Appends nothing under another
 * launcher, whose command line is not known. */
void command_line_again(const struct cli *cli, struct text *text);
/* Store the command line in the environment, for ranks that will be started. */
enum status command_line_hand_on(const struct cli *cli);

#endif
