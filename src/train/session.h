/* session -- a device with a model on it: what training, evaluation and generation all begin
 * with. */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H
#include "engine/spread.h"
#include "model/model.h"
#include "train/config/config.h"

/* How this rank joins the others: through a hub when ranks are threads, else by the back end. */
struct session_ranks {
    struct comm_config comm; /* whether it is fast, the place says */
    struct comm_hub *hub;    /* borrowed; NULL: by comm.backend */
    int rank;                /* of this one */
    double delay; /* at most so many seconds before and after every call, at random: for tests */
    /* Told of a failure before the other ranks are, who then end and may take this one with them.
     * NULL: nobody is. */
    void (*failing)(int rank, enum status st, const char *error);
};

struct session { /* open: its users work with the parts */
    struct device *device;
    struct comm *comm; /* NULL: one rank */
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    struct spread spread; /* what of the model is here: its graph is the store's and the engine's */
    struct zero *zero;
};

/* Device, communicator (`ranks` NULL: one rank, there is none) and ops: what libraries start, they
 * have started then. The ranks of a machine take its GPUs in turn. On failure nothing is left
 * behind. */
enum status session_join(struct env *env, struct compute_config place,
                         const struct session_ranks *ranks, struct session *session);
/* How a model is spread over the ranks, and the batch that its parts are balanced for. */
struct session_spread {
    struct parallel_config parallel;
    struct unit_shape shape;
    bool keep_swiglu; /* see model_part */
};
/* The model and the store, parameters still zero; `spread` NULL: it is whole on every rank. On
 * failure the session is as it was. */
enum status session_fill(const struct model_config *model, const struct zero_config *store,
                         const struct session_spread *spread, struct session *session);
/* Both, for one rank. */
enum status session_create(struct env *env, struct compute_config place,
                           const struct model_config *model, const struct zero_config *store,
                           const struct session_spread *spread, struct session *session);
void session_destroy(struct session *session); /* what was zeroed and never created is fine */

#endif
