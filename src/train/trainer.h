/* trainer -- the training loop and its run folder.
 *
 *     DIR/config.yaml             the resolved configuration
 *     DIR/metrics.jsonl           one object a step
 *     DIR/events.out.tfevents.*   the same for TensorBoard
 *     DIR/samples.jsonl           text samples
 *     DIR/cache/                  tokens of text, to be mapped again; may be deleted at any time
 *     DIR/checkpoints/step-N/     all that is needed to go on, and a Hugging Face directory
 *     DIR/summary.json            how it ended
 *
 * A trainer prints nothing: what a person should see goes to callbacks and the log. After its
 * first step it allocates nothing until the loop ends.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H
#include "train/run/run_events.h"
#include "train/session.h"

struct trainer_target {
    const char *folder;      /* the run folder */
    bool fresh;              /* a run that is already there is moved aside, not gone on with */
    const char *config_yaml; /* text of the resolved configuration, for config.yaml */
    const char *trace;       /* steps to trace, "5:8"; NULL or "" = none. See train/run/tracing.h */
};

/* The store of such a run. */
struct zero_config trainer_store_config(const struct run_config *config);

/* Train as the resolved `config` says, from the newest checkpoint in the folder on. STATUS_SAVED when
 * should_stop, train.max_time or train.stop_at said so and there is a checkpoint of the last step, or
 * no step was done; STATUS_DIVERGED after train.max_skips skipped steps in a row. *summary is filled
 * in every case. */
enum status trainer_run(struct env *env, const struct run_config *config,
                        const struct session_ranks *ranks, const struct trainer_target *place,
                        const struct trainer_callbacks *callbacks, struct trainer_summary *summary);

#endif
