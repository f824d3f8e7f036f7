/* plan_search_view -- prints a row for each layout, then the traffic of the best one, why it is
 * best, and the command that runs it. */
#include "cli/plan/plan_view.h"
#include <stdio.h>
#include "cli/json_out.h"

/* --- figures ------------------------------------------------------------------------------ */

static double tokens_of(const struct plan_search_view *view)
{
    return (double)(view->space->global_batch * view->space->request->engine.tokens);
}

/* Share of the peak rate of all ranks; 0 = not known. */
static double mfu_of(const struct plan_search_view *view, const struct search_layout *layout)
{
    double peak = view->peak * view->space->request->ranks;
    if (peak <= 0)
        return 0;
    return tokens_of(view) * view->result->flops_per_token / layout->time.step / peak;
}

char *plan_search_seconds(char out[32], double seconds)
{
    if (seconds < 60)
        snprintf(out, 32, seconds < 1 ? "%.3g ms" : "%.3g s",
                 seconds < 1 ? seconds * 1e3 : seconds);
    else
        text_human_seconds(out, seconds);
    return out;
}

static char *say_schedule(char out[32], const struct plan_request *request)
{
    const struct parallel_config *parallel = &request->parallel;
    const char *word = timetable_words[parallel->schedule];
    if (parallel->pp < 2)
        snprintf(out, 32, "-");
    else if (spread_chunks(parallel) > 1)
        snprintf(out, 32, "%s %d", word, spread_chunks(parallel));
    else
        snprintf(out, 32, "%s", word);
    return out;
}

/* "host 0.25 + grads": the share of the optimizer state; "-" = none. A place is named once. */
enum { OFFLOAD_WORDS = 48 };
static char *say_offload(char out[OFFLOAD_WORDS], const struct plan_request *request)
{
    const struct zero_offload *offload = &request->zero.offload;
    const struct {
        const char *what;
        enum far_kind kind;
    } others[] = {{"grads", offload->grads}, {"params", offload->params}};
    enum far_kind before = offload->optimizer;
    int n = snprintf(out, OFFLOAD_WORDS, "-");
    if (offload->optimizer != FAR_NONE)
        n = snprintf(out, OFFLOAD_WORDS, "%s %.3g", far_words[before], offload->share);
    for (int i = 0; i < 2; i++) {
        enum far_kind kind = others[i].kind;
        if (kind == FAR_NONE)
            continue;
        n = before == FAR_NONE ? 0 : n;
        n += snprintf(out + n, (size_t)(OFFLOAD_WORDS - n), "%s%s%s%s", n > 0 ? " + " : "",
                      others[i].what, kind == before ? "" : " ",
                      kind == before ? "" : far_words[kind]);
        before = kind;
    }
    return out;
}

/* Whether any layout may have left the device. */
static bool shows_offload(const struct plan_search_view *view)
{
    const struct search_space *space = view->space;
    return plan_is_offloaded(space->request) || space->host > 0 || space->disk > 0;
}

const char *plan_search_sums(const struct search_layout *layout)
{
    return layout->request.zero.local ? "local" : "each";
}

void plan_search_say(const struct search_layout *layout, struct text *text)
{
    const struct plan_request *request = &layout->request;
    char word[OFFLOAD_WORDS];
    text_printf(text, "tp %d, pp %d, dp %d, stage %d, micro-batch %lld, recompute %s",
                (int)request->parallel.tp, (int)request->parallel.pp, layout->dp,
                request->zero.stage, (long long)request->engine.micro_batch,
                recompute_word(request->engine.recompute));
    if (request->parallel.pp > 1)
        text_printf(text, ", %s", say_schedule(word, request));
    if (request->zero.local)
        text_add(text, ", local sums");
    if (plan_is_offloaded(request))
        text_printf(text, ", offload %s", say_offload(word, request));
}

/* --- the table ---------------------------------------------------------------------------- */

/* Keys that the user set, which are the same in every layout. */
static void describe_given(struct text *text, const struct search_fixed *fixed)
{
    const struct {
        bool given;
        const char *key;
    } keys[] = {{fixed->tp, "parallel.tp"},
                {fixed->pp, "parallel.pp"},
                {fixed->sequence, "parallel.sequence"},
                {fixed->regather, "parallel.regather"},
                {fixed->schedule, "parallel.schedule"},
                {fixed->chunks, "parallel.chunks"},
                {fixed->stage, "zero.stage"},
                {fixed->shard_group, "zero.shard_group"},
                {fixed->accumulate, "zero.accumulate"},
                {fixed->micro_batch, "train.micro_batch"},
                {fixed->recompute, "engine.recompute"},
                {fixed->offload.optimizer, "offload.optimizer"},
                {fixed->offload.grads, "offload.grads"},
                {fixed->offload.params, "offload.params"},
                {fixed->offload.share, "offload.share"}};
    const char *before = "fixed    ";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].given) {
            text_printf(text, "%s%s", before, keys[i].key);
            before = ", ";
        }
    if (before[0] == ',')
        text_add(text, "\n");
}

