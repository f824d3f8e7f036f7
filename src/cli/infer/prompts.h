/* prompts -- the prompts of `sifr sample --prompts`: one per line, as plain text, or as JSON objects
 * with settings of their own.
 *
 *     The quick brown fox
 *
 *     {"prompt": "The quick", "tokens": 20, "temperature": 0, "seed": 7}
 *
 * If the first line begins with "{", every line is an object. All lines are checked before a text is
 * generated: an error names the file and the line.
 */
#ifndef CLI_PROMPTS_H
#define CLI_PROMPTS_H
#include "base/text.h"
#include "train/generate.h"

/* What the file is called in messages; "-" is the standard input. */
const char *prompts_name(const char *path);

/* Read the whole file, or the standard input, into `text`. */
enum status prompts_read(struct env *env, const char *path, struct text *text);

struct prompts { /* open; all zero: none */
    struct env *env;
    struct generate_config *items; /* their prompts are owned */
    int64_t count;
};
/* What a line does not say is taken from `defaults`. The caller frees *prompts. */
enum status prompts_parse(struct env *env, const char *path, const struct text *text,
                          const struct generate_config *defaults, struct prompts *prompts);
void prompts_free(struct prompts *prompts); /* all zero is fine */

#endif
