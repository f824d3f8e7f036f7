/* checkpoint_layout -- decides which tensor files a checkpoint has, and which bytes of them each
 * rank writes.
 *
 *     model.safetensors                  parameters in the type of the run, for any reader
 *     optimizer/master.safetensors       the same in fp32, if the run's type is narrower; without
 *                                        frozen tensors, whose only value is in the model file
 *     optimizer/momentum.safetensors     the first moment of each tensor that has one
 *     optimizer/variance.safetensors     and the second
 *
 * A file above the size limit is split between pieces of the model (embedding, blocks, head) into
 * model-00001-of-00003.safetensors and so on. Optimizer files contain the same tensor names as the
 * model, so they have a folder of their own: a program that loads every safetensors file of a
 * folder as weights does not find them. Moments are in fp32, or codes: then NAME is U8, and
 * NAME.scales has one byte for each block (zero.h).
 *
 * The layout depends only on the model graph, its optimizers, the type and the size limit, so every
 * rank computes the same one. A tensor is written in chunks of at most CHECKPOINT_CHUNK bytes.
 * Chunks end at multiples of that from the tensor's start, and where one rank's range ends.
 */
#ifndef TRAIN_CHECKPOINT_LAYOUT_H
#define TRAIN_CHECKPOINT_LAYOUT_H
#include "base/text.h"
#include "train/weights/safetensors_write.h"
#include "zero/zero.h"

enum { CHECKPOINT_CHUNK = 4 << 20, CHECKPOINT_NAME = 96 };

/* What a file contains. */
#define CHECKPOINT_ROLE_LIST(X) \
    X(PLAIN, "plain")           \
    X(MODEL, "model")           \
    X(MASTER, "master")         \
    X(MOMENTUM, "momentum")     \
    X(VARIANCE, "variance")

enum checkpoint_role {
#define X(name, word) CHECKPOINT_##name,
    CHECKPOINT_ROLE_LIST(X)
#undef X
        CHECKPOINT_ROLES
};
const char *checkpoint_role_word(enum checkpoint_role role);

#define CHECKPOINT_SCALES ".scales"
struct checkpoint_item { /* an array of a file */
    char name[UNIT_NAME + sizeof CHECKPOINT_SCALES];
    int tensor;            /* of the graph */
    enum zero_state state; /* that it is written from */
    enum dtype type;
    int64_t count;
};

struct checkpoint_file {
    char name[CHECKPOINT_NAME]; /* relative to the checkpoint's folder */
    enum checkpoint_role role;
    struct checkpoint_item *items;
    int item_count;
    struct safetensors_layout *tensors; /* the same, in this order */
};

struct checkpoint_layout { /* open */
    struct env *env;       /* borrowed */
    struct checkpoint_file *files;
    int file_count;
    uint64_t bytes; /* of all files, plus a margin for blocks, folders and small files */
};

/* `type` is the type of the parameters, `most_bytes` the size limit of a file. `zero` says which
 * moments there are; NULL: the model alone. */
enum status checkpoint_layout_create(struct env *env, const struct unit_graph *graph,
                                     enum dtype type, int64_t most_bytes, const struct zero *zero,
                                     struct checkpoint_layout *layout);
void checkpoint_layout_free(struct checkpoint_layout *layout); /* zeroed is fine */

/* The number of model files; they are the first entries of `files`. */
int checkpoint_layout_model_files(const struct checkpoint_layout *layout);
/* Could this be the name of a tensor file, in any layout? */
bool checkpoint_layout_is_name(const char *name);
/* Append the content of model.safetensors.index.json; nothing if the model is in one file. */
void checkpoint_layout_index(const struct checkpoint_layout *layout, struct text *text);

struct checkpoint_part { /* a chunk of an array: one write and one hash */
    int file, item;
    int64_t first, count; /* elements of the array */
    uint64_t begin;       /* bytes of the file */
    size_t bytes;
};
typedef enum status checkpoint_part_fn(void *user, const struct checkpoint_part *part);
/* Visit the parts that `rank` writes, in the same order on all ranks. */
enum status checkpoint_layout_visit(const struct checkpoint_layout *layout, const struct zero *zero,
                                    int rank, checkpoint_part_fn *visit, void *user);
/* The number of these parts. */
int64_t checkpoint_layout_parts(const struct checkpoint_layout *layout, const struct zero *zero,
                                int rank);

#endif
