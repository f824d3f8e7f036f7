/* checkpoint -- saves a run to disk and reads it back. All ranks write a checkpoint together; any
 * number of ranks can read it.
 *
 *     RUN/checkpoints/step-N/   a Hugging Face model directory (model_file.h)
 *         optimizer/            masters and moments (checkpoint_layout.h)
 *         state.json            progress of the run, a hash of every chunk (checkpoint_state.h)
 *         COMPLETE              size and hash of state.json
 *
 * A save is collective. Rank 0 creates the files with their headers and full length. Every rank
 * writes its part of every tensor and syncs. When all have succeeded, rank 0 writes state.json and
 * COMPLETE, syncs, and renames the folder to step-N. A failure before the rename, on any rank,
 * leaves the existing checkpoints untouched: a folder step-N is always complete.
 *
 * docs/checkpoints.md describes the format and the reasons for it.
 */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H
#include "base/options.h"
#include "model/model.h"
#include "train/checkpoint/checkpoint_state.h"
#include "train/tokenizer/tokenizer.h"

struct checkpoint_config {
    int64_t every;      /* steps between two checkpoints; 0 = only at the end */
    int64_t keep;       /* number of newest checkpoints to keep */
    int64_t major;      /* multiples of this step are saved too and never removed; 0 = none */
    bool last;          /* save after the last step of the run */
    bool final;         /* save when the run ends, for whatever reason; false: also not `last` */
    int64_t file_bytes; /* size limit of a tensor file */
    bool async;         /* save in the background while the run continues */
    bool direct;        /* bypass the page cache when writing and reading, where possible */
    /* When the last checkpoint cannot be saved (run_saves.h): */
    const char *fallback;       /* another folder; "" = none */
    const char *wait_for_space; /* how long to wait, as train.max_time */
    bool make_room;             /* older checkpoints of the run may be removed */
};
extern const struct option_table checkpoint_options; /* checkpoint.* */

/* Is a checkpoint due after `step`? The last step of `steps` does not count. */
bool checkpoint_due(const struct checkpoint_config *config, int64_t step, int64_t steps);
/* Will any checkpoint be saved, if nothing fails? */
bool checkpoint_any(const struct checkpoint_config *config, int64_t steps);
/* Will any checkpoint be saved in the background, which needs memory for a snapshot? */
bool checkpoint_in_background(const struct checkpoint_config *config, int64_t steps);

/* --- saving --------------------------------------------------------------------------------- */

/* State of a program that trains through the library: CHECKPOINT_OWN_FILE of a checkpoint. */
#define CHECKPOINT_OWN_FILE "program.bin"
struct checkpoint_blob {
    const void *data;
    size_t bytes; /* 0 = no file */
};

struct checkpoint_setup {              /* borrowed while the saver exists */
    const char *run;                   /* the run folder */
    const char *folder;                /* RUN/checkpoints; created by the first save */
    const struct unit_graph *graph;    /* of the whole model */
    const struct model *model;         /* for config.json; NULL = the model is a program's own */
    const struct checkpoint_blob *own; /* a program's own state; NULL = none */
    struct zero *zero;
    const struct tokenizer *tokenizer; /* NULL = none */
    struct device *device;
    struct comm *comm; /* NULL = one rank */
    enum dtype type;   /* of the parameters */
    const struct checkpoint_config *config;
    const char *config_yaml;
    uint64_t data;            /* hash of sampled windows, as in checkpoint_state */
    struct data_digest files; /* digest of the data files */
    struct fingerprint print; /* of the machine */
    bool background;          /* save in the background */
    bool from_snapshot;       /* write the store's snapshot, in the background or not */
};

struct checkpoint_result {
    int64_t step;
    bool saved;
    enum status status; /* the kind of failure if it was not saved */
    char path[4096];
    char error[640]; /* why it was not saved */
    bool no_space;   /* it was not saved because the disk is full */
    char note[320];  /* another problem: an old checkpoint that could not be removed; "" = none */
    uint64_t bytes;
    double seconds; /* of the whole save, including the removal of old checkpoints */
    double written; /* of these, from the first write to the rename; on rank 0 */
    double stood;   /* of these, how long the run was blocked: the maximum over all ranks */
};

