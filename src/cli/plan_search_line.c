/* plan_search_line -- the command that runs a layout, ready to be copied.
 *
 * It is the user's own command with `train -n N` for `plan --gpus N`: flags that only plan knows are
 * left out, and the keys of the layout that were open are put in.
 */
#include <ctype.h>
#include <string.h>

#include "cli/plan_search_view.h"

/* --- keys ----------------------------------------------------------------------------------------- */

static void key_word(const struct plan_search_view *view, struct text *text, const char *key,
                     const char *value, const char *by_default)
{
    if (!options_is_set(view->options, key) && strcmp(value, by_default) != 0)
        text_printf(text, " --%s=%s", key, value);
}

static void key_int(const struct plan_search_view *view, struct text *text, const char *key,
                    int64_t value, const char *by_default)
{
    char word[32];
    snprintf(word, sizeof word, "%lld", (long long)value);
    key_word(view, text, key, word, by_default);
}

/* plan itself gives a micro-batch where there is none: it is always said unless it was fixed. */
static void key_batch(const struct plan_search_view *view, struct text *text, int64_t value)
{
    if (!view->space->fixed.micro_batch)
        text_printf(text, " --train.micro_batch=%lld", (long long)value);
}

void plan_search_keys(const struct plan_search_view *view, const struct search_layout *layout,
                      struct text *text)
{
    const struct plan_request *request = &layout->request;
    const struct parallel_config *parallel = &request->parallel;
    if (view->device)
        text_printf(text, " --run.device=%s", view->device);
    if (view->threads > 0)
        text_printf(text, " --run.threads=%d", view->threads);
    if (!options_is_set(view->options, "train.global_batch"))
        text_printf(text, " --train.global_batch=%lld", (long long)view->space->global_batch);
    key_batch(view, text, request->engine.micro_batch);
    key_int(view, text, "parallel.tp", parallel->tp, "1");
    if (parallel->tp > 1) {
        key_word(view, text, "parallel.sequence", parallel->sequence ? "true" : "false", "false");
        key_word(view, text, "parallel.regather", parallel->regather ? "true" : "false", "false");
    }
    key_int(view, text, "parallel.pp", parallel->pp, "1");
    if (parallel->pp > 1)
        key_word(view, text, "parallel.schedule", timetable_words[parallel->schedule], "1f1b");
    if (parallel->pp > 1 && parallel->schedule == TIMETABLE_INTERLEAVED)
        key_int(view, text, "parallel.chunks", parallel->chunks, "0");
    key_int(view, text, "zero.stage", request->zero.stage, "0");
    key_int(view, text, "zero.shard_group", request->zero.shard_group, "0");
    key_word(view, text, "engine.recompute", search_recompute_word(request->engine.recompute),
             "none");
}

/* --- the line ------------------------------------------------------------------------------------- */

/* Flags of plan that a run does not have, without their dashes. */
static const char *const plans_own[] = {"gpus", "node", "memory", "machine", "top", "json"};

static bool is_plans_own(const char *argument, bool *takes_next)
{
    if (strncmp(argument, "--", 2) != 0)
        return false;
    size_t bytes = strcspn(argument + 2, "=");
    for (size_t i = 0; i < sizeof plans_own / sizeof *plans_own; i++)
        if (strlen(plans_own[i]) == bytes && strncmp(argument + 2, plans_own[i], bytes) == 0) {
            *takes_next = argument[2 + bytes] == '\0' && strcmp(plans_own[i], "json") != 0;
            return true;
        }
    return false;
}

/* As a shell reads it back. */
static void add_quoted(struct text *text, const char *word)
{
    bool plain = *word != '\0';
    for (const char *c = word; *c; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("-_=./:,+@%", *c));
    text_add(text, plain ? " " : " '");
    for (const char *c = word; *c; c++)
        if (*c == '\'')
            text_add(text, "'\\''");
        else
            text_add_bytes(text, c, 1);
    text_add(text, plain ? "" : "'");
}

void plan_search_command(struct cli *cli, const struct plan_search_view *view,
                         const struct search_layout *layout, struct text *text)
{
    text_printf(text, "sifr train -n %d", layout->request.ranks);
    for (int i = 1; i < cli->argc; i++) {
        bool takes_next = false;
        if (is_plans_own(cli->argv[i], &takes_next))
            i += takes_next;
        else
            add_quoted(text, cli->argv[i]);
    }
    plan_search_keys(view, layout, text);
}
