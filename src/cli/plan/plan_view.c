/* plan_view -- prints a plan: a column for each ZeRO stage; rows for memory, traffic and whether it
 * fits. */
#include "cli/plan/plan_view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/json_out.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_write.h"

static const struct plan_zero_stage *chosen_stage(const struct plan_view *view)
{
    return &view->plan->stages[view->request->zero.stage];
}

/* --- figures -------------------------------------------------------------------------------- */

static int64_t sent_bytes(const struct plan_rank *rank)
{
    return rank->sent[TRAFFIC_GATHER] + rank->sent[TRAFFIC_REDUCE] + rank->sent[TRAFFIC_MUON] +
           rank->sent[TRAFFIC_PIPE];
}

/* Calls for the same purposes. */
static int64_t calls_of(const struct plan_rank *rank)
{
    return rank->calls[TRAFFIC_GATHER] + rank->calls[TRAFFIC_REDUCE] + rank->calls[TRAFFIC_MUON] +
           rank->calls[TRAFFIC_PIPE];
}

/* Params that a PP stage borrows have their optimizer state in another PP stage. */
static double state_formula(const struct plan_view *view, const struct plan_rank *rank, int stage)
{
    struct state_widths own = view->plan->widths;
    struct state_widths borrowed = own;
    borrowed.optimizer = 0;
    double others = (double)rank->part.borrowed;
    struct sharding cut = plan_sharding(view->request, stage);
    return formula_state(&rank->roster, cut, (double)rank->part.parameters - others, own) +
           formula_state(&rank->roster, cut, others, borrowed);
}

static double sent_formula(const struct plan_view *view, const struct plan_rank *rank, int stage,
                           enum traffic_purpose purpose)
{
    return plan_sent_formula(view->request, view->plan->rounds, rank, stage, purpose);
}

/* --- the table ------------------------------------------------------------------------------ */

/* The rows of the table that show bytes. */
enum row {
    ROW_CATEGORY,
    ROW_TOTAL,
    ROW_RUNTIME,
    ROW_HOST,
    ROW_DISK,
    ROW_STATE,
    ROW_STATE_ELSEWHERE,
    ROW_STATE_FORMULA,
    ROW_MOVED,
    ROW_PURPOSE,
    ROW_SENT,
    ROW_SENT_FORMULA,
    ROW_TENSOR_FORMULA
};

/* The figure of a row for one ZeRO stage and a worker or a server; `which` is the memory category,
 * the location, or the purpose or way of the traffic. */
static double figure(const struct plan_view *view, const struct plan_rank *rank, int stage,
                     enum row row, int which)
{
    switch (row) {
    case ROW_CATEGORY: return (double)rank->bytes[which];
    case ROW_TOTAL: return (double)rank->total_bytes;
    case ROW_RUNTIME:
        return rank->runtime_bytes > 0 ? (double)rank->runtime_bytes : view->runtime_bytes;
    case ROW_HOST: return (double)rank->host_bytes;
    case ROW_DISK: return (double)rank->disk_bytes;
    case ROW_STATE: return (double)plan_state_bytes(rank);
    case ROW_STATE_ELSEWHERE: return (double)rank->state_bytes[which];
    case ROW_MOVED: return (double)rank->moved[which];
    case ROW_STATE_FORMULA: return state_formula(view, rank, stage);
    case ROW_PURPOSE: return (double)rank->sent[which];
    case ROW_SENT: return (double)sent_bytes(rank);
    case ROW_SENT_FORMULA:
        return sent_formula(view, rank, stage, TRAFFIC_GATHER) +
               sent_formula(view, rank, stage, TRAFFIC_REDUCE) +
               sent_formula(view, rank, stage, TRAFFIC_MUON) +
               sent_formula(view, rank, stage, TRAFFIC_PIPE);
    default: return sent_formula(view, rank, stage, TRAFFIC_TENSOR);
    }
}

static const struct plan_rank *rank_of(const struct plan_zero_stage *stage, bool server)
{
    return server ? &stage->server : &stage->worker;
}

static void cell(struct text *text, const char *word)
{
    text_printf(text, " %12s", word);
}

