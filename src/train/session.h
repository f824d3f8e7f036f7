/* session -- a device with a model on it: the common start of training, evaluation and generation.
 */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H
#include "engine/spread.h"
#include "model/model.h"
#include "train/config/agreement.h"
#include "train/config/config.h"

/* How this rank joins the others: through a hub if ranks are threads, else through the back end. */
struct session_ranks {
    struct comm_config comm; /* comm.fast is ignored: compute_config decides */
    struct comm_hub *hub;    /* borrowed; NULL if ranks are processes: comm.backend decides */
    int rank;                /* of this thread or process */
    bool near_gpu;           /* keep this thread to the CPUs near its GPU (base/placement.h) */
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
/* Fail on every rank unless all have the same facts; then the session is destroyed. Does nothing on
 * one rank. Collective. */
enum status session_agree(struct env *env, const struct agreement_facts *facts,
                          struct session *session);
/* This rank has failed: tell the others, which must not wait for it. `ranks` as for session_join.
 * Does nothing where all ranks come to this status together. */
void session_fail(struct env *env, const struct session_ranks *ranks, enum status st,
                  const struct session *session);

/* --- a model that is only read -------------------------------------------------------------- */

/* The configuration of its store: no gradients, no optimizer. */
struct zero_config session_reading_store(const struct layout_config *layout);
/* session_fill for such a store, then load the weights: every rank reads what it holds. */
struct session_reading {
    struct model_config model;
    const struct model_source *source;
    const struct layout_config *layout;
    struct unit_shape shape; /* for which PP stages are balanced */
};
enum status session_read(struct env *env, const struct session_reading *reading,
                         struct session *session);

void session_destroy(struct session *session); /* a zeroed session is fine */

#endif