/* Warn when the profile was measured with other ranks or threads than planned. */
static void describe_measured(struct text *text, const struct plan_search_view *view)
{
    const struct machine_profile *machine = view->space->machine;
    const struct plan_request *request = view->space->request;
    int ranks = request->ranks, threads = machine->ops_ranks.threads;
    bool measured = machine->ops_ranks.ranks == ranks && machine->comm_ranks.ranks == ranks;
    if (view->alone && ranks > 1 && !measured)
        text_printf(text,
                    "note     assuming that %d ranks on one machine are each as fast as measured "
                    "with other "
                    "ranks;\n"
                    "         to measure it: sifr bench with -n %d\n",
                    ranks, ranks);
    if (!request->gpu && threads > 0 && threads != request->threads)
        text_printf(
            text,
            "note     run.threads=%d, but the profile was measured with %d; to measure it: sifr "
            "bench ops --threads=%d\n",
            request->threads, threads, request->threads);
}

/* What moves at an unknown rate takes no time. */
static void describe_rates(struct text *text, const struct plan_search_view *view)
{
    const struct search_space *space = view->space;
    const struct machine_offload *rates = &space->machine->offload;
    const struct zero_offload *asked = &space->request->zero.offload;
    bool disk = space->disk > 0 || asked->optimizer == FAR_DISK || asked->grads == FAR_DISK ||
                asked->params == FAR_DISK;
    bool unknown = (space->request->gpu && rates->link == 0) ||
                   (disk && (rates->disk_read == 0 || rates->disk_write == 0));
    if ((shows_offload(view) || plan_moves_anything(space->request)) && unknown)
        text_printf(text,
                    "note     the profile %s has no rates of offload, which takes no time then; to "
                    "measure them: sifr bench ops --save\n",
                    space->machine->name);
}

void plan_search_describe(const struct plan_search_view *view, struct text *text)
{
    const struct search_space *space = view->space;
    const struct search_result *result = view->result;
    const struct model_config *model = &space->request->model;
    const struct plan_room room = {space->memory, space->host, space->disk};
    char a[32], b[32], c[PLAN_VIEW_MEMORY];
    text_printf(text, "model    %lld layer%s, width %lld, %lld head%s: %s parameters, in %s\n",
                (long long)model->layers, model->layers == 1 ? "" : "s", (long long)model->width,
                (long long)model->heads, model->heads == 1 ? "" : "s",
                text_human_count(a, (double)result->parameters),
                dtype_name(space->request->zero.type));
    text_printf(text, "cluster  %d rank%s on nodes of %d, %s%s%s", space->request->ranks,
                space->request->ranks == 1 ? "" : "s", space->node, space->machine->name,
                view->machine_words[0] ? ": " : "", view->machine_words);
    if (space->memory > 0)
        text_printf(text, "; %s (%s bytes) per rank%s", text_human_bytes(a, (double)space->memory),
                    text_human_count(b, (double)space->memory),
                    plan_view_elsewhere(&room, &room, c));
    text_add(text, "\n");
    plan_view_prices(view->config, space->request, "scratch memory and times are", text);
    text_printf(text, "step     %lld sequence%s of %lld tokens\n", (long long)space->global_batch,
                space->global_batch == 1 ? "" : "s", (long long)space->request->engine.tokens);
    text_printf(
        text,
        "search   %lld layouts: %lld do not fit, %lld cannot be faster, %lld simulated; %.1f "
        "s\n",
        (long long)result->possible, (long long)result->too_large, (long long)result->bounded,
        (long long)result->timed, view->seconds);
    describe_given(text, &space->fixed);
    if (space->request->gpu && space->request->zero.type == DTYPE_F32)
        text_add(text, "note     precision.mode is fp32; GPUs are faster in bf16\n");
    /* Without train.global_batch a step has one micro-batch, which says little about a cluster. */
    if (!options_is_set(view->options, "train.global_batch"))
        text_printf(
            text, "note     train.global_batch is not set: planned for %lld sequence%s per step\n",
            (long long)space->global_batch, space->global_batch == 1 ? "" : "s");
    if (space->memory == 0)
        text_printf(text,
                    "note     the profile %s has memory_bytes 0: every layout fits; set --memory "
                    "to the memory "
                    "of a rank\n",
                    space->machine->name);
    describe_measured(text, view);
    describe_rates(text, view);
}

