/* plan_search_line -- the command that runs a layout, ready to be copied.
 *
 * It is the user's command with `train -n N` in place of `plan --gpus N`. Flags of plan are
 * dropped, and so are keys that have no effect in this layout, of which a run would warn (keys of a
 * configuration file stay, because the command names the file). Keys from the environment and the
 * open keys of the layout are added.
 */
#include <string.h>

#include "cli/command.h"
#include "cli/plan/plan_view.h"

/* --- keys --------------------------------------------------------------------------------- */

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
    /* plan sets train.micro_batch itself when it is open, so options_is_set cannot tell. */
    if (!view->space->fixed.micro_batch)
        text_printf(text, " --train.micro_batch=%lld", (long long)request->engine.micro_batch);
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
    key_word(view, text, "zero.accumulate", plan_search_sums(layout), "each");
    key_word(view, text, "engine.recompute", recompute_word(request->engine.recompute), "none");
    const struct zero_offload *offload = &request->zero.offload;
    char share[32];
    snprintf(share, sizeof share, "%g", offload->share);
    key_word(view, text, "offload.optimizer", far_words[offload->optimizer], "none");
    key_word(view, text, "offload.grads", far_words[offload->grads], "none");
    key_word(view, text, "offload.params", far_words[offload->params], "none");
    if (request->engine.activations != FAR_NONE && request->engine.activations_share < 1) {
        char kept[32];
        snprintf(kept, sizeof kept, "%g", request->engine.activations_share);
        key_word(view, text, "offload.activations_share", kept, "1");
    }
    if (offload->optimizer == FAR_NONE)
        return;
    key_word(view, text, "offload.share", share, "1");
    key_word(view, text, "offload.update", offload->on_host ? "host" : "device", "device");
    if (offload->window != view->space->request->zero.offload.window)
        key_int(view, text, "offload.window", offload->window, "");
}

/* --- the command -------------------------------------------------------------------------- */

/* Flags that only plan has, without their dashes; the first WITH_VALUE of them take a value. */
enum { WITH_VALUE = 10 };
static const char *const plans_own[] = {"gpus",        "node",  "memory",      "machine", "top",
                                        "noise-scale", "run",   "host-memory", "disk",    "html",
                                        "json",        "lines", "table1"};

static bool is_plans_own(const char *argument, bool *takes_next)
{
    if (strncmp(argument, "--", 2) != 0)
        return false;
    size_t bytes = strcspn(argument + 2, "=");
    for (size_t i = 0; i < sizeof plans_own / sizeof *plans_own; i++)
        if (strlen(plans_own[i]) == bytes && strncmp(argument + 2, plans_own[i], bytes) == 0) {
            *takes_next = argument[2 + bytes] == '\0' && i < WITH_VALUE;
            return true;
        }
    return false;
}

static bool takes_value(const char *key, size_t bytes)
{
    for (int i = 0; i < parallel_options.count; i++) {
        const struct option *option = &parallel_options.options[i];
        if (strlen(option->key) == bytes && strncmp(option->key, key, bytes) == 0)
            return option->type != OPTION_BOOL;
    }
    return false;
}

static bool is_useless(const struct parallel_config *layout, const char *argument, bool *takes_next)
{
    if (strncmp(argument, "--", 2) != 0)
        return false;
    size_t bytes = strcspn(argument + 2, "=");
    *takes_next = argument[2 + bytes] == '\0' && takes_value(argument + 2, bytes);
    return !spread_has_use(layout, argument + 2, bytes);
}

/* The user's arguments: those before "--", or those from "--" on. */
static void add_words(struct text *text, const struct cli *cli,
                      const struct parallel_config *layout, bool behind)
{
    bool ended = false;
    for (int i = 1; i < cli->argc; i++) {
        bool takes_next = false;
        ended = ended || strcmp(cli->argv[i], "--") == 0;
        if (!ended && (is_plans_own(cli->argv[i], &takes_next) ||
                       is_useless(layout, cli->argv[i], &takes_next)))
            i += takes_next;
        else if (ended == behind)
            command_line_add_word(text, cli->argv[i]);
    }
}

/* Keys from the environment: the run may be started in another one. */
static void add_variables(struct text *text, struct cli *cli, const struct options *options,
                          const struct parallel_config *layout)
{
    struct text word;
    const char *key, *value;
    int next = 0;
    text_init(&word, cli->env);
    while ((key = options_next_variable(options, &next, &value))) {
        if (!spread_has_use(layout, key, strlen(key)))
            continue;
        text_clear(&word);
        text_printf(&word, "--%s=%s", key, value);
        command_line_add_word(text, text_string(&word));
    }
    if (word.status != STATUS_OK && text->status == STATUS_OK)
        text->status = word.status;
    text_free(&word);
}

void plan_search_command(struct cli *cli, const struct plan_search_view *view,
                         const struct search_layout *layout, struct text *text)
{
    const struct parallel_config *parallel = &layout->request.parallel;
    text_printf(text, "sifr train -n %d", layout->request.ranks);
    add_words(text, cli, parallel, false);
    add_variables(text, cli, view->options, parallel);
    plan_search_keys(view, layout, text);
    add_words(text, cli, parallel, true);
}
