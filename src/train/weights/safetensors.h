/* safetensors -- reading tensors by name from a file whose header is checked whole before anything
 * is believed.
 *
 * A file is mapped, never copied: reading a range of one tensor touches that range only, so a rank
 * may take just its own slice. The checks are those of the format's reference reader, in its order;
 * types we have no name for are refused by name. Writing is in safetensors_write.h.
 */
#ifndef TRAIN_SAFETENSORS_H
#define TRAIN_SAFETENSORS_H
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"

#define SAFETENSORS_RANK_MAX 8

struct safetensor {
    const char *name; /* borrowed from the open file */
    enum dtype type;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    int64_t count;  /* elements */
    uint64_t begin; /* bytes from the start of the file */
    size_t bytes;
};

struct safetensors; /* one open file */

enum status safetensors_open(struct env *env, const char *path, struct safetensors **file);
/* The same over a block that outlives it; `origin` stands for the path in messages. */
enum status safetensors_open_memory(struct env *env, const void *data, size_t bytes,
                                    const char *origin, struct safetensors **file);
/* The same over the first `header_bytes` of a file of `bytes`, which must be its header and no more:
 * tensors can be found and not read. */
enum status safetensors_open_header(struct env *env, const void *data, size_t header_bytes,
                                    uint64_t bytes, const char *origin, struct safetensors **file);
void safetensors_close(struct safetensors *file); /* NULL is fine */

int safetensors_count(const struct safetensors *file);
const struct safetensor *safetensors_at(const struct safetensors *file, int i); /* in byte order */
const struct safetensor *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key); /* or NULL */

/* out[0 .. count) = elements first .. first+count of the tensor in C order, as `type`: any
 * floating type as any other, an integer type only as itself. The range must lie inside the
 * tensor. */
enum status safetensors_read(const struct safetensors *file, const struct safetensor *tensor,
                             int64_t first, int64_t count, enum dtype type, void *out);

const char *safetensors_type_word(enum dtype type); /* "F32", "BF16", ... as in the header */

#endif