static void row(struct text *text, const struct plan_search_view *view, int i)
{
    const struct search_layout *layout = &view->result->layouts[i];
    const struct plan_request *request = &layout->request;
    const struct plan_time *time = &layout->time;
    char stage[16], batch[32], word[OFFLOAD_WORDS], share[16];
    snprintf(stage, sizeof stage, request->zero.shard_group > 0 ? "%d/%d" : "%d",
             request->zero.stage, request->zero.shard_group);
    snprintf(batch, sizeof batch, "%lld x %lld", (long long)layout->rounds,
             (long long)request->engine.micro_batch);
    text_printf(text, "%2d %3d %4d %5d %6s %12s  %-5s  %-9s  %-14s", i + 1,
                (int)request->parallel.tp, (int)request->parallel.pp, layout->dp, stage, batch,
                plan_search_sums(layout), recompute_word(request->engine.recompute),
                say_schedule(word, request));
    text_printf(text, "%10s", plan_search_seconds(word, time->step));
    text_printf(text, " %10s", text_human_count(word, tokens_of(view) / time->step));
    snprintf(share, sizeof share, "%.1f %%", 100 * mfu_of(view, layout));
    text_printf(text, " %7s", view->peak > 0 ? share : "-");
    text_printf(text, " %11s", text_human_bytes(word, (double)layout->needed_bytes));
    text_printf(text, " %5.1f %% %5.1f %%", 100 * time->bubble, 100 * plan_time_hidden(time));
    if (shows_offload(view))
        text_printf(text, "  %s", say_offload(word, request));
    text_add(text, "\n");
}

static void sent(struct text *text, const struct search_layout *layout)
{
    char word[32];
    bool any = false;
    text_add(text, "\ntraffic of a rank per step in layout 1:");
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++) {
        if (layout->time.sent[purpose] == 0)
            continue;
        text_printf(text, "%s %s %s", any ? "," : "", traffic_word((enum traffic_purpose)purpose),
                    text_human_bytes(word, (double)layout->time.sent[purpose]));
        any = true;
    }
    text_add(text, any ? "\n" : " nothing\n");
}

static void write_table(struct cli *cli, const struct plan_search_view *view, struct text *text)
{
    const struct search_result *result = view->result;
    plan_search_describe(view, text);
    if (result->count == 0)
        return;
    text_printf(text, "\n%s    tp   pp    dp  stage  micro-batch  sums   recompute  %-14s", //
                console_style(cli->console, STYLE_BOLD), "schedule");
    text_printf(text, "%10s %10s %7s %11s %7s %7s%s%s\n", "step", "tokens/s", "mfu", "memory",
                "idle", "hidden", shows_offload(view) ? "  offload" : "",
                console_style(cli->console, STYLE_PLAIN));
    bool local = false;
    for (int i = 0; i < result->count; i++) {
        row(text, view, i);
        local = local || result->layouts[i].request.zero.local;
    }
    if (local)
        text_add(text,
                 "note     local: sums per worker; the bits depend on the number of workers\n");
    sent(text, &result->layouts[0]);
    text_add(text, "\n");
    search_explain(view->space, result, text);
    for (int i = 2; i < result->count; i++)
        text_printf(text, "%-8d %+.1f %%: %s\n", i + 1,
                    100 * (result->layouts[i].time.step / result->layouts[0].time.step - 1),
                    result->layouts[i].why);
    text_add(text, "\nto run layout 1:\n  ");
    plan_search_command(cli, view, &result->layouts[0], text);
    text_add(text, "\n");
    if (!data_is_given(&view->config->data))
        text_add(text, "note     no data is set: add --data.path=FILE\n");
}

enum status plan_search_view_table(struct cli *cli, const struct plan_search_view *view)
{
    struct text text;
    text_init(&text, cli->env);
    write_table(cli, view, &text);
    return console_print(cli->console, &text);
}

/* --- JSON --------------------------------------------------------------------------------- */

