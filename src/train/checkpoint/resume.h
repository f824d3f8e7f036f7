/* resume -- going on with a run: the newest checkpoint that is whole, at any number of ranks.
 *
 * All ranks read what they hold of the newest one; the first looks at the small files beside, and
 * what nobody needs is shared out, so that every byte has been compared with its hash. When any of
 * them finds damage, all pass it over and the one before is tried. When any of them could not look
 * (a read fails, no memory), that is no damage: all stop, nothing is changed, and the error says
 * how to resume from the one before. Only the first rank looks at the folder. A changed
 * configuration is named: what the state does not fit is refused, what changes the bits is said.
 */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint.h"

struct resume_source {       /* borrowed for the call */
    const char *folder;      /* RUN/checkpoints */
    const char *second;      /* where the newest may be too (fallback.h); NULL = nowhere */
    bool direct;             /* read past the system's cache; counts at every rank */
    bool wanted;             /* there is a run to go on with. Counts at the first rank, as does what
                                follows */
    const char *config_yaml; /* of now */
    uint64_t data;
    struct data_digest files; /* of the data; all zero = not known */
    const struct fingerprint *print;
    int64_t steps;   /* of the run; one that has done them does not go on, and nothing is said */
    int64_t workers; /* ranks that compute */
    bool by_workers; /* the bits depend on how many these are */
};

/* What reading the state took. */
struct resume_load {
    double seconds;      /* until all ranks had it, with what was passed over */
    size_t memory_bytes; /* taken for it beside the store, at most, by any rank */
    bool in_fallback;    /* it was in the second folder */
    size_t grown_bytes;  /* of any rank's process: that, and memory of the store not used before */
};

/* *found = false: there is no checkpoint at all. Otherwise the store has the state and *progress
 * says where it stood. Where there are only damaged ones that is an error, and nothing has been
 * changed on the disk. Collective; `comm` NULL: one rank. */
enum status resume_run(struct env *env, const struct resume_source *source, struct comm *comm,
                       const struct unit_graph *graph, struct zero *zero,
                       struct checkpoint_progress *progress, struct resume_load *load, bool *found);

#endif
