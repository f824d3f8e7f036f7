/* model_source -- finds the model that a path refers to, and verifies it.
 *
 * The path is a Hugging Face directory, one .safetensors file in such a directory, a checkpoint, or
 * a run, which means its newest complete checkpoint. The files of a checkpoint that will be used
 * are compared with the hashes in state.json first. A damaged or incomplete checkpoint of a run is
 * skipped with a warning that names the file; if the path names the checkpoint itself, damage is an
 * error. A plain directory has no hashes: its reader checks sizes, offsets and shapes.
 */
#ifndef TRAIN_MODEL_SOURCE_H
#define TRAIN_MODEL_SOURCE_H
#include "base/dtype.h"
#include "train/checkpoint/checkpoint.h"
#include "train/tokenizer/tokenizer.h"

/* Which files of a checkpoint are verified. */
enum model_depth {
    MODEL_DEPTH_STATE, /* only state.json: the rest may be damaged */
    MODEL_DEPTH_SMALL, /* also config.json, the tokenizer, the index */
    MODEL_DEPTH_ALL,   /* also the weights */
};

struct model_want {
    enum model_depth depth;
    const enum dtype *type; /* wanted type of the weights. If those of the checkpoint have another
                               type, its fp32 masters are used, if it has any, and the weights
                               of frozen tensors, which have none. NULL = use the weights */
    const char *second;     /* of a run: another folder with checkpoints of it; NULL = none */
};

struct model_source {
    struct env *env; /* borrowed */
    char *folder;    /* the folder with config.json; for a run, that of the checkpoint */
    char *file;      /* the only file of weights, if the path names a file; otherwise NULL */
    struct checkpoint *checkpoint; /* NULL = a plain directory, or one file */
    enum checkpoint_role role;     /* of the weights in the checkpoint: tensors that files of this
                                      role lack are read from the model files */
};

enum status model_source_open(struct env *env, const char *path, const struct model_want *want,
                              struct model_source **source);
void model_source_close(struct model_source *source); /* NULL is fine */

/* *path = folder/NAME; free it with mem_free. */
enum status model_source_path(const struct model_source *source, const char *name, char **path);

/* Warn if the tokenizer does not match the model. Its tokens are compared with those of
 * tokenizer.json in the model's folder or, if there is none, its size with the model's vocabulary.
 * `name` is the tokenizer's name in the message. */
enum status model_tokenizer_compare(struct env *env, const struct model_source *source,
                                    int64_t model_vocab, const struct tokenizer *tokenizer,
                                    const char *name);

#endif
