/* weight_index -- model.safetensors.index.json: the files that hold the tensors of a model.
 *
 *     {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
 *
 * It comes from anybody, so it may name files of its own folder only. Which tensor is in which file
 * is told by the files themselves.
 */
#ifndef TRAIN_WEIGHT_INDEX_H
#define TRAIN_WEIGHT_INDEX_H
#include <stddef.h>
#include "base/env.h"

struct weight_index { /* open; weight_index_free it */
    struct env *env;  /* borrowed */
    char **files;     /* each once, sorted by bytes */
    int count;
};

/* `origin` stands for the path in messages. On failure nothing is left to free. */
enum status weight_index_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                               struct weight_index *index);
void weight_index_free(struct weight_index *index); /* zeroed is fine */

#endif
