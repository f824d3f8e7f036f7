/* search_why -- compares layouts in words: where a slower one loses time, and what each part of the
 * first is for.
 *
 * Nothing is decided here. The time of a step consists of computing, waiting for messages, idling
 * in the pipeline, the update, and waiting for offloaded state; the part that grew most is the
 * reason.
 */
#include <stdio.h>

#include "plan/search_impl.h"
#include "zero/partition.h"

/* --- two layouts ------------------------------------------------------------------------------ */

enum part { PART_COMPUTE, PART_WAIT, PART_IDLE, PART_UPDATE, PART_OFFLOAD, PART_COUNT };

static void parts_of(const struct plan_time *time, double parts[PART_COUNT])
{
    double passes = time->compute - time->update;
    parts[PART_UPDATE] = time->update;
    parts[PART_COMPUTE] = passes > 0 ? passes : 0;
    parts[PART_IDLE] = time->bubble * parts[PART_COMPUTE];
    parts[PART_WAIT] = time->waited;
    double rest = time->step - time->compute - parts[PART_IDLE] - time->waited;
    bool moves = time->moved[TRAFFIC_LINK_IN] > 0 || time->moved[TRAFFIC_DISK_READ] > 0;
    parts[PART_OFFLOAD] = moves && rest > 0 ? rest : 0;
}

/* The part by which `slow` exceeds `fast` the most. */
static enum part largest_part(const struct plan_time *slow, const struct plan_time *fast)
{
    double a[PART_COUNT], b[PART_COUNT];
    enum part most = PART_COMPUTE;
    parts_of(slow, a);
    parts_of(fast, b);
    for (int i = 1; i < PART_COUNT; i++)
        if (a[i] - b[i] > a[most] - b[most])
            most = (enum part)i;
    return most;
}

