/* weight_files -- the tensors of a model directory, wherever they lie: one file, or several by an
 * index.
 *
 * A directory and a model's tables must hold the same set of names and shapes, save for what does
 * not matter: "transformer." (GPT-2) or "model." (Llama) may be missing, a tied head may be there a
 * second time, and old files carry constant buffers. All differences are found before the first
 * byte is taken, and said in one message.
 */
#ifndef TRAIN_WEIGHT_FILES_H
#define TRAIN_WEIGHT_FILES_H
#include "train/models/model_source.h"
#include "train/weights/safetensors.h"
#include "unit/unit.h"

struct weight_files { /* open; zeroed but for env: none is */
    struct env *env;  /* borrowed */
    struct safetensors **files;
    int count;
};

struct weight_found { /* where a tensor is; NULLs: nowhere */
    const struct safetensors *file;
    const struct safetensor *tensor;
};

/* The weights of a source. Close it after a failure, too. */
enum status weight_files_open(struct weight_files *weights, const struct model_source *source);
/* Another role of a source that is a checkpoint; it may have no such files. */
enum status weight_files_open_role(struct weight_files *weights, const struct model_source *source,
                                   enum checkpoint_role role);
void weight_files_close(struct weight_files *weights);

/* A tensor by the name that the model has for it. */
struct weight_found weight_files_find(const struct weight_files *weights, const char *name);
const char *weight_files_bare(const char *name); /* without "transformer." or "model." */

/* Are these the tensors of the graph? A tied head that is there all the same must be equal to the
 * embedding. `path` is for the message. */
enum status weight_files_match(const struct weight_files *weights, const struct unit_graph *graph,
                               bool tied, const char *path);

#endif
