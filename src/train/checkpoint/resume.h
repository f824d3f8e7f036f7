/* resume -- resumes a run from its newest complete checkpoint, on any number of ranks.
 *
 * Every rank reads the shards that it holds. Rank 0 also reads the small files, and files that no
 * rank needs are divided among all ranks, so that every byte is compared with its hash.
 *
 *     a rank finds damage             all ranks skip the checkpoint and try the previous one
 *     a rank cannot read (a read      this is not damage: all ranks stop, nothing is changed, and the
 *     fails, out of memory)           error explains how to resume from the previous checkpoint
 *
 *     there is no checkpoint, and     all ranks start from that checkpoint of another run, or none
 *     `branch` is set                 does: it was named, so damage is an error
 *
 * Only rank 0 looks at the folder. It also compares the configuration with that of the checkpoint:
 * a model of another shape is refused, and so is an optimizer that cannot use the state
 * (checkpoint_optimizers.h); a change that affects the bits is reported.
 */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H
#include "comm/comm.h"
#include "train/checkpoint/checkpoint.h"

struct resume_source {  /* borrowed for the call */
    const char *folder; /* RUN/checkpoints */
    const char *second; /* a second folder to search (fallback.h); NULL = none */
    /* A checkpoint of another run, used if this one has none yet; NULL or "": no branch. */
    const char *branch;
    bool direct; /* bypass the page cache; used on every rank */
    bool wanted; /* resume if there is a checkpoint. From here on: used on rank 0 only */
    const char *config_yaml; /* the current configuration */
    uint64_t data;
    struct data_digest files; /* of the data; all zero = not known */
    const struct fingerprint *print;
    int64_t steps;   /* of the run; if all are done, nothing is logged */
    int64_t workers; /* ranks that compute */
    bool by_workers; /* the bits depend on the number of workers */
};

/* The cost of reading the state. */
struct resume_load {
    double seconds;      /* until all ranks had read it, including skipped checkpoints */
    size_t memory_bytes; /* peak of memory in addition to the store; maximum over all ranks */
    bool in_fallback;    /* the checkpoint was in the second folder */
    bool branched;       /* the state is that of another run: resume_source.branch */
    size_t grown_bytes;  /* growth of the process, including memory of the store that was first
                            touched here; maximum over all ranks */
};

/* *found = false if there is no checkpoint at all. Otherwise the store has the state, and *progress
 * is that of the checkpoint. It is an error if all checkpoints are damaged, or if the run has no
 * checkpoint and `branch` cannot be used; nothing on disk is changed then. Collective; `comm` may be NULL for one
 * rank. */
enum status resume_run(struct env *env, const struct resume_source *source, struct comm *comm,
                       const struct unit_graph *graph, struct zero *zero,
                       struct checkpoint_progress *progress, struct resume_load *load, bool *found);

#endif
