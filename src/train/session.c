/* session -- see session.h. */
#include "train/session.h"

static enum status build(struct env *env, const char *backend, const struct model_config *model,
                         const struct zero_config *store, struct session *session)
{
    TRY(device_create(env, backend, 0, &session->device));
    TRY(ops_create(session->device, backend, DTYPE_F32, &session->ops));
    TRY(stream_create(session->device, "compute", &session->stream));
    TRY(model_create(session->device, model, &session->model));
    return zero_create(session->ops, session->stream, NULL, model_graph(session->model), store,
                       &session->zero);
}

enum status session_create(struct env *env, const char *backend, const struct model_config *model,
                           const struct zero_config *store, struct session *session)
{
    *session = (struct session){0};
    enum status st = build(env, backend, model, store, session);
    if (st != STATUS_OK)
        session_destroy(session);
    return st;
}

void session_destroy(struct session *session)
{
    zero_destroy(session->zero);
    model_destroy(session->model);
    stream_destroy(session->stream);
    ops_destroy(session->ops);
    device_destroy(session->device);
    *session = (struct session){0};
}
