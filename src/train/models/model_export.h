/* model_export -- writes a model directory from a run, a checkpoint or another model directory, in
 * any floating type.
 *
 * Tensors are copied from file to file a few megabytes at a time. The files of a checkpoint are
 * compared with their hashes first (model_source.h). The directory appears complete or not at all.
 */
#ifndef TRAIN_MODEL_EXPORT_H
#define TRAIN_MODEL_EXPORT_H
#include <stdbool.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"

struct export_request { /* borrowed for the call */
    const char *from;   /* any path that model_source_open accepts */
    const char *to;     /* must not exist, or must be an empty folder */
    bool keep_type;     /* keep the type of the weights, and ignore `type` */
    enum dtype type;    /* f32, bf16 or f16 */
    int64_t file_bytes; /* size limit of a file of tensors */
};

struct export_result {
    enum dtype type;
    int files, tensors;
    int64_t parameters;
    uint64_t bytes; /* of the files of tensors */
    bool verified;  /* the source is a checkpoint and matches its hashes */
    bool master;    /* the fp32 masters of the checkpoint were exported */
};

/* A checkpoint with 16-bit weights also has fp32 masters. The masters are exported, unless the
 * requested type is that of the weights. */
enum status model_export(struct env *env, const struct export_request *request,
                         struct export_result *result);

#endif