/* Rows of zeros are left out. */
static void bytes_row(struct text *text, const struct plan_view *view, bool server,
                      const char *label, enum row row, int which)
{
    double most = 0;
    double values[PLAN_ZERO_STAGES];
    char word[32];
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        const struct plan_zero_stage *stage = &view->plan->stages[s];
        values[s] = stage->possible ? figure(view, rank_of(stage, server), s, row, which) : 0;
        most = values[s] > most ? values[s] : most;
    }
    if (most == 0)
        return;
    text_printf(text, "  %-18s", label);
    for (int s = 0; s < PLAN_ZERO_STAGES; s++)
        cell(text, view->plan->stages[s].possible ? text_human_bytes(word, values[s]) : "-");
    text_add(text, "\n");
}

static void heading(struct cli *cli, struct text *text, const struct plan_view *view,
                    const char *title)
{
    char word[32];
    text_printf(text, "\n%s%-20s", console_style(cli->console, STYLE_BOLD), title);
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        snprintf(word, sizeof word, s == view->request->zero.stage ? "[stage %d]" : "stage %d", s);
        cell(text, word);
    }
    text_printf(text, "%s\n", console_style(cli->console, STYLE_PLAIN));
}

/* The other rows: the PP stage that needs most memory, which the rows below are about; the share of
 * unsharded model state; whether it fits; how many calls the traffic takes. */
enum words { WORDS_PP_STAGE, WORDS_SHARE, WORDS_FITS, WORDS_CALLS };

static void words_row(struct text *text, const struct plan_view *view, bool server, enum words row)
{
    static const char *const labels[] = {"PP stage", "  of unsharded", "fits", "  in calls"};
    char word[32];
    text_printf(text, "  %-18s", labels[row]);
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        const struct plan_zero_stage *stage = &view->plan->stages[s];
        const struct plan_rank *rank = rank_of(stage, server);
        if (row == WORDS_PP_STAGE)
            snprintf(word, sizeof word, "%d", rank->p);
        else if (row == WORDS_SHARE)
            snprintf(word, sizeof word, "%.1f %%",
                     100.0 * (double)plan_state_bytes(rank) / (double)view->plan->unsharded_bytes);
        else if (row == WORDS_CALLS)
            snprintf(word, sizeof word, "%lld", (long long)calls_of(rank));
        else
            snprintf(word, sizeof word, plan_fits(stage, &view->room) ? "yes" : "no");
        cell(text, stage->possible ? word : "-");
    }
    text_add(text, "\n");
}

/* Bytes of offloaded state and activations between the device and where they are. */
static void moved_table(struct cli *cli, struct text *text, const struct plan_view *view,
                        bool server)
{
    static const char *const labels[TRAFFIC_WAY_COUNT] = {[TRAFFIC_LINK_IN] = "host to GPU",
                                                          [TRAFFIC_LINK_OUT] = "GPU to host",
                                                          [TRAFFIC_DISK_READ] = "read from disk",
                                                          [TRAFFIC_DISK_WRITTEN] =
                                                              "written to disk"};
    heading(cli, text, view, "offload per step");
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        bytes_row(text, view, server, labels[way], ROW_MOVED, way);
}

static void rank_tables(struct cli *cli, struct text *text, const struct plan_view *view,
                        bool server)
{
    heading(cli, text, view, server ? "memory of a server" : "memory of a rank");
    if (view->plan->pipe.pp > 1)
        words_row(text, view, server, WORDS_PP_STAGE);
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        bytes_row(text, view, server, mem_category_word((enum mem_category)c), ROW_CATEGORY, c);
    bytes_row(text, view, server, "total", ROW_TOTAL, 0);
    bytes_row(text, view, server, "runtime (estimate)", ROW_RUNTIME, 0);
    bytes_row(text, view, server, "on the host", ROW_HOST, 0);
    bytes_row(text, view, server, "on disk", ROW_DISK, 0);
    bytes_row(text, view, server, "model state", ROW_STATE, 0);
    if (view->request->gpu)
        bytes_row(text, view, server, "  on the host", ROW_STATE_ELSEWHERE, MEM_HOST);
    bytes_row(text, view, server, "  on disk", ROW_STATE_ELSEWHERE, MEM_DISK);
    bytes_row(text, view, server, "  by the formula", ROW_STATE_FORMULA, 0);
    words_row(text, view, server, WORDS_SHARE);
    if (view->room.memory > 0)
        words_row(text, view, server, WORDS_FITS);
    if (plan_moves_anything(view->request))
        moved_table(cli, text, view, server);
    if (view->request->ranks == 1)
        return;
    heading(cli, text, view, "traffic per step");
    for (int purpose = 0; purpose < TRAFFIC_TENSOR; purpose++)
        bytes_row(text, view, server, traffic_word((enum traffic_purpose)purpose), ROW_PURPOSE,
                  purpose);
    bytes_row(text, view, server, "sum", ROW_SENT, 0);
    bytes_row(text, view, server, "  by the formula", ROW_SENT_FORMULA, 0);
    words_row(text, view, server, WORDS_CALLS);
    if (view->request->parallel.tp > 1) {
        bytes_row(text, view, server, traffic_word(TRAFFIC_TENSOR), ROW_PURPOSE, TRAFFIC_TENSOR);
        bytes_row(text, view, server, "  by the formula", ROW_TENSOR_FORMULA, 0);
    }
    bytes_row(text, view, server, traffic_word(TRAFFIC_CONTROL), ROW_PURPOSE, TRAFFIC_CONTROL);
}

