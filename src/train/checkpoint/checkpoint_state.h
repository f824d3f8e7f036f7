/* checkpoint_state -- state.json: the progress and configuration of a run, and every file of its
 * checkpoint with a hash of each chunk; and COMPLETE, the marker with the hash of state.json.
 *
 *     {"format": "sifr checkpoint", "version": 1, "step": 10, "updates": 10, "samples": 80, ...,
 *      "loss_scale": null, "noise": {"steps": 10, "square": 0.2, "trace": 7.5},
 *      "config": "...", "config_xxh3": "...", "data_xxh3": "...", "workers": 2,
 *      "optimizer": {"kind": "adamw"}, "arithmetic": 2,
 *      "data_files": {"kinds": "...", "files": 1, "whole_bytes": 154000, "sampled_bytes": 0,
 *                     "samples": 0, "xxh3": "...", "more_xxh3": "...", "times_xxh3": "..."},
 *      "machine": {"binary": "...", "cpu": "...", "blas": "...", "device": "..."},
 *      "files": [{"name": "model.safetensors", "role": "model", "bytes": 1234,
 *                 "pieces": [[1000, "0123456789abcdef"], [234, "fedcba9876543210"]]}, ...]}
 *
 * "optimizer" names tensors of other kinds: {"kind": "muon", "tensors": {"adamw": ["wte.weight"]}}.
 * A checkpoint that AdamW alone made has version 1, so that earlier versions of sifr can read it.
 *
 * "pieces" are the chunks of a file, consecutive from its first byte to its last. None is longer
 * than CHECKPOINT_CHUNK, so that a range can be read and verified by the chunks that cover it. The
 * parser trusts nothing: names must stay inside the folder, lengths must add up.
 */
#ifndef TRAIN_CHECKPOINT_STATE_H
#define TRAIN_CHECKPOINT_STATE_H
#include "train/checkpoint/checkpoint_layout.h"
#include "train/checkpoint/checkpoint_optimizers.h"
#include "train/data/data_digest.h"
#include "train/checkpoint/fingerprint.h"
#include "engine/noise_scale.h"

enum { CHECKPOINT_VERSION = 2, CHECKPOINT_MARKER_VERSION = 1 };

/* The progress of a run after a step. Together with the tensors it determines the next step. */
struct checkpoint_progress {
    int64_t step;    /* steps done */
    int64_t updates; /* of these, steps that changed the parameters */
    int64_t samples; /* samples of the dataset used so far: index of the next one */
    int64_t tokens;
    int64_t skipped, skips_in_row;
    double loss; /* of the last step that was not skipped; NAN = none */
    bool scaled; /* fp16: `scale` is valid */
    struct loss_scale scale;
    struct noise_scale noise; /* steps 0: not measured */
    bool evaluation_due;      /* the evaluation after this step was stopped */
};

struct checkpoint_chunk {
    uint64_t begin, bytes, hash;
};

struct checkpoint_entry {
    char name[CHECKPOINT_NAME];
    enum checkpoint_role role;
    uint64_t bytes;
    struct checkpoint_chunk *chunks;
    int64_t chunk_count;
};

struct checkpoint_state { /* open; checkpoint_state_free it */
    struct env *env;      /* borrowed */
    struct checkpoint_progress progress;
    char *config;             /* the resolved configuration, YAML */
    uint64_t data;            /* hash of sampled windows of the data */
    struct data_digest files; /* digest of the data files; all zero = not recorded */
    int64_t workers;          /* ranks that computed; 0 = not recorded */
    struct checkpoint_optimizers optimizers;
    int64_t arithmetic;       /* OPS_ARITHMETIC of the sifr that wrote it; 0 = not recorded */
    struct fingerprint print; /* of the machine */
    struct checkpoint_entry *entries;
    int entry_count;
};

void checkpoint_state_print(const struct checkpoint_state *state, struct text *text);
/* `origin` is the path for messages. After a failure there is nothing to free. */
enum status checkpoint_state_parse(struct env *env, const char *data, size_t bytes,
                                   const char *origin, struct checkpoint_state *state);
void checkpoint_state_free(struct checkpoint_state *state); /* zeroed is fine */

/* The content of COMPLETE for this state.json. */
enum { CHECKPOINT_MARKER = 96 };
void checkpoint_marker(const char *state_json, size_t bytes, char out[CHECKPOINT_MARKER]);
/* Is this the content of a COMPLETE file, for any state.json and any version? */
bool checkpoint_marker_is(const char *text);

#endif
