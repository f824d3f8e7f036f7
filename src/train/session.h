/* session -- a device with a model on it: the common start of training, evaluation and generation.
 */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H
#include "engine/spread.h"
#include "model/model.h"
#include "train/config/config.h"

/* How this rank joins the others: through a hub if ranks are threads, else through the back end. */
struct session_ranks {
    struct comm_config comm; /* comm.fast is ignored: compute_config decides */
    struct comm_hub *hub;    /* borrowed; NULL if ranks are processes: comm.backend decides */
    int rank;                /* of this thread or process */
    double delay; /* for tests: longest random wait before and after every call, seconds */
    /* Called before the other ranks learn of a failure: they exit then, and a launcher may kill
     * this rank too. May be NULL. */
    void (*failing)(int rank, enum status st, const char *error);
};

struct session { /* open */
    struct device *device;
    struct comm *comm; /* NULL if there is one rank */
    struct ops *ops;
    struct stream *stream;
    struct model *model;
    struct spread spread; /* this rank's part of the model; store and engine use its graph */
    struct zero *zero;
};

/* Create the device, the communicator (none if `ranks` is NULL) and ops; all libraries are
 * initialized then. The ranks of a machine use its GPUs in turn. On failure nothing is left behind.
 */
enum status session_join(struct env *env, struct compute_config compute,
                         const struct session_ranks *ranks, struct session *session);
/* How a model is spread over the ranks, and the micro-batch for which PP stages are balanced. */
struct session_spread {
    struct parallel_config parallel;
    struct unit_shape shape;
};
/* Create the model and the store; parameters are zero. Without `spread` every rank has the whole
 * model. On failure the session is unchanged. */
enum status session_fill(const struct model_config *model, const struct zero_config *store,
                         const struct session_spread *spread, struct session *session);
/* Both, for one rank with the whole model. */
enum status session_create(struct env *env, struct compute_config compute,
                           const struct model_config *model, const struct zero_config *store,
                           struct session *session);
void session_destroy(struct session *session); /* a zeroed session is fine */

#endif