static enum traffic_purpose largest_purpose(const struct plan_time *slow,
                                            const struct plan_time *fast)
{
    enum traffic_purpose most = TRAFFIC_GATHER;
    for (int purpose = 1; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        if (slow->sent[purpose] - fast->sent[purpose] > slow->sent[most] - fast->sent[most])
            most = (enum traffic_purpose)purpose;
    return most;
}

static const char *purpose_words(enum traffic_purpose purpose)
{
    static const char *const words[TRAFFIC_PURPOSE_COUNT] = {
        [TRAFFIC_GATHER] = "parameters between copies",
        [TRAFFIC_REDUCE] = "gradients between copies",
        [TRAFFIC_MUON] = "matrices to orthogonalize",
        [TRAFFIC_PIPE] = "activations between stages",
        [TRAFFIC_TENSOR] = "parts of a layer",
        [TRAFFIC_CONTROL] = "counts and norms"};
    return words[purpose];
}

/* Why the passes of `slow` take longer. */
static const char *compute_words(const struct plan_request *slow, const struct plan_request *fast)
{
    if (slow->engine.recompute > fast->engine.recompute)
        return "recomputes more activations to fit";
    if (slow->parallel.tp > fast->parallel.tp)
        return "splits matrices further and communicates more inside layers";
    if (slow->engine.micro_batch < fast->engine.micro_batch)
        return "computes smaller micro-batches";
    if (slow->parallel.pp > fast->parallel.pp)
        return "cuts the layers into less even stages";
    if (slow->zero.local && !fast->zero.local)
        return "sums gradients on each worker first";
    return "computes longer";
}

static void compare(const struct search_layout *slow, const struct search_layout *fast, char *out,
                    size_t bytes)
{
    const struct plan_time *a = &slow->time, *b = &fast->time;
    switch (largest_part(a, b)) {
    case PART_WAIT:
        snprintf(out, bytes, "waits longer for messages, most for %s",
                 purpose_words(largest_purpose(a, b)));
        break;
    case PART_IDLE:
        snprintf(out, bytes, "idles %.1f %% of its passes in the pipeline, not %.1f %%",
                 100 * a->bubble, 100 * b->bubble);
        break;
    case PART_OFFLOAD: snprintf(out, bytes, "waits longer for offloaded state"); break;
    case PART_UPDATE: snprintf(out, bytes, "updates more parameters on each rank"); break;
    default: snprintf(out, bytes, "%s", compute_words(&slow->request, &fast->request));
    }
}

static void print_mesh(const struct search_layout *layout, char *out, size_t bytes)
{
    snprintf(out, bytes, "tp %d pp %d dp %d", (int)layout->request.parallel.tp,
             (int)layout->request.parallel.pp, layout->dp);
}

void search_say_why(struct search_result *result)
{
    char words[120], mesh[48];
    struct search_layout *first = &result->layouts[0];
    for (int i = 1; i < result->count; i++) {
        compare(&result->layouts[i], first, words, sizeof words);
        snprintf(result->layouts[i].why, sizeof first->why, "%s", words);
    }
    if (result->count < 2) {
        snprintf(first->why, sizeof first->why, "the only layout that fits");
        return;
    }
    compare(&result->layouts[1], first, words, sizeof words);
    print_mesh(&result->layouts[1], mesh, sizeof mesh);
    snprintf(first->why, sizeof first->why, "the next, %s, %s", mesh, words);
}

/* --- the first, part by part ------------------------------------------------------------------ */

static void explain_fit(const struct search_space *space, const struct search_result *result,
                        struct text *text)
{
    struct roster one = roster_of(0, 1, 0);
    double state = formula_state(&one, sharding_of(0), (double)result->parameters, result->widths);
    char a[32], b[32];
    text_printf(text, "fit      one copy of the model's state is %s", text_human_bytes(a, state));
    if (space->memory == 0)
        text_add(text, "; memory is not limited\n");
    else if (plan_is_offloaded(&result->layouts[0].request))
        text_printf(text, ", a rank has %s: a part of it leaves the device\n",
                    text_human_bytes(b, (double)space->memory));
    else if (state > (double)space->memory)
        text_printf(text, ", a rank has %s: it is spread over at least %d ranks\n",
                    text_human_bytes(b, (double)space->memory),
                    (int)(state / (double)space->memory) + 1);
    else
        text_printf(text, ", a rank has %s: activations decide what fits\n",
                    text_human_bytes(b, (double)space->memory));
}

static void explain_tp(const struct search_space *space, const struct search_layout *first,
                       struct text *text)
{
    const struct comm_prices *wires = &space->machine->comm;
    int tp = (int)first->request.parallel.tp;
    if (tp == 1) {
        text_add(text, "tp 1     layers are not split: nothing is sent inside a layer\n");
        return;
    }
    text_printf(text, "tp %-5d splits every matrix and every layer's activations inside a node",
                tp);
    if (space->request->ranks > space->node)
        text_printf(text, ", where wires are %.3g times as fast as between nodes",
                    wires->inside.bytes_per_second / wires->between.bytes_per_second);
    text_add(text, "\n");
}

static void explain_pp(const struct search_layout *first, struct text *text)
{
    const struct parallel_config *parallel = &first->request.parallel;
    char word[32];
    if (parallel->pp < 2) {
        text_add(text, first->request.zero.stage == PLAN_ZERO_STAGES - 1 && first->dp > 1
                           ? "pp 1     no pipeline: parameters are gathered where they are needed\n"
                           : "pp 1     no pipeline: no rank waits for the layers of another\n");
        return;
    }
    text_printf(text,
                "pp %-5d cuts the layers: stages send activations only, %s per step and rank; "
                "%s idles %.1f %%\n",
                (int)parallel->pp, text_human_bytes(word, (double)first->time.sent[TRAFFIC_PIPE]),
                timetable_words[parallel->schedule], 100 * first->time.bubble);
}

/* Copies of the model, and what each computes. */
static void explain_copies(const struct search_space *space, const struct search_layout *first,
                           struct text *text)
{
    static const char *const recomputed[PLAN_RECOMPUTES] = {"nothing", "what is cheap",
                                                            "everything"};
    const struct plan_request *request = &first->request;
    int64_t size = request->engine.micro_batch, servers = request->zero.servers;
    int64_t batches = (space->global_batch + size - 1) / size, workers = first->dp - servers;
    int64_t none = first->rounds * workers - batches; /* without a micro-batch in the last round */
    text_printf(text, "dp %-5d cop%s", first->dp, first->dp == 1 ? "y" : "ies");
    if (servers > 0)
        text_printf(text, ", %lld of them servers", (long long)servers);
    text_printf(text, ": %lld micro-batch%s of %lld, %s%lld each; recomputes %s\n",
                (long long)batches, batches == 1 ? "" : "es", (long long)size,
                none > 0 ? "at most " : "", (long long)first->rounds,
                recomputed[request->engine.recompute]);
    if (none > 0 && first->rounds > 1)
        text_printf(text, "         in the last round %lld of %lld copies %s no micro-batch\n",
                    (long long)none, (long long)workers, none == 1 ? "has" : "have");
    else if (none > 0)
        text_printf(text,
                    "note     %lld of %lld copies %s nothing to compute: a step has %lld "
                    "micro-batch%s; raise train.global_batch or use fewer ranks\n",
                    (long long)none, (long long)workers, none == 1 ? "has" : "have",
                    (long long)batches, batches == 1 ? "" : "es");
}

static void explain_zero(const struct search_layout *first, struct text *text)
{
    static const char *const cut[PLAN_ZERO_STAGES] = {
        "every copy has its whole state", "optimizer state is sharded over the copies",
        "gradients and optimizer state are sharded over the copies",
        "parameters are sharded over the copies, too, and gathered for every pass"};
    const struct plan_request *request = &first->request;
    if (first->dp > 1)
        text_printf(text, "stage %d  %s%s\n", request->zero.stage, cut[request->zero.stage],
                    request->zero.shard_group > 0 ? " of a group" : "");
}

static void explain_sums(const struct search_layout *first, struct text *text)
{
    if (!first->request.zero.local)
        return;
    text_add(text, "local    each worker sums its micro-batches and sends gradients once per step");
    if (first->each > first->time.step)
        text_printf(text, ": sending every one takes %.1f %% longer",
                    100 * (first->each / first->time.step - 1));
    text_add(text,
             "\n         the bits depend on the number of workers; zero.accumulate=each gives "
             "the same for any\n");
}

static const char *place_words(enum far_kind kind)
{
    return kind == FAR_DISK ? "on disk" : "on the host";
}

/* What has left the device, what moves, and what it costs. */
static void explain_offload(const struct search_layout *first, struct text *text)
{
    static const char *const ways[TRAFFIC_WAY_COUNT] = {[TRAFFIC_LINK_IN] = "to the GPU",
                                                        [TRAFFIC_LINK_OUT] = "from the GPU",
                                                        [TRAFFIC_DISK_READ] = "read from disk",
                                                        [TRAFFIC_DISK_WRITTEN] = "written to disk"};
    const struct zero_offload *offload = &first->request.zero.offload;
    const char *before = "\n         per step and rank";
    char word[32];
    if (!plan_moves_anything(&first->request))
        return;
    const char *next = "offload  ";
    if (offload->optimizer != FAR_NONE) {
        text_printf(text, "%s%.3g %% of the optimizer state is %s", next, 100 * offload->share,
                    place_words(offload->optimizer));
        next = ", ";
    }
    if (offload->grads != FAR_NONE) {
        text_printf(text, "%ssummed gradients are %s", next, place_words(offload->grads));
        next = ", ";
    }
    if (offload->params != FAR_NONE) {
        text_printf(text, "%sparameters are %s", next, place_words(offload->params));
        next = ", ";
    }
    if (first->request.engine.activations != FAR_NONE)
        text_printf(text, "%skept activations of %.3g %% of the layers are %s", next,
                    100 * first->request.engine.activations_share, place_words(FAR_HOST));
    if (offload->optimizer == FAR_HOST && offload->on_host)
        text_add(text, "\n         the CPU updates the state");
    else if (offload->optimizer == FAR_HOST)
        text_printf(text, "\n         the state passes through %s of the device",
                    text_human_bytes(word, (double)offload->window));
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++) {
        if (first->time.moved[way] == 0)
            continue;
        text_printf(text, "%s %s %s", before,
                    text_human_bytes(word, (double)first->time.moved[way]), ways[way]);
        before = ",";
    }
    text_add(text, "\n");
    if (first->device > 0)
        text_printf(text,
                    "         a step takes %.4g s; with memory for everything on the device this "
                    "layout would take %.4g s\n",
                    first->time.step, first->device);
}

static void explain_next(const struct search_result *result, struct text *text)
{
    const struct search_layout *first = &result->layouts[0], *next = &result->layouts[1];
    char mesh[48], word[32];
    if (result->count < 2)
        return;
    double more = (double)next->needed_bytes - (double)first->needed_bytes;
    print_mesh(next, mesh, sizeof mesh);
    text_printf(text, "next     %s takes %.1f %% longer and %s %s: it %s\n", mesh,
                100 * (next->time.step / first->time.step - 1),
                text_human_bytes(word, more < 0 ? -more : more), more < 0 ? "less" : "more",
                next->why);
}

void search_explain(const struct search_space *space, const struct search_result *result,
                    struct text *text)
{
    if (result->count == 0)
        return;
    explain_fit(space, result, text);
    explain_tp(space, &result->layouts[0], text);
    explain_pp(&result->layouts[0], text);
    explain_zero(&result->layouts[0], text);
    explain_copies(space, &result->layouts[0], text);
    explain_sums(&result->layouts[0], text);
    explain_offload(&result->layouts[0], text);
    explain_next(result, text);
}
