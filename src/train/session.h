/* session -- a device with a model on it: what training, evaluation and generation all begin
 * with. */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H
#include "model/model.h"
#include "train/agreement.h"
#include "zero/zero.h"

/* How this rank joins the others: through a hub when ranks are threads, else by the back end. */
struct session_ranks {
    struct comm_config comm;
    struct comm_hub *hub; /* borrowed; NULL: by comm.backend */
    int rank;             /* in the hub */
    double delay; /* at most so many seconds before and after every call, at random: for tests */
    const struct agreement *agreement; /* borrowed: held against the others'; NULL: it is not */
};

struct session { /* open: its users work with the parts */
    struct device *device;
    struct comm *comm; /* NULL: one rank */
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    struct zero *zero;
};

/* Make all of them, parameters still zero; `ranks` NULL: one rank. `backend` is that of device
 * and ops. On failure nothing is left behind. */
enum status session_create(struct env *env, const char *backend, const struct session_ranks *ranks,
                           const struct model_config *model, const struct zero_config *store,
                           struct session *session);
void session_destroy(struct session *session); /* what was zeroed and never created is fine */

#endif
