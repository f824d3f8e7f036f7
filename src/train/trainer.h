/* trainer -- the training loop and its run folder.
 *
 *     DIR/config.yaml             the resolved configuration
 *     DIR/metrics.jsonl           one object per step
 *     DIR/events.out.tfevents.*   the same for TensorBoard
 *     DIR/samples.jsonl           text samples
 *     DIR/cache/                  tokens of text, memory-mapped; may be deleted at any time
 *     DIR/checkpoints/step-N/     all that is needed to resume; also a Hugging Face directory
 *     DIR/summary.json            how the run ended
 *
 * A trainer prints nothing: it calls callbacks and writes to the log. After its first step it allocates
 * nothing until the loop ends.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H
#include "train/run/run_events.h"
#include "train/session.h"

struct trainer_target {
    const char *folder;      /* the run folder */
    bool fresh;              /* rename an earlier run in the folder instead of resuming it */
    const char *config_yaml; /* text of the resolved configuration, for config.yaml */
    const char *trace;       /* steps to trace, "5:8" (train/run/tracing.h); NULL or "" = none */
};

/* The configuration of the store. */
struct zero_config trainer_store_config(const struct run_config *config);

/* Train with the resolved `config`, starting from the newest checkpoint in the folder. STATUS_SAVED
 * if should_stop, train.max_time or train.stop_at ended the run and its last step is saved, or no
 * step was done; STATUS_DIVERGED after train.max_skips skipped steps in a row. *summary is always
 * filled in. */
enum status trainer_run(struct env *env, const struct run_config *config,
                        const struct session_ranks *ranks, const struct trainer_target *target,
                        const struct trainer_callbacks *callbacks, struct trainer_summary *summary);

#endif
