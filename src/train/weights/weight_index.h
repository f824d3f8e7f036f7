/* weight_index -- reads model.safetensors.index.json, which lists the files with the tensors of a
 * model.
 *
 *     {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
 *
 * The index is untrusted input, so it may only name files in its own folder. Only the names of the
 * files are used: their headers say which tensors they contain.
 */
#ifndef TRAIN_WEIGHT_INDEX_H
#define TRAIN_WEIGHT_INDEX_H
#include <stddef.h>
#include "base/env.h"

struct weight_index { /* public fields; release with weight_index_free */
    struct env *env;  /* borrowed */
    char **files;     /* without duplicates, sorted by strcmp */
    int count;
};

/* `origin` is the file name in messages. After a failure there is nothing to free. */
enum status weight_index_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                               struct weight_index *index);
void weight_index_free(struct weight_index *index); /* zeroed is fine */

#endif
