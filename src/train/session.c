/* session -- see session.h. */
#include "train/session.h"

static enum status join(const struct session_ranks *ranks, struct session *session)
{
    if (ranks->hub)
        return comm_join(ranks->hub, ranks->rank, &ranks->comm, session->device, &session->comm);
    return comm_create(&ranks->comm, session->device, &session->comm);
}

/* Ranks that do not agree all know it, and part without a word. */
static enum status meet(const struct session_ranks *ranks, struct session *session)
{
    TRY(join(ranks, session));
    comm_inject_delays(session->comm, ranks->delay, 0);
    enum status st =
        ranks->agreement ? agreement_check(ranks->agreement, session->comm) : STATUS_OK;
    if (st == STATUS_CONFIG) {
        comm_destroy(session->comm);
        session->comm = NULL;
    }
    return st;
}

static enum status build(struct env *env, const char *backend, const struct session_ranks *ranks,
                         const struct model_config *model, const struct zero_config *store,
                         struct session *session)
{
    TRY(device_create(env, backend, 0, &session->device));
    if (ranks)
        TRY(meet(ranks, session));
    TRY(ops_create(session->device, backend, DTYPE_F32, &session->ops));
    TRY(stream_create(session->device, "compute", &session->stream));
    TRY(model_create(session->device, model, &session->model));
    return zero_create(session->ops, session->stream, session->comm, model_graph(session->model),
                       store, &session->zero);
}

enum status session_create(struct env *env, const char *backend, const struct session_ranks *ranks,
                           const struct model_config *model, const struct zero_config *store,
                           struct session *session)
{
    *session = (struct session){0};
    enum status st = build(env, backend, ranks, model, store, session);
    if (st != STATUS_OK) {
        if (session->comm)
            comm_abort(session->comm, log_first_error(env->log));
        session_destroy(session);
    }
    return st;
}

void session_destroy(struct session *session)
{
    zero_destroy(session->zero);
    model_destroy(session->model);
    stream_destroy(session->stream);
    ops_destroy(session->ops);
    comm_destroy(session->comm);
    device_destroy(session->device);
    *session = (struct session){0};
}
