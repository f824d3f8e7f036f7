/* run_layout -- builds the ranks of a run on a dry device, as `plan` does, so the page shows the
 * shards that the run's own store has. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli/page/run_watch.h"
#include "train/run_plan.h"
#include "zero/partition.h"

enum { MOST_RANKS = 1024 }; /* whose memory is shown */

/* --- tensors -------------------------------------------------------------------------------- */

struct tensors {
    struct text *text;
    int owners;
};

static void print_piece(struct text *text, const struct unit_graph *graph,
                        const struct partition *partition, int piece)
{
    const struct unit_piece *p = &graph->pieces[piece];
    const struct unit_param *first = &graph->params[p->first_param];
    const struct unit_param *last = &graph->params[p->first_param + p->param_count - 1];
    text_printf(text, "%s{\"name\":", piece ? "," : "");
    text_json_string(text, p->name, strlen(p->name));
    text_printf(text, ",\"count\":%" PRId64 ",\"tensors\":[", partition->piece_count[piece]);
    for (int t = first->first_tensor; t < last->first_tensor + last->tensor_count; t++) {
        struct piece_range range = partition_tensor(partition, t);
        text_add(text, t > first->first_tensor ? ",[" : "[");
        text_json_string(text, graph->tensors[t].name, strlen(graph->tensors[t].name));
        text_printf(text, ",%" PRId64 ",%" PRId64 ",[", range.first, range.count);
        for (int d = 0; d < graph->tensors[t].dims; d++)
            text_printf(text, "%s%" PRId64, d ? "," : "", graph->tensors[t].shape[d]);
        text_add(text, "]]");
    }
    text_add(text, "]}");
}

static enum status print_tensors(void *user, struct env *env, const struct plan_rank *rank,
                                 const struct unit_graph *graph)
{
    struct text *text = user;
    struct partition partition;
    const struct roster *roster = &rank->roster;
    TRY(partition_create(env, graph, roster->owners, &partition));
    text_printf(text,
                "%s{\"p\":%d,\"workers\":%d,\"first_owner\":%d,\"owners\":%d,\"shards\":%d,"
                "\"pieces\":[",
                rank->p ? "," : "", rank->p, roster->workers, roster->first_owner, roster->owners,
                roster_shards(roster));
    for (int piece = 0; piece < graph->piece_count; piece++)
        print_piece(text, graph, &partition, piece);
    text_add(text, "]}");
    partition_free(env, &partition);
    return text->status;
}

/* --- ranks ---------------------------------------------------------------------------------- */

static void print_memory(const struct plan_rank *rank, struct text *text)
{
    text_printf(text, "%s{\"rank\":%d,\"worker\":%s,\"bytes\":[", rank->rank ? "," : "", rank->rank,
                roster_is_worker(&rank->roster) ? "true" : "false");
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        text_printf(text, "%s%zu", c ? "," : "", rank->bytes[c]);
    text_printf(text, "],\"host\":%zu,\"disk\":%zu}", rank->host_bytes, rank->disk_bytes);
}

static enum status print_ranks(struct env *env, const struct plan_request *request,
                               struct text *text)
{
    int shown = request->ranks < MOST_RANKS ? request->ranks : MOST_RANKS;
    text_add(text, ",\"categories\":[");
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        text_printf(text, "%s\"%s\"", c ? "," : "", mem_category_word((enum mem_category)c));
    text_add(text, "],\"memory\":[");
    for (int rank = 0; rank < shown; rank++) {
        struct plan_rank result;
        TRY(plan_rank_memory(env, request, rank, NULL, NULL, &result));
        print_memory(&result, text);
    }
    text_add(text, "]");
    return STATUS_OK;
}

static enum status print_traffic(struct env *env, const struct plan_request *request,
                                 struct text *text)
{
    struct plan_rank rank;
    TRY(plan_rank(env, request, 0, &rank));
    text_add(text, ",\"sent\":{");
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        text_printf(text, "%s\"%s\":[%" PRId64 ",%" PRId64 "]", purpose ? "," : "",
                    traffic_word((enum traffic_purpose)purpose), rank.sent[purpose],
                    rank.calls[purpose]);
    text_add(text, "}");
    return STATUS_OK;
}

static enum status print_layout(struct env *env, const struct run_config *config, int ranks,
                                struct text *text)
{
    struct plan_request request = run_plan_request(config, ranks);
    struct sharding sharding = sharding_of(request.zero.stage);
    int pp = plan_pp_stages(&request), tp = plan_tp(&request);
    text_printf(text,
                "{\"ranks\":%d,\"pp\":%d,\"tp\":%d,\"stage\":%d,\"servers\":%d,\"sharded\":{"
                "\"params\":%s,\"grads\":%s,\"optimizer\":%s},\"stages\":[",
                ranks, pp, tp, request.zero.stage, request.zero.servers,
                sharding.params ? "true" : "false", sharding.grads ? "true" : "false",
                sharding.optim ? "true" : "false");
    for (int p = 0; p < pp; p++)
        TRY(plan_rank_graph(env, &request, p * tp, print_tensors, text));
    text_add(text, "]");
    TRY(print_ranks(env, &request, text));
    TRY(print_traffic(env, &request, text));
    text_add(text, "}");
    return text->status;
}

/* --- the configuration ---------------------------------------------------------------------- */

/* The printed configuration is resolved: the files it names are not needed, and a page reads the
 * run folder alone. */
static enum status resolve(struct env *env, struct options *options, const char *yaml,
                           struct run_config *config)
{
    static const char *const files[] = {"data.path",      "data.val",           "data.tokenizer",
                                        "data.cache",     "model.path",         "train.branch",
                                        "offload.folder", "checkpoint.fallback"};
    TRY(run_config_bind_planning(options, config));
    TRY(options_load_yaml_text(options, yaml, strlen(yaml), "config.yaml"));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        TRY(options_set(options, files[i], "", "the page"));
    return run_config_resolve(env, options, NULL, NULL, config);
}

static enum status make_layout(struct env *env, const char *yaml, int ranks, struct text *text)
{
    struct run_config config = {0};
    struct options *options;
    TRY(options_create(env, &options));
    enum status st = resolve(env, options, yaml, &config);
    if (st == STATUS_OK) {
        st = print_layout(env, &config, ranks, text);
        run_config_release(&config);
    }
    options_destroy(options);
    return st;
}

void run_layout_print(struct env *env, const char *yaml, int ranks, struct text *text)
{
    struct env own = *env; /* resolving sets the number of threads */
    log_error_clear(env->log);
    if (make_layout(&own, yaml, ranks, text) != STATUS_OK) {
        const char *error = log_first_error(env->log);
        text_clear(text);
        text_add(text, "{\"error\":");
        text_json_string(text, error, strlen(error));
        text_add(text, "}");
    }
}