static void json_layout(struct json_out *json, const struct plan_search_view *view, const char *key,
                        const struct search_layout *layout, bool timed)
{
    const struct plan_request *request = &layout->request;
    const struct plan_time *time = &layout->time;
    json_out_open(json, key, '{');
    json_out_int(json, "tp", request->parallel.tp);
    json_out_bool(json, "sequence", request->parallel.sequence);
    json_out_bool(json, "regather", request->parallel.regather);
    json_out_int(json, "pp", request->parallel.pp);
    json_out_string(json, "schedule", timetable_words[request->parallel.schedule]);
    json_out_int(json, "chunks", spread_chunks(&request->parallel));
    json_out_int(json, "dp", layout->dp);
    json_out_int(json, "stage", request->zero.stage);
    json_out_int(json, "shard_group", request->zero.shard_group);
    json_out_string(json, "accumulate", plan_search_sums(layout));
    json_out_int(json, "micro_batch", request->engine.micro_batch);
    json_out_int(json, "rounds", layout->rounds);
    json_out_string(json, "recompute", recompute_word(request->engine.recompute));
    json_out_int(json, "needed_bytes", (int64_t)layout->needed_bytes);
    json_out_int(json, "host_bytes", (int64_t)layout->host_bytes);
    json_out_int(json, "disk_bytes", (int64_t)layout->disk_bytes);
    json_out_string(json, "offload_optimizer", far_words[request->zero.offload.optimizer]);
    json_out_string(json, "offload_grads", far_words[request->zero.offload.grads]);
    json_out_string(json, "offload_params", far_words[request->zero.offload.params]);
    json_out_real(json, "offload_share", request->zero.offload.share);
    json_out_string(json, "offload_activations", far_words[request->engine.activations]);
    json_out_real(json, "offload_activations_share", request->engine.activations_share);
    json_out_int(json, "offload_window", request->zero.offload.window);
    json_out_string(json, "offload_update", request->zero.offload.on_host ? "host" : "device");
    if (timed) {
        json_out_real(json, "step_s", time->step);
        json_out_real(json, "bound_s", layout->bound);
        json_out_real(json, "tokens_per_s", tokens_of(view) / time->step);
        json_out_real(json, "mfu", mfu_of(view, layout));
        json_out_real(json, "compute_s", time->compute);
        json_out_real(json, "waited_s", time->waited);
        json_out_real(json, "update_s", time->update);
        json_out_real(json, "bubble", time->bubble);
        json_out_real(json, "hidden", plan_time_hidden(time));
        json_out_open(json, "sent", '{');
        for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
            json_out_int(json, traffic_word((enum traffic_purpose)purpose), time->sent[purpose]);
        json_out_close(json, '}');
        json_out_moved(json, "moved", time->moved);
        if (layout->each > 0)
            json_out_real(json, "each_step_s", layout->each);
        if (layout->device > 0)
            json_out_real(json, "device_step_s", layout->device);
        json_out_string(json, "why", layout->why);
    }
    json_out_close(json, '}');
}

static void json_text(struct json_out *json, const char *key, struct text *text)
{
    json_out_string(json, key, text_string(text));
    text_free(text);
}

enum status plan_search_view_json(struct cli *cli, const struct plan_search_view *view)
{
    const struct search_space *space = view->space;
    const struct search_result *result = view->result;
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_int(&json, "parameters", result->parameters);
    json_out_string(&json, "optimizer", optimizer_word(space->request->zero.optimizer.kind));
    json_out_real(&json, "flops_per_token", result->flops_per_token);
    json_out_int(&json, "ranks", space->request->ranks);
    json_out_int(&json, "node", space->node);
    json_out_int(&json, "memory_bytes", (int64_t)space->memory);
    json_out_int(&json, "host_memory_bytes", (int64_t)space->host);
    json_out_int(&json, "disk_room_bytes", (int64_t)space->disk);
    json_out_string(&json, "machine", space->machine->name);
    json_out_string(&json, "prices", space->request->ops);
    json_out_int(&json, "global_batch", space->global_batch);
    json_out_int(&json, "tokens", space->request->engine.tokens);
    json_out_open(&json, "search", '{');
    json_out_int(&json, "possible", result->possible);
    json_out_int(&json, "too_large", result->too_large);
    json_out_int(&json, "bounded", result->bounded);
    json_out_int(&json, "walked", result->timed);
    json_out_int(&json, "refused", result->refused);
    json_out_real(&json, "seconds", view->seconds);
    json_out_close(&json, '}');
    json_out_bool(&json, "fits", result->count > 0);
    json_out_open(&json, "layouts", '[');
    for (int i = 0; i < result->count; i++)
        json_layout(&json, view, NULL, &result->layouts[i], true);
    json_out_close(&json, ']');
    if (result->count > 0) {
        struct text text;
        text_init(&text, cli->env);
        search_explain(space, result, &text);
        json_text(&json, "why", &text);
        text_init(&text, cli->env);
        plan_search_command(cli, view, &result->layouts[0], &text);
        json_text(&json, "command", &text);
    } else
        json_layout(&json, view, "nearest", &result->nearest, false);
    return json_out_print(&json, cli->console);
}