/* --- around the table ----------------------------------------------------------------------- */

static void describe_ranks(struct text *text, const struct plan_view *view)
{
    const struct plan_request *request = view->request;
    const struct plan *plan = view->plan;
    int servers = request->zero.servers * plan->pipe.pp;
    text_printf(text, "ranks    %d", request->ranks);
    if (servers > 0)
        text_printf(text, ": %d compute, %d server%s", request->ranks - servers, servers,
                    servers == 1 ? "" : "s");
    text_printf(text, "; %lld micro-batch%s per step, %lld per %s",
                (long long)request->engine.micro_batches,
                request->engine.micro_batches == 1 ? "" : "es", (long long)plan->rounds,
                plan->pipe.pp > 1 ? "pipeline" : "rank");
    if (plan->idle_workers > 0)
        text_printf(text, ", but none for %lld of them in the last round: raise train.global_batch",
                    (long long)plan->idle_workers);
    text_add(text, "\n");
}

char *plan_view_memory(const struct plan_view *view, char out[PLAN_VIEW_MEMORY])
{
    char bytes[32], count[32];
    double memory = (double)view->room.memory;
    text_human_bytes(bytes, memory);
    if (view->shared_bytes > 0)
        snprintf(out, PLAN_VIEW_MEMORY, "%s", bytes);
    else
        snprintf(out, PLAN_VIEW_MEMORY, "%s (%s bytes)", bytes, text_human_count(count, memory));
    return out;
}

char *plan_view_elsewhere(const struct plan_room *bytes, const struct plan_room *given,
                          char out[PLAN_VIEW_MEMORY])
{
    char word[32];
    size_t used = 0;
    out[0] = '\0';
    if (given->host > 0)
        used = (size_t)snprintf(out, PLAN_VIEW_MEMORY, ", %s on the host",
                                text_human_bytes(word, (double)bytes->host));
    if (given->disk > 0)
        snprintf(out + used, PLAN_VIEW_MEMORY - used, ", %s on disk",
                 text_human_bytes(word, (double)bytes->disk));
    return out;
}

static void describe_memory(struct text *text, const struct plan_view *view)
{
    char a[PLAN_VIEW_MEMORY], b[32], c[PLAN_VIEW_MEMORY];
    if (view->room.memory == 0)
        return;
    text_printf(text, "memory   %s per rank%s", plan_view_memory(view, a),
                plan_view_elsewhere(&view->room, &view->room, c));
    if (view->shared_bytes > 0 && view->config->machine.device_memory > 0)
        text_add(text, " (limited by run.device_memory)");
    if (view->shared_bytes > 0 && view->request->ranks > 1)
        text_printf(text, ": %s free on this machine, divided by its ranks (--memory overrides)",
                    text_human_bytes(b, (double)view->shared_bytes));
    text_printf(text, "; not counted: the data, and %s while a checkpoint is written\n",
                text_human_bytes(b, (double)checkpoint_write_bytes()));
}

