#include "cli/plan/plan_html.h"
#include "cli/plan/plan_view.h"
#include <string.h>
#include "base/clock.h"
#include "base/host.h"
#include "device/gpu_facts.h"

/* --- fixed and open keys ------------------------------------------------------------------ */

static struct search_fixed fixed_by(const struct options *options)
{
    return (struct search_fixed){
        .tp = options_is_set(options, "parallel.tp"),
        .pp = options_is_set(options, "parallel.pp"),
        .sequence = options_is_set(options, "parallel.sequence"),
        .regather = options_is_set(options, "parallel.regather"),
        .stage = options_is_set(options, "zero.stage"),
        .micro_batch = options_is_set(options, "train.micro_batch"),
        .recompute = options_is_set(options, "engine.recompute"),
        .schedule = options_is_set(options, "parallel.schedule"),
        .chunks = options_is_set(options, "parallel.chunks"),
        .shard_group = options_is_set(options, "zero.shard_group"),
        .accumulate = options_is_set(options, "zero.accumulate"),
        .offload = {.optimizer = options_is_set(options, "offload.optimizer"),
                    .grads = options_is_set(options, "offload.grads"),
                    .params = options_is_set(options, "offload.params"),
                    .share = options_is_set(options, "offload.share")},
        .window = options_is_set(options, "offload.window"),
        .update = options_is_set(options, "offload.update"),
        .activations = options_is_set(options, "offload.activations_share"),
    };
}

/* Reject combinations of keys that no layout can satisfy. */
static enum status check_keys(struct cli *cli, const struct run_config *config,
                              const struct search_fixed *fixed)
{
    const struct parallel_config *parallel = &config->parallel;
    if (fixed->chunks && parallel->chunks > 1 && fixed->schedule &&
        parallel->schedule != TIMETABLE_INTERLEAVED)
        return FAIL(cli->env, CONFIG,
                    "parallel.chunks=%lld, but parallel.schedule=%s has one chunk per rank; set "
                    "parallel.schedule=interleaved or omit it",
                    (long long)parallel->chunks, timetable_words[parallel->schedule]);
    return STATUS_OK;
}

/* Warn of keys that have no effect in any layout. An open key may take the value that they need. */
static void tell_unused(struct cli *cli, const struct run_config *config,
                        const struct search_fixed *fixed, int64_t gpus)
{
    struct parallel_config best = config->parallel;
    if (!fixed->pp)
        best.pp = gpus;
    if (!fixed->tp)
        best.tp = gpus;
    if (!fixed->sequence)
        best.sequence = best.tp > 1;
    spread_warn_unused(cli->env, &best);
}

/* The machine profile decides between GPU and CPU. */
static enum status choose_device(struct cli *cli, struct options *options,
                                 const struct machine_profile *machine, const char *name,
                                 const struct run_config *config, const char **device)
{
    int given = config->machine.device, own = machine->gpu ? RUN_DEVICE_CUDA : RUN_DEVICE_CPU;
    if (given != RUN_DEVICE_AUTO && given != own)
        return FAIL(
            cli->env, CONFIG,
            "run.device=%s, but --machine=%s computes on %s; choose another machine, or omit "
            "run.device",
            run_device_words[given], name, machine->gpu ? "GPUs" : "the CPU");
    *device = given == RUN_DEVICE_AUTO ? run_device_words[own] : NULL;
    return *device ? options_set(options, "run.device", *device, "--machine") : STATUS_OK;
}

/* --- the machine -------------------------------------------------------------------------- */

static enum status check_machine(struct cli *cli, const struct machine_profile *machine,
                                 const char *name, int64_t gpus)
{
    if (!machine->has_ops)
        return FAIL(
            cli->env, CONFIG,
            "--machine=%s has no speed of computation; measure it with: sifr bench ops --save=%s",
            name, name);
    if (!machine->has_comm && gpus > 1)
        return FAIL(
            cli->env, CONFIG,
            "--machine=%s has no speed of communication; measure it with: sifr bench comm -n 2 "
            "--save=%s, with -n for the ranks of a machine",
            name, name);
    return STATUS_OK;
}

/* Peak rate of a rank: run.peak_tflops, or known from the name of the GPU. */
static double peak_of(const struct run_config *config, const struct machine_profile *machine,
                      const char *words)
{
    enum dtype type = run_compute(config).type;
    double told = config->machine.peak_tflops * 1e12;
    if (told > 0)
        return told;
    double peak = gpu_peak_flops(words, type);
    return peak > 0 ? peak : gpu_peak_flops(machine->name, type);
}

/* --- the search --------------------------------------------------------------------------- */

/* "1.2 GiB, 3.4 GiB on the host": what is needed beyond the room. */
static void say_missing(const struct plan_room *needs, const struct plan_room *room,
                        struct text *text)
{
    const struct {
        size_t needed, given;
        const char *where;
    } places[] = {{needs->memory, room->memory, ""},
                  {needs->host, room->host, " on the host"},
                  {needs->disk, room->disk, " on disk"}};
    char word[32];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].given > 0 && places[i].needed > places[i].given)
            text_printf(text, "%s%s%s", text->bytes > 0 ? ", " : "",
                        text_human_bytes(word, (double)(places[i].needed - places[i].given)),
                        places[i].where);
}

