/* session -- see session.h. */
#include "train/session.h"
#include "comm/launcher.h"

int session_card(int count)
{
    struct launcher launcher;
    if (count < 2 || !launcher_find(&launcher))
        return 0;
    return (launcher.local_rank >= 0 ? launcher.local_rank : launcher.rank) % count;
}

/* Ranks that are threads take the cards of their process in turn. */
static enum status open_device(struct env *env, const char *backend,
                               const struct session_ranks *ranks, struct device **device)
{
    struct device_info info;
    device_look(backend, -1, &info);
    bool thread = ranks && ranks->hub && info.count > 1;
    return device_create(env, backend, thread ? ranks->rank % info.count : session_card(info.count),
                         device);
}

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
    enum status st =
        ranks->agreement ? agreement_check(ranks->agreement, session->comm) : STATUS_OK;
    if (st == STATUS_CONFIG) {
        comm_destroy(session->comm);
        session->comm = NULL;
    }
    return st;
}

static enum status build(struct env *env, struct session_place place,
                         const struct session_ranks *ranks, const struct model_config *model,
                         const struct zero_config *store, struct session *session)
{
    TRY(open_device(env, place.backend, ranks, &session->device));
    if (ranks)
        TRY(meet(ranks, session));
    TRY(ops_create(session->device, place.backend, place.type, &session->ops));
    TRY(stream_create(session->device, "compute", &session->stream));
    TRY(model_create(session->device, model, &session->model));
    return zero_create(session->ops, session->stream, session->comm, model_graph(session->model),
                       store, &session->zero);
}

enum status session_create(struct env *env, struct session_place place,
                           const struct session_ranks *ranks, const struct model_config *model,
                           const struct zero_config *store, struct session *session)
{
    *session = (struct session){0};
    enum status st = build(env, place, ranks, model, store, session);
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
