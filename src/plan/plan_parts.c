/* plan_parts -- builds ranks of a run on a dry device with a dry communicator: the real model,
 * store and engine. */
#include "engine/decoder.h"
#include "plan/plan_impl.h"

enum status plan_account_open(const struct env *env, int threads, struct env *own)
{
    *own = (struct env){.log = env->log, .mem = mem_create(), .threads = threads};
    return own->mem ? STATUS_OK : STATUS_MEMORY;
}

int plan_spread_over(const struct plan_request *request)
{
    return plan_pp_stages(request) * plan_tp(request);
}

struct timetable_costs plan_message_costs(const struct comm_prices *prices, int pp, int tp,
                                          double bytes)
{
    bool far = prices->node > 0 && (pp - 1) * tp / prices->node > 0;
    const struct comm_wire *wire = far ? &prices->between : &prices->inside;
    double rate = wire->bytes_per_second;
    return (struct timetable_costs){.latency = wire->latency + wire->message,
                                    .transfer = rate > 0 ? bytes / rate : 0.0,
                                    .transfers = TIMETABLE_LINKS};
}

struct model_part plan_first_part(const struct plan_request *request)
{
    const struct parallel_config *p = &request->parallel;
    return (struct model_part){
        .tp = p->tp > 0 ? (int)p->tp : 1, .sequence = p->sequence, .regather = p->regather};
}

enum status plan_device_create(struct env *env, const struct plan_request *request,
                               const struct plan_clock *clock, struct device **device)
{
    TRY(device_create(env, request->gpu ? "dry-gpu" : "dry", 0, device));
    device_assume(*device, request->capability);
    if (!clock || !clock->machine)
        return STATUS_OK;
    const struct machine_profile *m = clock->machine;
    /* On a GPU a copy is a launch like any other. */
    double call = request->gpu ? m->ops.rates[OPS_KIND_MEMORY].call : 0.0;
    device_keep_time(*device,
                     &(struct device_pace){.call = call,
                                           .copy_bytes_per_second = m->copy_bytes_per_second,
                                           .theft = m->comm.theft,
                                           .link_bytes_per_second = m->offload.link,
                                           .disk_read_bytes_per_second = m->offload.disk_read,
                                           .disk_write_bytes_per_second = m->offload.disk_write,
                                           .host_update_bytes_per_second = m->offload.host_update});
    return STATUS_OK;
}

enum status plan_parts_model(struct env *env, const struct plan_request *request,
                             struct plan_parts *p)
{
    TRY(plan_device_create(env, request, NULL, &p->device));
    return model_create(p->device, &request->model, &p->model);
}

/* The part of the model that `rank` has, and its groups. */
static enum status build_part(struct env *env, const struct plan_request *request, int rank,
                              struct unit_shape shape, const struct plan_clock *clock,
                              struct plan_parts *p)
{
    struct model_part part;
    TRY(plan_device_create(env, request, clock, &p->device));
    if (request->ranks > 1)
        TRY(comm_create_dry(p->device, rank, request->ranks, request->staged, &p->comm));
    if (p->comm && clock && clock->machine)
        comm_set_prices(p->comm, &clock->machine->comm);
    TRY(spread_part(env, p->comm, shape, &request->parallel, &part));
    TRY(model_create_part(p->device, &request->model, &part, &p->model));
    return spread_create(env, p->comm, model_graph(p->model), shape, &request->parallel,
                         &request->zero, &p->spread);
}

enum status plan_parts_build(struct env *env, const struct plan_request *request, int rank,
                             const struct plan_clock *clock, struct plan_parts *p)
{
    struct zero_config store = request->zero;
    store.micro_batches = request->engine.micro_batches;
    struct engine_config engine = request->engine;
    struct unit_shape shape = {.batch = engine.micro_batch, .tokens = engine.tokens};
    TRY(plan_check_parallel(env, &request->model, request->ranks, &request->parallel));
    TRY(build_part(env, request, rank, shape, clock, p));
    TRY(ops_create(p->device, request->ops, request->compute, &p->ops));
    ops_multiply_in(p->ops, request->products);
    p->ops->meter = clock ? clock->meter : NULL;
    TRY(stream_create(p->device, "compute", &p->stream));
    spread_configure_store(&p->spread, &store);
    spread_configure_engine(&p->spread, &engine);
    const struct unit_graph *graph = p->spread.graph;
    TRY(zero_create(p->ops, p->stream, p->spread.copies, graph, &store, &p->zero));
    if (!request->decode_only)
        TRY(engine_create(p->ops, p->stream, graph, p->zero, &engine, &p->engine));
    if (p->comm && request->saves_apart)
        TRY(comm_dup(p->comm, "save", &p->save));
    if (request->decode_tokens == 0)
        return STATUS_OK;
    const struct decoder_config decoder = {.pipe = spread_pipe(&p->spread),
                                           .group = spread_tp_group(&p->spread),
                                           .tokens = request->decode_tokens,
                                           .chunk = request->decode_chunk,
                                           .rows = request->decode_rows};
    return decoder_create(p->ops, p->stream, graph, p->zero, &decoder, &p->decoder);
}

void plan_parts_free(struct plan_parts *p)
{
    decoder_destroy(p->decoder);
    engine_destroy(p->engine);
    zero_destroy(p->zero);
    spread_free(&p->spread);
    comm_destroy(p->save);
    model_destroy(p->model);
    comm_destroy(p->comm);
    stream_destroy(p->stream);
    ops_destroy(p->ops);
    device_destroy(p->device);
}