/* The table is printed in any case; when nothing fits, an error follows it. */
static enum status show(struct cli *cli, const struct plan_search_view *view, bool json)
{
    const struct search_layout *nearest = &view->result->nearest;
    struct text words, missing;
    char a[32], b[32], c[PLAN_VIEW_MEMORY], d[PLAN_VIEW_MEMORY];
    TRY(json ? plan_search_view_json(cli, view) : plan_search_view_table(cli, view));
    if (view->result->count > 0)
        return STATUS_OK;
    text_init(&words, cli->env);
    text_init(&missing, cli->env);
    plan_search_say(nearest, &words);
    const struct plan_room room = {view->space->memory, view->space->host, view->space->disk};
    const struct plan_room needs = {nearest->needed_bytes, nearest->host_bytes,
                                    nearest->disk_bytes};
    say_missing(&needs, &room, &missing);
    enum status st =
        FAIL(cli->env, FIT,
             "no layout of %d rank%s fits in memory: the nearest, %s, needs %s per rank%s and "
             "there is %s%s; add %s per rank or more ranks, or reduce train.global_batch or "
             "train.context%s",
             view->space->request->ranks, view->space->request->ranks == 1 ? "" : "s",
             text_string(&words), text_human_bytes(a, (double)needs.memory),
             plan_view_elsewhere(&needs, &room, c), text_human_bytes(b, (double)room.memory),
             plan_view_elsewhere(&room, &room, d), text_string(&missing),
             room.host + room.disk == 0   ? "; --host-memory and --disk let state leave the device"
             : needs.memory > room.memory ? ", or set a smaller offload.window"
                                          : "");
    text_free(&words);
    text_free(&missing);
    return st;
}

static enum status search_and_show(struct cli *cli, const struct plan_search_asked *asked,
                                   struct plan_search_view *view, struct search_space *space)
{
    struct search_result result;
    struct plan_html_points points;
    double start = clock_seconds();
    plan_html_points_init(&points, cli->env);
    if (*asked->html) {
        space->visit = plan_html_visit;
        space->user = &points;
    }
    enum status st = search_layouts(cli->env, space, &result);
    if (st == STATUS_OK) {
        view->space = space;
        view->result = &result;
        view->seconds = clock_seconds() - start;
        if (*asked->html)
            st = plan_html_search(cli, view, &points, asked->html);
        if (st == STATUS_OK)
            st = show(cli, view, asked->json);
        search_result_free(cli->env, &result);
    }
    plan_html_points_free(&points);
    return st;
}

/* --- against the number of ranks ---------------------------------------------------------- */

/* The fastest layout of each number of ranks and the batch that suits it. If none fits, the search
 * for all ranks says why. */
static enum status scale_and_show(struct cli *cli, const struct plan_search_asked *asked,
                                  struct plan_search_view *view, struct search_space *space)
{
    double begin = clock_seconds();
    const struct batch_law law =
        batch_law_of(asked->noise->scale, space->global_batch, (double)view->config->train.steps);
    struct scaling scaling;
    TRY(scaling_make(cli->env, space, &law, &scaling));
    if (!scaling.fits)
        return search_and_show(cli, asked, view, space);
    view->space = space;
    view->result = &scaling.searched;
    view->seconds = clock_seconds() - begin;
    const struct plan_batch_view batch = {.config = view->config,
                                          .noise = asked->noise,
                                          .law = &law,
                                          .scaling = &scaling,
                                          .search = view,
                                          .ranks = space->request->ranks};
    return plan_batch_show(cli, &batch, asked->json);
}

static enum status search_on(struct cli *cli, struct options *options,
                             const struct plan_search_asked *asked, struct run_config *config,
                             const struct machine_profile *machine)
{
    struct search_fixed fixed = fixed_by(options);
    struct plan_search_view view = {.config = config,
                                    .options = options,
                                    .machine_words = machine_preset_words(asked->machine)};
    TRY(check_machine(cli, machine, asked->machine, asked->gpus));
    TRY(check_keys(cli, config, &fixed));
    TRY(choose_device(cli, options, machine, asked->machine, config, &view.device));
    /* A given global batch is split into micro-batches by the search; without one it is a single
     * micro-batch, as in a run. */
    if (!fixed.micro_batch && config->train.global_batch > 0)
        TRY(options_set(options, "train.micro_batch", "1", "--gpus"));
    TRY(run_config_resolve(cli->env, options, NULL, NULL, config));
    tell_unused(cli, config, &fixed, asked->gpus);
    /* CPU ranks get as many threads as the measured ranks, unless run.threads is set. */
    if (!machine->gpu && machine->ops_ranks.threads > 0 && !options_is_set(options, "run.threads"))
        view.threads = config->machine.threads = machine->ops_ranks.threads;
    struct plan_request request = run_plan_request(config, (int)asked->gpus);
    request.capability = machine->capability;
    int node = asked->node > 0 ? (int)asked->node : machine->comm.node;
    struct machine_profile cluster = *machine; /* with the given node size */
    cluster.comm.node = node > 0 ? node : (int)asked->gpus;
    view.alone = node == 0;
    struct search_space space = {.request = &request,
                                 .global_batch = config->train.global_batch,
                                 .batch_divisor = batch_ramp_divisor(&config->ramp),
                                 .machine = &cluster,
                                 .node = cluster.comm.node,
                                 .memory = asked->memory > 0 ? (size_t)asked->memory
                                                             : machine->memory_bytes,
                                 .host = (size_t)asked->host_memory,
                                 .disk = (size_t)asked->disk,
                                 .fixed = fixed,
                                 .most = (int)asked->top};
    view.peak = peak_of(config, machine, view.machine_words);
    return asked->noise ? scale_and_show(cli, asked, &view, &space)
                        : search_and_show(cli, asked, &view, &space);
}

enum status plan_search(struct cli *cli, struct options *options,
                        const struct plan_search_asked *asked, struct run_config *config)
{
    struct machine_profile machine;
    TRY(machine_profile_load(cli->env, asked->machine, &machine));
    enum status st = search_on(cli, options, asked, config, &machine);
    machine_profile_free(cli->env, &machine);
    return st;
}
