/* command_line -- prints the command for the user to repeat. A supervisor starts its ranks with
 * extra arguments, so it passes its own command line to them in COMMAND_LINE_VARIABLE. */
#include "cli/command_line.h"
#include <stdlib.h>
#include <string.h>
#include "cli/rank_report.h"
#include "comm/launcher.h"

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

/* --fresh must not be repeated: it would start over. */
static bool is_fresh(const char *word)
{
    return strcmp(word, "--fresh") == 0 || strncmp(word, "--fresh=", 8) == 0;
}

static void print(const struct cli *cli, struct text *text)
{
    text_add(text, "sifr");
    for (int i = 0; i < cli->argc; i++) {
        if (!is_fresh(cli->argv[i]))
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
