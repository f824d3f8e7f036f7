/* safetensors -- reads tensors by name from a safetensors file, after validating its whole header.
 *
 * A file is mapped, not copied: reading a range of a tensor touches that range only, so a rank can
 * read just its own part. The checks are those of the reference reader, in the same order. An
 * unsupported type is an error that names it. safetensors_write.h writes files.
 */
#ifndef TRAIN_SAFETENSORS_H
#define TRAIN_SAFETENSORS_H
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"
#include "unit/unit.h"

#define SAFETENSORS_RANK_MAX 8

struct safetensor {
    const char *name; /* borrowed from the open file */
    enum dtype type;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    int64_t count;  /* elements */
    uint64_t begin; /* offset in the file, in bytes */
    size_t bytes;
};

struct safetensors; /* one open file */

enum status safetensors_open(struct env *env, const char *path, struct safetensors **file);
/* The same for a file in memory, which must outlive `file`; `origin` is its name in messages. */
enum status safetensors_open_memory(struct env *env, const void *data, size_t bytes,
                                    const char *origin, struct safetensors **file);
/* The same for the header alone: `data` has the first `header_bytes` of a file of `bytes`, exactly
 * its header. Tensors can be looked up but not read. */
enum status safetensors_open_header(struct env *env, const void *data, size_t header_bytes,
                                    uint64_t bytes, const char *origin, struct safetensors **file);
void safetensors_close(struct safetensors *file); /* NULL is fine */

int safetensors_count(const struct safetensors *file);
const struct safetensor *safetensors_at(const struct safetensors *file, int i); /* by offset */
const struct safetensor *safetensors_find(const struct safetensors *file, const char *name);

/* out[0 .. count) = elements [first, first + count) of the tensor in C order, converted to `type`:
 * any floating type to any other, an integer type only to itself. The range must be inside the
 * tensor. */
enum status safetensors_read(const struct safetensors *file, const struct safetensor *tensor,
                             int64_t first, int64_t count, enum dtype type, void *out);

const char *safetensors_type_word(enum dtype type); /* "F32", "BF16", ... as in the header */

/* --- the tensors of a graph, found by name -------------------------------------------------- */

/* The list is sorted, because a model may have thousands of layers and a file may have its tensors
 * in any order. */
struct tensor_name {
    const char *name; /* borrowed from the graph */
    int tensor;
};

struct tensor_names {
    struct env *env;
    struct tensor_name *list;
    int count;
};

/* `also` returns an alternative name of a tensor, or the same name; NULL = no alternatives. */
enum status tensor_names_create(struct env *env, const struct unit_graph *graph,
                                const char *(*also)(const char *name), struct tensor_names *names);
int tensor_names_find(const struct tensor_names *names, const char *name); /* -1 = not found */
void tensor_names_free(struct tensor_names *names);

#endif
