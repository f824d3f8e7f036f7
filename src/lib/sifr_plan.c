/* sifr_plan -- what a rank will need: the trainer itself, built on a dry device with a dry
 * communicator. Nothing is computed twice, so a plan cannot drift from what runs. */
#include <stdlib.h>
#include <string.h>

#include "lib/lib_impl.h"

static const enum mem_category categories[] = {
    [SIFR_PARAMS] = MEM_PARAMS,           [SIFR_GRADS] = MEM_GRADS,
    [SIFR_OPTIMIZER] = MEM_OPTIMIZER,     [SIFR_SLOTS] = MEM_SLOTS,
    [SIFR_ACTIVATIONS] = MEM_ACTIVATIONS, [SIFR_SCRATCH_MEMORY] = MEM_SCRATCH,
    [SIFR_LOADER] = MEM_LOADER,           [SIFR_OTHER] = MEM_OTHER,
};

size_t sifr_memory(const struct sifr_trainer *t, enum sifr_memory_kind kind)
{
    if (kind == SIFR_DISK)
        return mem_sums(t->context->env.mem, MEM_DISK, false).total_bytes;
    bool known = kind >= SIFR_PARAMS && kind < SIFR_MEMORY_KINDS;
    return known ? mem_bytes(t->context->env.mem, categories[kind]) : 0;
}

static enum status open_dry(struct sifr_context *dry, int ranks, int rank)
{
    struct session *s = &dry->session;
    TRY(device_create(&dry->env, "dry", 0, &s->device));
    if (ranks > 1)
        TRY(comm_create_dry(s->device, rank, ranks, false, &s->comm));
    TRY(ops_create(s->device, "cpu", DTYPE_F32, &s->ops));
    return stream_create(s->device, "compute", &s->stream);
}

static enum status measure(struct sifr_context *dry, const struct sifr_model *model,
                           const struct sifr_options *options, struct sifr_plan *plan)
{
    struct sifr_trainer *t;
    struct engine_result step;
    TRY(trainer_open(dry, model, options, &t));
    struct traffic before = engine_traffic(t->engine);
    enum status st = dry->ranks > 1 ? engine_step(t->engine, 1, 0.0, &step) : STATUS_OK;
    struct traffic after = engine_traffic(t->engine);
    for (int kind = 0; kind < SIFR_MEMORY_KINDS; kind++) {
        plan->bytes[kind] = sifr_memory(t, kind);
        plan->total += kind == SIFR_DISK ? 0 : plan->bytes[kind];
    }
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        plan->sent += (double)(after.sent[purpose] - before.sent[purpose]);
    sifr_trainer_destroy(t);
    return st;
}

static enum status make_plan(struct sifr_context *context, const struct sifr_model *model,
                             const struct sifr_options *options, int ranks, int rank,
                             struct sifr_plan *plan)
{
    struct env *env = &context->env;
    struct sifr_context *dry;
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return FAIL(env, CONFIG, "sifr_plan: rank %d of %d", rank, ranks);
    dry = calloc(1, sizeof *dry);
    if (!dry)
        return FAIL(env, MEMORY, "out of memory for a plan");
    *dry = (struct sifr_context){.rank = rank, .ranks = ranks, .holders = 1};
    dry->env = (struct env){.log = env->log,
                            .mem = mem_create(),
                            .threads = env->threads}; /* errors go to the caller */
    enum status st = dry->env.mem ? open_dry(dry, ranks, rank) : STATUS_MEMORY;
    if (st == STATUS_OK)
        st = measure(dry, model, options, plan);
    session_destroy(&dry->session);
    mem_destroy(dry->env.mem);
    free(dry);
    return st;
}

int sifr_plan(struct sifr_context *context, const struct sifr_model *model,
              const struct sifr_options *options, int ranks, int rank, struct sifr_plan *plan)
{
    struct sifr_plan all = {.size = plan->size};
    enum status st = call_begin(context);
    if (st == STATUS_OK)
        st = make_plan(context, model, options, ranks, rank, &all);
    if (st == STATUS_OK)
        memcpy(plan, &all, all.size < sizeof all ? all.size : sizeof all);
    return call_end(context, st);
}
