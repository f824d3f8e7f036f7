/* session -- a device with a model on it: what training, evaluation and generation all begin
 * with. */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H
#include "model/model.h"
#include "zero/zero.h"

struct session { /* open: its users work with the parts */
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    struct zero *zero;
};

/* Make all five, parameters still zero. `backend` is that of device and ops. On failure nothing
 * is left behind. */
enum status session_create(struct env *env, const char *backend, const struct model_config *model,
                           const struct zero_config *store, struct session *session);
void session_destroy(struct session *session); /* what was zeroed and never created is fine */

#endif
