#include "train/session.h"
#include "base/placement.h"
#include "base/text.h"
#include "comm/launcher.h"
#include "plan/plan.h"
#include "train/models/model_weights.h"

/* The memory that each library takes on a GPU; plan's estimate of the runtime was made from these.
 */
static void log_in_use(struct session *session, const char *after)
{
    char human[32];
    size_t bytes = device_in_use(session->device);
    if (bytes > 0)
        log_debug(device_env(session->device), "%s of the GPU in use after %s",
                  text_human_bytes(human, (double)bytes), after);
}

static enum status start(struct env *env, struct compute_config compute,
                         const struct session_ranks *ranks, struct session *session)
{
    struct device_info info;
    device_look(compute.backend, -1, &info);
    /* Ranks that are threads use the GPUs of their process in turn. */
    bool in_turn = ranks && ranks->hub && info.count > 1;
    TRY(device_create(env, compute.backend,
                      in_turn ? ranks->rank % info.count : launcher_gpu(info.count),
                      &session->device));
    mem_limit(env->mem, device_memory(session->device), compute.memory_limit, "run.device_memory");
    log_in_use(session, "creating the context");
    if (ranks && ranks->near_gpu) /* before pinned memory is allocated and threads are started */
        placement_bind_near(device_gpu(session->device), env->threads);
    if (ranks) {
        struct comm_config comm = ranks->comm;
        comm.fast = compute.fast;
        TRY(ranks->hub ? comm_join(ranks->hub, ranks->rank, &comm, session->device, &session->comm)
                       : comm_create(&comm, session->device, &session->comm));
        comm_inject_delays(session->comm, ranks->delay, 0);
    }
    log_in_use(session, "joining the ranks");
    TRY(ops_create(session->device, compute.backend, compute.type, &session->ops));
    if (compute.fast)
        ops_be_fast(session->ops);
    ops_multiply_in(session->ops, compute.products);
    log_in_use(session, "creating library handles");
    return stream_create(session->device, "compute", &session->stream);
}

enum status session_join(struct env *env, struct compute_config compute,
                         const struct session_ranks *ranks, struct session *session)
{
    *session = (struct session){0};
    enum status st = start(env, compute, ranks, session);
    if (st != STATUS_OK) {
        if (session->comm)
            comm_abort(session->comm, log_first_error(env->log));
        session_destroy(session);
    }
    return st;
}

enum status session_fill(const struct model_config *model, const struct zero_config *store,
                         const struct session_spread *spread, struct session *session)
{
    static const struct session_spread whole = {.parallel = {.pp = 1}};
    struct zero_config local = *store;
    struct model_part part;
    enum status st;
    if (!spread)
        spread = &whole;
    bool fp16 = store->type == DTYPE_F16 || session->ops->type == DTYPE_F16;
    TRY(model_check_limits(device_env(session->device), model, fp16, 1, 1));
    TRY(plan_check_parallel(device_env(session->device), model,
                            session->comm ? comm_size(session->comm) : 1, &spread->parallel));
    TRY(spread_part(device_env(session->device), session->comm, spread->shape, &spread->parallel,
                    &part));
    TRY(model_create_part(session->device, model, &part, &session->model));
    TRY_OR(undo_model,
           spread_create(device_env(session->device), session->comm, model_graph(session->model),
                         spread->shape, &spread->parallel, store, &session->spread));
    spread_configure_store(&session->spread, &local);
    TRY_OR(undo_spread, zero_create(session->ops, session->stream, session->spread.copies,
                                    session->spread.graph, &local, &session->zero));
    return STATUS_OK;
undo_spread:
    spread_free(&session->spread);
undo_model:
    model_destroy(session->model);
    session->model = NULL;
    return st;
}

enum status session_create(struct env *env, struct compute_config compute,
                           const struct model_config *model, const struct zero_config *store,
                           struct session *session)
{
    TRY(session_join(env, compute, NULL, session));
    enum status st = session_fill(model, store, NULL, session);
    if (st != STATUS_OK)
        session_destroy(session);
    return st;
}

enum status session_agree(struct env *env, const struct agreement_facts *facts,
                          struct session *session)
{
    struct agreement agreement;
    if (!session->comm)
        return STATUS_OK;
    /* One host may still encode text while the ranks of another wait: no timeout meanwhile. */
    comm_set_patient(session->comm, true);
    enum status made = agreement_make(env, facts, &agreement);
    enum status st = made == STATUS_OK ? agreement_check(&agreement, session->comm) : made;
    comm_set_patient(session->comm, false);
    agreement_free(&agreement);
    if (made == STATUS_OK && st == STATUS_CONFIG) /* all ranks know it: no abort is needed */
        session_destroy(session);
    return st;
}

void session_fail(struct env *env, const struct session_ranks *ranks, enum status st,
                  const struct session *session)
{
    bool together = st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_DIVERGED;
    if (!session->comm || together)
        return;
    if (ranks->failing)
        ranks->failing(ranks->rank, st, log_first_error(env->log));
    comm_abort(session->comm, log_first_error(env->log));
}

/* --- a model that is only read -------------------------------------------------------------- */

struct zero_config session_reading_store(const struct layout_config *layout)
{
    const struct ranks_config *ranks = &layout->ranks;
    return (struct zero_config){.stage = ranks->stage,
                                .prefetch = (int)ranks->prefetch,
                                .shard_group = (int)ranks->shard_group,
                                .offload = run_offload(&layout->offload)};
}

enum status session_read(struct env *env, const struct session_reading *reading,
                         struct session *session)
{
    const struct zero_config store = session_reading_store(reading->layout);
    const struct session_spread spread = {.parallel = reading->layout->parallel,
                                          .shape = reading->shape};
    TRY(session_fill(&reading->model, &store, &spread, session));
    return model_weights_load(env, reading->source, session->model, session->zero);
}

void session_destroy(struct session *session)
{
    zero_destroy(session->zero);
    spread_free(&session->spread);
    model_destroy(session->model);
    stream_destroy(session->stream);
    ops_destroy(session->ops);
    comm_destroy(session->comm);
    device_destroy(session->device);
    *session = (struct session){0};
}
