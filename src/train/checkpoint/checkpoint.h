/* checkpoint -- a run on disk, whole or not there: written by all ranks together, read by any number
 * of others.
 *
 *     RUN/checkpoints/step-N/   a Hugging Face model directory (model_file.h)
 *         optimizer/            masters, momentum, variance (checkpoint_layout.h)
 *         state.json, COMPLETE  where the run stood, a hash of every piece (checkpoint_state.h)
 *
 * A save is one walk of all ranks: the first makes the files with their headers and full length;
 * every rank writes its share of every tensor, and syncs; all agree; the first writes state.json and
 * COMPLETE, syncs, and renames the folder to its name. Whatever fails before that, on whatever rank,
 * leaves the checkpoints as they were. docs/checkpoints.md has the format and the reasons.
 */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H
#include "base/options.h"
#include "model/model.h"
#include "train/checkpoint/checkpoint_state.h"
#include "train/tokenizer/tokenizer.h"

struct checkpoint_config {
    int64_t every;      /* steps between two; 0 = only at the end */
    int64_t keep;       /* the newest so many stay */
    int64_t major;      /* multiples of so many steps are saved too, and stay for ever; 0 = none */
    int64_t file_bytes; /* limit of a file of tensors */
    bool async;         /* those in the middle of a run are written while it goes on */
    bool direct;        /* written and read past the system's cache, where that can be */
    /* For the last one, when it cannot be saved (last_save.h): */
    const char *fallback;       /* another folder; "" = none */
    const char *wait_for_space; /* how long, as train.max_time */
    bool make_room;             /* older ones of the run may be removed */
};
extern const struct option_table checkpoint_options; /* checkpoint.* */

/* Is one due after this step of a run of `steps`, before its end? */
bool checkpoint_due(const struct checkpoint_config *config, int64_t step, int64_t steps);
/* Will there be one that is written while the run goes on, and needs room for a copy? */
bool checkpoint_in_background(const struct checkpoint_config *config, int64_t steps);

/* --- saving --------------------------------------------------------------------------------- */

struct checkpoint_setup { /* all borrowed for as long as the saver lives */
    const char *run;      /* its folder */
    const char *folder;   /* RUN/checkpoints; made by the first save */
    const struct model *model;
    struct zero *zero;
    const struct tokenizer *tokenizer; /* NULL = none */
    struct device *device;
    struct comm *comm; /* NULL: one rank */
    enum dtype type;   /* of the parameters */
    const struct checkpoint_config *config;
    const char *config_yaml;
    uint64_t data;            /* of the data, as in checkpoint_state, */
    struct data_digest files; /* and of its files */
    struct fingerprint print; /* of the machine */
    bool background;          /* write beside the run: the store has room for a snapshot */
    bool
        from_snapshot; /* what is written is a snapshot, whether or not the run goes on beside it */
};

struct checkpoint_result {
    int64_t step;
    bool saved;
    enum status status; /* otherwise: what kind of failure it was */
    char path[4096];
    char error[640]; /* why it was not saved */
    bool no_space;   /* for want of space */
    char note[320];  /* what else went wrong: old ones that could not be removed; "" = nothing */
    uint64_t bytes;
    double seconds; /* from its start to its end, with the removal of old ones */
    double written; /* of them, from the first write until it had its name; at the first rank */
    double stood;   /* of them, that the run stood still: of the rank that did so longest */
};

struct checkpoint_saver;
/* Collective, as are save and destroy. */
enum status checkpoint_saver_create(struct env *env, const struct checkpoint_setup *setup,
                                    struct checkpoint_saver **saver);
void checkpoint_saver_destroy(struct checkpoint_saver *saver); /* NULL is fine; waits */
/* Save the state as it is now. In the background: wait for the save before, copy, return. Failures
 * are in the result, the same on every rank; the status is that of the device or communicator. */
enum status checkpoint_saver_save(struct checkpoint_saver *saver,
                                  const struct checkpoint_progress *progress);
/* Save in this folder (borrowed) from now on. No save is under way. */
void checkpoint_saver_set_folder(struct checkpoint_saver *saver, const char *folder);
uint64_t checkpoint_saver_bytes(const struct checkpoint_saver *saver); /* that one takes on disk */
/* The result of the last save when it has ended and was not asked for before; `wait` for it. Not
 * collective. */
bool checkpoint_saver_result(struct checkpoint_saver *saver, bool wait,
                             struct checkpoint_result *result);

/* --- reading -------------------------------------------------------------------------------- */

/* Of all calls that read: STATUS_FORMAT is damage, seen in what the files hold or in that one is gone. Any
 * other failure (STATUS_IO: the system refused) says nothing about the checkpoint. */
struct checkpoint; /* one that is open: its state.json has been checked against COMPLETE */
enum status checkpoint_open(struct env *env, const char *folder, struct checkpoint **checkpoint);
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is fine */
const struct checkpoint_state *checkpoint_state(const struct checkpoint *checkpoint);
bool checkpoint_has(const struct checkpoint *checkpoint,
                    enum checkpoint_role role); /* such files */

/* Every tensor of the graph into the store: masters, momentum, variance of what this rank holds.
 * `direct`: past the system's cache, where that helps. Names, types and shapes must be the graph's; every piece that is read is checked. Not collective;
 * zero_publish afterwards. On failure the store is in part overwritten. */
enum status checkpoint_load(struct checkpoint *checkpoint, const struct unit_graph *graph,
                            bool direct, struct zero *zero);

/* Every piece of every file. `seen` (NULL: nobody) is told of each file, good or not; the first
 * failure comes back after all have been looked at. */
typedef void checkpoint_seen_fn(void *user, const struct checkpoint_entry *entry, enum status st);
enum status checkpoint_verify(struct checkpoint *checkpoint, checkpoint_seen_fn *seen, void *user);
/* The same for the files of one role, up to the first failure. */
enum status checkpoint_verify_role(struct checkpoint *checkpoint, enum checkpoint_role role);
/* What number `part` of `parts` has to look at, so that together they have seen all of it. */
enum status checkpoint_verify_part(struct checkpoint *checkpoint, enum checkpoint_role role,
                                   int64_t part, int64_t parts);

#endif