struct checkpoint_saver;
/* Collective, as are save and destroy. */
enum status checkpoint_saver_create(struct env *env, const struct checkpoint_setup *setup,
                                    struct checkpoint_saver **saver);
void checkpoint_saver_destroy(struct checkpoint_saver *saver); /* NULL is fine; waits */
/* Save the current state. A background save waits for the previous one, takes the snapshot and
 * returns. A failed save is reported in the result, the same on every rank; the returned status is
 * that of the device or the communicator. */
enum status checkpoint_saver_save(struct checkpoint_saver *saver,
                                  const struct checkpoint_progress *progress);
/* Save to this folder (borrowed) from now on. No save may be in progress. */
void checkpoint_saver_set_folder(struct checkpoint_saver *saver, const char *folder);
/* Disk space that a checkpoint needs. */
uint64_t checkpoint_saver_bytes(const struct checkpoint_saver *saver);
/* Bytes that a rank allocates for chunks while it writes. */
size_t checkpoint_write_bytes(void);
/* Fetch the result of the last save, once; false if it is still in progress or was already fetched.
 * `wait` waits for its end. Not collective. */
bool checkpoint_saver_result(struct checkpoint_saver *saver, bool wait,
                             struct checkpoint_result *result);

/* --- disk space ----------------------------------------------------------------------------- */

struct checkpoint_room_need {
    const char *folder; /* RUN/checkpoints */
    bool empty;         /* ignore what is in the folder now: it will be moved away */
    const struct checkpoint_config *config;
    uint64_t bytes;      /* of one checkpoint */
    int64_t step, steps; /* steps done, and steps of the whole run */
};

/* Called when a run starts. Fails with STATUS_IO if the disk has no room for one more checkpoint
 * and neither checkpoint.fallback nor checkpoint.make_room can help. Warns if there is no room for
 * the largest number of checkpoints that will exist at once. */
enum status checkpoint_room_check(struct env *env, const struct checkpoint_room_need *need);

/* Remove the oldest checkpoint that is neither the newest nor a multiple of `major`. *made tells
 * whether there was one. The newest is verified first: if it is damaged, nothing is removed. */
enum status checkpoint_room_make(struct env *env, const char *folder, int64_t major, bool *made);

/* --- reading -------------------------------------------------------------------------------- */

/* For all calls that read: STATUS_FORMAT means damage, either wrong content or a missing file. Any
 * other failure (such as STATUS_IO) says nothing about the checkpoint. */
struct checkpoint; /* an open checkpoint, whose state.json matches COMPLETE */
enum status checkpoint_open(struct env *env, const char *folder, struct checkpoint **checkpoint);
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is fine */
const struct checkpoint_state *checkpoint_state(const struct checkpoint *checkpoint);
/* Does the checkpoint have files of this role? */
bool checkpoint_has(const struct checkpoint *checkpoint, enum checkpoint_role role);

/* Read the masters and moments of this rank's shards into the store, which encodes or decodes them
 * where it has another form. Frozen tensors come from the model files, in any floating type. Names,
 * types and shapes must match the graph and its optimizers (checkpoint_optimizers.h); every chunk
 * that is read is compared with its hash. `direct` bypasses the page cache where that helps. Not
 * collective; call zero_publish afterwards. After a failure the store is partly overwritten. */
enum status checkpoint_load(struct checkpoint *checkpoint, const struct unit_graph *graph,
                            bool direct, struct zero *zero);

/* Verify every chunk of every file. `seen` (may be NULL) is called for each file, good or not. All
 * files are verified; the first failure is returned. */
typedef void checkpoint_seen_fn(void *user, const struct checkpoint_entry *entry, enum status st);
enum status checkpoint_verify(struct checkpoint *checkpoint, checkpoint_seen_fn *seen, void *user);
/* The same for the files of one role, up to the first failure. */
enum status checkpoint_verify_role(struct checkpoint *checkpoint, enum checkpoint_role role);
/* Verify part `part` of `parts`: all parts together cover every chunk. */
enum status checkpoint_verify_part(struct checkpoint *checkpoint, enum checkpoint_role role,
                                   int64_t part, int64_t parts);

#endif
