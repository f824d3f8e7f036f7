/* model_source -- where a model comes from, and that it is what was written there.
 *
 * A path stands for a Hugging Face directory, for one .safetensors file of one, for a checkpoint, or
 * for a run: then for its newest checkpoint that is whole. What will be read of a checkpoint is
 * compared with the hashes in state.json before anybody reads it. Of a run a damaged or incomplete
 * checkpoint is passed over with a line that names the file; a damaged one that was named itself is
 * an error. A plain directory has no hashes: who reads it checks sizes, offsets and shapes.
 */
#ifndef TRAIN_MODEL_SOURCE_H
#define TRAIN_MODEL_SOURCE_H
#include "base/dtype.h"
#include "train/checkpoint/checkpoint.h"

enum model_depth {                    /* what of a checkpoint is compared with its hashes */
                   MODEL_DEPTH_STATE, /* state.json alone: for who looks at damage */
                   MODEL_DEPTH_SMALL, /* and config.json, the tokenizer, the index */
                   MODEL_DEPTH_ALL,   /* and the weights */
};

struct model_want {
    enum model_depth depth;
    const enum dtype *type; /* of the weights: where those of the checkpoint are of another one, its
                               fp32 masters are taken if it has some. NULL: the weights as they are */
};

struct model_source {
    struct env *env; /* borrowed */
    char *folder;    /* with config.json; of a run: the checkpoint's */
    char *file;      /* the only file of weights, when a path named one; otherwise NULL */
    struct checkpoint *checkpoint; /* NULL: a plain directory, or one file */
    enum checkpoint_role role;     /* of the checkpoint's files that are its weights */
};

enum status model_source_open(struct env *env, const char *path, const struct model_want *want,
                              struct model_source **source);
void model_source_close(struct model_source *source); /* NULL is fine */

/* folder/NAME; mem_free it. */
enum status model_source_path(const struct model_source *source, const char *name, char **path);

#endif