void plan_view_prices(const struct run_config *config, const struct plan_request *request,
                      const char *what, struct text *text)
{
    if (!config->device.loaded)
        text_printf(text, "prices   by back end '%s': %s approximate, because %s\n", request->ops,
                    what, config->device.why);
}

static void describe_gpu(struct text *text)
{
    char word[32];
    text_add(text, "\nthe table shows GPU memory; runtime as measured on an H200:");
    for (const struct gpu_part *part = formula_gpu_parts; part->library != NULL; part++)
        text_printf(text, "%s %s %s", part == formula_gpu_parts ? "" : ",", part->library,
                    text_human_bytes(word, part->bytes));
    text_add(text, "\n");
}

/* Activations of the rank (of a pipeline: of the PP stage) that keeps most, and of one block, which
 * the formula describes. */
static void describe_recompute(struct text *text, const struct plan_view *view)
{
    char all[32], block[32], formula[32];
    text_printf(text, "\n%-18s %14s %14s %14s\n", "engine.recompute", "activations", "per block",
                "by the formula");
    for (int r = 0; r < PLAN_RECOMPUTES; r++)
        text_printf(text, "  %-16s %14s %14s %14s\n", recompute_word(r),
                    text_human_bytes(all, (double)view->plan->activation_bytes[r]),
                    text_human_bytes(block, (double)view->plan->block_bytes[r]),
                    text_human_bytes(formula, plan_block_formula(view->request, r)));
}

static bool offers_room(const struct plan_view *view)
{
    return view->room.host > 0 || view->room.disk > 0;
}

static void offload_keys(const struct zero_offload *asked, const struct zero_offload *advised,
                         struct text *text)
{
    if (advised->optimizer != asked->optimizer)
        text_printf(text, " offload.optimizer=%s", far_words[advised->optimizer]);
    if (advised->grads != asked->grads)
        text_printf(text, " offload.grads=%s", far_words[advised->grads]);
    if (advised->params != asked->params)
        text_printf(text, " offload.params=%s", far_words[advised->params]);
    if (advised->share != asked->share)
        text_printf(text, " offload.share=%g", advised->share);
}

/* Nothing fits: what is left to do. Where there is room, the advice has tried to offload. */
static void describe_rest(const struct plan_view *view, struct text *text)
{
    const struct zero_offload *asked = &view->request->zero.offload;
    const struct plan_room needs = plan_needs(&view->plan->stages[view->request->zero.stage]);
    bool offloads = offers_room(view) || plan_is_offloaded(view->request);
    bool on_device = offloads && needs.memory > view->room.memory; /* not only the disk is full */
    struct zero_offload tried = *asked;
    char left[PLAN_OFFLOAD_KEYS];
    if (offers_room(view))
        tried.optimizer = tried.grads = tried.params = FAR_DISK;
    text_printf(text, "no ZeRO stage, recomputation, micro-batch%s or number of ranks fits; ",
                offers_room(view) ? ", offload" : "");
    if (on_device && *plan_offload_left(&tried, left))
        text_printf(text, "set%s, or ", left);
    text_printf(text,
                "use a %ssmaller model, a shorter context, or more ranks with a larger "
                "train.global_batch",
                on_device && asked->window > 0 ? "smaller offload.window, a "
                : offloads && !on_device       ? "larger disk or host memory, a "
                                               : "");
    if (!offloads)
        text_add(text, "; with --host-memory or --disk, offload is considered, too");
}

void plan_view_advice(const struct plan_view *view, struct text *text)
{
    const struct plan_request *request = view->request;
    const struct plan_advice *advice = view->advice;
    char word[PLAN_VIEW_MEMORY];
    if (!advice->found) {
        describe_rest(view, text);
        return;
    }
    text_add(text, "try");
    if (advice->stage != request->zero.stage)
        text_printf(text, " zero.stage=%d", advice->stage);
    if (advice->prefetch != request->zero.prefetch)
        text_printf(text, " zero.prefetch=%d", advice->prefetch);
    if (advice->shard_group != request->zero.shard_group)
        text_printf(text, " zero.shard_group=%d", advice->shard_group);
    if (advice->recompute != request->engine.recompute)
        text_printf(text, " engine.recompute=%s", recompute_word(advice->recompute));
    if (advice->micro_batch != request->engine.micro_batch)
        text_printf(text, " train.micro_batch=%lld", (long long)advice->micro_batch);
    offload_keys(&request->zero.offload, &advice->offload, text);
    if (advice->ranks != request->ranks)
        text_printf(text, " -n %d with %s per rank", advice->ranks, plan_view_memory(view, word));
}

