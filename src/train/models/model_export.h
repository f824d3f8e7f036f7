/* model_export -- a model directory made from a run, a checkpoint or another model directory, in
 * any floating type.
 *
 * Tensors go from file to file a few megabytes at a time. What is read of a checkpoint is compared
 * with its hashes first (model_source.h). The directory appears whole or not at all.
 */
#ifndef TRAIN_MODEL_EXPORT_H
#define TRAIN_MODEL_EXPORT_H
#include <stdbool.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"

struct export_request { /* borrowed for the call */
    const char *from;   /* found by model_source_open */
    const char *to;     /* must not exist, or be an empty folder */
    bool keep_type;     /* as it is; otherwise: */
    enum dtype type;    /* f32, bf16 or f16 */
    int64_t file_bytes; /* limit of a file of tensors */
};

struct export_result {
    enum dtype type;
    int files, tensors;
    int64_t parameters;
    uint64_t bytes; /* of the files of tensors */
    bool verified;  /* it was a checkpoint, and its hashes are right */
    bool master;    /* its fp32 masters were taken */
};

/* A checkpoint in fewer bits has fp32 masters beside its weights: they are taken for every type but
 * that of the weights themselves. */
enum status model_export(struct env *env, const struct export_request *request,
                         struct export_result *result);

#endif
