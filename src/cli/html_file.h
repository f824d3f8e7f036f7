/* html_file -- files that commands write as pages of HTML. A page says which command made it; one
 * that another program made is never replaced. */
#ifndef CLI_HTML_FILE_H
#define CLI_HTML_FILE_H
#include "base/env.h"

/* In the first bytes of a page of `command`, a string literal: "plan" */
#define HTML_MADE_BY(command) "<meta name=\"generator\" content=\"sifr " command "\">"

/* Refuse a name that cannot be written to, or that belongs to a file that is no page of the
 * command. `flag` is the flag that has named it. Call it before the work. */
enum status html_file_check(struct env *env, const char *flag, const char *path,
                            const char *command);

#endif