/* --- every buffer ---------------------------------------------------------------------------- */

struct plan_line {
    enum mem_location location;
    enum mem_category category;
    size_t bytes;
    char name[112];
};

struct plan_lines {
    struct text room; /* memory of the array */
    const struct plan_line *line;
    int count;
};

static void add_line(void *user, const struct mem_line *found)
{
    struct plan_line line = {
        .location = found->location, .category = found->category, .bytes = found->bytes};
    snprintf(line.name, sizeof line.name, "%s", found->name);
    text_add_bytes(user, &line, sizeof line);
}

static int compare_lines(const void *left, const void *right)
{
    static const int order[] = {[MEM_GPU] = 0, [MEM_HOST] = 1, [MEM_DISK] = 2};
    const struct plan_line *a = left, *b = right;
    if (a->location != b->location)
        return order[a->location] < order[b->location] ? -1 : 1;
    if (a->category != b->category)
        return a->category < b->category ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The buffers of rank 0: GPU before host before disk, by category, largest first. The caller
 * frees the room, also after a failure. */
static enum status collect_lines(struct env *env, const struct plan_request *request,
                                 struct plan_lines *lines)
{
    struct plan_rank rank;
    *lines = (struct plan_lines){0};
    text_init(&lines->room, env);
    TRY(plan_rank_memory(env, request, 0, add_line, &lines->room, &rank));
    TRY(lines->room.status);
    lines->count = (int)(lines->room.bytes / sizeof *lines->line);
    lines->line = (const struct plan_line *)lines->room.data;
    qsort(lines->room.data, (size_t)lines->count, sizeof *lines->line, compare_lines);
    return STATUS_OK;
}

/* What is said before the name of a buffer that is not in the memory of the device. */
static const char *location_prefix(enum mem_location location, bool gpu)
{
    if (location == MEM_DISK)
        return "on disk: ";
    return gpu && location == MEM_HOST ? "on the host: " : "";
}

static enum status list_lines(struct cli *cli, struct text *text, const struct plan_view *view)
{
    struct plan_lines lines;
    char word[32];
    enum status st = collect_lines(cli->env, view->request, &lines);
    text_printf(text, "\nbuffers of rank 0 in ZeRO stage %d\n", view->request->zero.stage);
    for (int i = 0; i < lines.count; i++)
        text_printf(text, "  %-12s %10s  %s%s\n", mem_category_word(lines.line[i].category),
                    text_human_bytes(word, (double)lines.line[i].bytes),
                    location_prefix(lines.line[i].location, view->request->gpu),
                    lines.line[i].name);
    text_free(&lines.room);
    return st;
}

static enum status write_table(struct cli *cli, const struct plan_view *view, struct text *text)
{
    const struct zero_config *store = &view->request->zero;
    char a[32], b[32];
    /* With one gradient per step, a param with one use needs no sum in another type. */
    bool only_tied = view->request->ranks == 1 && view->request->engine.micro_batches == 1;
    run_config_describe(view->config, text);
    text_printf(text, "params   %s, %s floating-point operations per token\n",
                text_human_count(a, (double)view->plan->parameters),
                text_human_count(b, view->plan->flops_per_token));
    describe_ranks(text, view);
    if (view->data.known) {
        text_add(text, "data     ");
        data_size_describe(&view->data, text);
        text_add(text, "\n");
    }
    describe_memory(text, view);
    if (view->config->ramp.count > 0)
        text_add(text, "note     memory and traffic are those of the largest step of the ramp\n");
    plan_view_prices(view->config, view->request, "scratch memory is", text);
    rank_tables(cli, text, view, false);
    if (view->request->zero.servers > 0)
        rank_tables(cli, text, view, true);
    if (dtype_bytes(store->type) != dtype_bytes(store->sum_type))
        text_printf(
            text,
            "\nthe formula assumes 2-byte gradient sums %s(precision.accumulate=bf16); %s fp32\n",
            store->local ? "of owners " : "",
            only_tied ? "here those of tied parameters are" : "here they are");
    if (view->request->gpu)
        describe_gpu(text);
    describe_recompute(text, view);
    if (view->plan->pipe.pp > 1)
        TRY(plan_view_pipe(cli, view, text));
    if (view->lines)
        TRY(list_lines(cli, text, view));
    if (plan_fits(chosen_stage(view), &view->room) && view->advice->found &&
        view->advice->stage < view->request->zero.stage)
        text_printf(text, "zero.stage=%d is enough\n", view->advice->stage);
    return text->status;
}

enum status plan_view_table(struct cli *cli, const struct plan_view *view)
{
    struct text text;
    text_init(&text, cli->env);
    enum status st = write_table(cli, view, &text);
    if (st == STATUS_OK)
        console_write(cli->console, text_string(&text), text.bytes);
    text_free(&text);
    return st;
}

/* --- JSON ----------------------------------------------------------------------------------- */

static void json_rank(struct json_out *json, const struct plan_view *view, const char *key,
                      const struct plan_rank *rank, int stage)
{
    json_out_open(json, key, '{');
    json_out_mem(json, "mem", rank->bytes);
    json_out_int(json, "mem_bytes", (int64_t)rank->total_bytes);
    json_out_int(json, "host_bytes", (int64_t)rank->host_bytes);
    json_out_int(json, "disk_bytes", (int64_t)rank->disk_bytes);
    json_out_int(json, "state_bytes", (int64_t)plan_state_bytes(rank));
    json_out_open(json, "state", '{');
    for (int location = 0; location < MEM_LOCATION_COUNT; location++)
        json_out_int(json, mem_location_word((enum mem_location)location),
                     (int64_t)rank->state_bytes[location]);
    json_out_close(json, '}');
    json_out_real(json, "state_formula_bytes", state_formula(view, rank, stage));
    json_out_open(json, "sent", '{');
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        json_out_int(json, traffic_word((enum traffic_purpose)purpose), rank->sent[purpose]);
    json_out_close(json, '}');
    json_out_open(json, "calls", '{');
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        json_out_int(json, traffic_word((enum traffic_purpose)purpose), rank->calls[purpose]);
    json_out_close(json, '}');
    json_out_moved(json, "offload", rank->moved);
    json_out_int(json, "sent_bytes", sent_bytes(rank));
    json_out_real(json, "sent_formula_bytes", figure(view, rank, stage, ROW_SENT_FORMULA, 0));
    json_out_real(json, "muon_formula_bytes", sent_formula(view, rank, stage, TRAFFIC_MUON));
    json_out_real(json, "tensor_formula_bytes", sent_formula(view, rank, stage, TRAFFIC_TENSOR));
    json_out_int(json, "number", rank->rank);
    json_out_close(json, '}');
}

static void json_stages(struct json_out *json, const struct plan_view *view)
{
    json_out_open(json, "stages", '[');
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        const struct plan_zero_stage *stage = &view->plan->stages[s];
        if (!stage->possible)
            continue;
        json_out_open(json, NULL, '{');
        json_out_int(json, "stage", s);
        json_out_bool(json, "fits", plan_fits(stage, &view->room));
        json_rank(json, view, "rank", &stage->worker, s);
        if (view->request->zero.servers > 0)
            json_rank(json, view, "server", &stage->server, s);
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
}

static void json_pipe(struct json_out *json, const struct plan_view *view)
{
    const struct plan_pipe *pipe = &view->plan->pipe;
    json_out_open(json, "pipeline", '{');
    json_out_int(json, "stages", pipe->pp);
    json_out_int(json, "chunks", pipe->chunks);
    json_out_string(json, "schedule", timetable_words[view->request->parallel.schedule]);
    json_out_real(json, "bubble", pipe->bubble);
    json_out_open(json, "stage", '[');
    for (int p = 0; p < pipe->pp; p++) {
        json_out_open(json, NULL, '{');
        json_out_int(json, "parameters", pipe->workers[p].part.parameters);
        json_out_int(json, "in_flight", pipe->in_flight[p]);
        json_rank(json, view, "rank", &pipe->workers[p], view->request->zero.stage);
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
    json_out_close(json, '}');
}

static void json_blocks(struct json_out *json, const struct plan_view *view)
{
    json_out_open(json, "block", '{');
    for (int r = 0; r < PLAN_RECOMPUTES; r++) {
        json_out_open(json, recompute_word(r), '{');
        json_out_int(json, "kept_bytes", (int64_t)view->plan->block_bytes[r]);
        json_out_real(json, "formula_bytes", plan_block_formula(view->request, r));
        json_out_close(json, '}');
    }
    json_out_close(json, '}');
}

static enum status json_lines(struct cli *cli, struct json_out *json, const struct plan_view *view)
{
    struct plan_lines lines;
    enum status st = collect_lines(cli->env, view->request, &lines);
    json_out_open(json, "lines", '[');
    for (int i = 0; i < lines.count; i++) {
        json_out_open(json, NULL, '{');
        json_out_string(json, "category", mem_category_word(lines.line[i].category));
        json_out_string(json, "name", lines.line[i].name);
        json_out_int(json, "bytes", (int64_t)lines.line[i].bytes);
        json_out_string(json, "place", mem_location_word(lines.line[i].location));
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
    text_free(&lines.room);
    return st;
}

static void json_advice(struct json_out *json, const struct plan_advice *advice)
{
    if (!advice->found)
        return;
    json_out_open(json, "advice", '{');
    json_out_int(json, "stage", advice->stage);
    json_out_int(json, "prefetch", advice->prefetch);
    json_out_int(json, "shard_group", advice->shard_group);
    json_out_string(json, "recompute", recompute_word(advice->recompute));
    json_out_int(json, "micro_batch", advice->micro_batch);
    json_out_int(json, "ranks", advice->ranks);
    json_out_string(json, "offload_optimizer", far_words[advice->offload.optimizer]);
    json_out_string(json, "offload_grads", far_words[advice->offload.grads]);
    json_out_string(json, "offload_params", far_words[advice->offload.params]);
    json_out_real(json, "offload_share", advice->offload.share);
    json_out_close(json, '}');
}

enum status plan_view_json(struct cli *cli, const struct plan_view *view)
{
    const struct plan *plan = view->plan;
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_int(&json, "parameters", plan->parameters);
    json_out_string(&json, "optimizer", optimizer_word(view->request->zero.optimizer.kind));
    json_out_real(&json, "flops_per_token", plan->flops_per_token);
    json_out_int(&json, "ranks", view->request->ranks);
    json_out_int(&json, "servers", view->request->zero.servers);
    json_out_int(&json, "stage", view->request->zero.stage);
    json_out_int(&json, "micro_batches", view->request->engine.micro_batches);
    json_out_int(&json, "rounds", plan->rounds);
    json_out_int(&json, "idle", plan->idle_workers);
    json_out_string(&json, "prices", view->request->ops);
    json_out_int(&json, "memory_bytes", (int64_t)view->room.memory);
    if (view->room.host > 0)
        json_out_int(&json, "host_memory_bytes", (int64_t)view->room.host);
    if (view->room.disk > 0)
        json_out_int(&json, "disk_room_bytes", (int64_t)view->room.disk);
    json_out_int(&json, "runtime_estimate_bytes",
                 (int64_t)figure(view, &chosen_stage(view)->worker, 0, ROW_RUNTIME, 0));
    if (view->data.known) {
        json_out_int(&json, "data_tokens", view->data.tokens);
        json_out_int(&json, "data_bytes", (int64_t)view->data.bytes);
        json_out_bool(&json, "data_exact", view->data.exact);
    }
    json_out_int(&json, "unsharded_bytes", (int64_t)plan->unsharded_bytes);
    json_out_bool(&json, "fits", plan_fits(chosen_stage(view), &view->room));
    json_stages(&json, view);
    if (plan->pipe.pp > 1)
        json_pipe(&json, view);
    json_out_open(&json, "activations", '{');
    for (int r = 0; r < PLAN_RECOMPUTES; r++)
        json_out_int(&json, recompute_word(r), (int64_t)plan->activation_bytes[r]);
    json_out_close(&json, '}');
    json_blocks(&json, view);
    json_advice(&json, view->advice);
    enum status st = view->lines ? json_lines(cli, &json, view) : STATUS_OK;
    if (st == STATUS_OK)
        return json_out_print(&json, cli->console);
    text_free(&json.text);
    return st;
}
