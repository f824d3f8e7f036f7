/* weight_files -- finds the tensors of a model directory, in one file or in several files with an
 * index.
 *
 * A directory must have the same names and shapes as the model's graph, with three exceptions: the
 * prefix "transformer." (GPT-2) or "model." (Llama) may be missing, a tied head may be stored a
 * second time, and old files contain constant buffers. All differences are found before any element
 * is read, and reported in one message.
 */
#ifndef TRAIN_WEIGHT_FILES_H
#define TRAIN_WEIGHT_FILES_H
#include "train/models/model_source.h"
#include "train/weights/safetensors.h"
#include "unit/unit.h"

struct weight_files { /* public fields; initialize with env set and the rest zero */
    struct env *env;  /* borrowed */
    struct safetensors **files;
    int count;
};

struct weight_found { /* a tensor and its file; both NULL = not found */
    const struct safetensors *file;
    const struct safetensor *tensor;
};

/* Open the weights of a source. Call weight_files_close after a failure, too. */
enum status weight_files_open(struct weight_files *weights, const struct model_source *source);
/* Open the files of a role. The source must be a checkpoint; it may have no such files. */
enum status weight_files_open_role(struct weight_files *weights, const struct model_source *source,
                                   enum checkpoint_role role);
void weight_files_close(struct weight_files *weights);

/* Find a tensor by its name in the model's graph. */
struct weight_found weight_files_find(const struct weight_files *weights, const char *name);
const char *weight_files_bare(const char *name); /* the name without "transformer." or "model." */

/* Fail unless these are the tensors of the graph. If a tied head is stored nevertheless, it must
 * equal the embedding. `path` is for the message. */
enum status weight_files_match(const struct weight_files *weights, const struct unit_graph *graph,
                               bool tied, const char *path);

#endif
