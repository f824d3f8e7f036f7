/* checkpoint_layout -- which files of tensors a checkpoint has, and which bytes of them each rank
 * writes.
 *
 *     model.safetensors                  parameters in the type of the run, for everybody
 *     optimizer/master.safetensors       the same in fp32, where the run's type is narrower
 *     optimizer/momentum.safetensors     fp32
 *     optimizer/variance.safetensors     fp32
 *
 * Above a limit a file is cut between pieces of the model (embedding, blocks, head) into
 * model-00001-of-00003.safetensors and so on. Optimizer files are in a folder of their own because
 * they hold the same names: a program that takes every safetensors file of a folder for weights
 * does not find them.
 *
 * All of it is a function of the model's tables and the type, so every rank knows it. A tensor is
 * written in pieces of at most CHECKPOINT_CHUNK bytes, cut at multiples of that from the tensor's
 * start and where one rank's share ends.
 */
#ifndef TRAIN_CHECKPOINT_LAYOUT_H
#define TRAIN_CHECKPOINT_LAYOUT_H
#include "base/text.h"
#include "train/weights/safetensors_write.h"
#include "zero/zero.h"

enum { CHECKPOINT_CHUNK = 4 << 20, CHECKPOINT_NAME = 96 };

/* What a file is for. */
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

struct checkpoint_file {
    char name[CHECKPOINT_NAME]; /* below the checkpoint's folder */
    enum checkpoint_role role;
    enum dtype type;
    int first_tensor, tensor_count; /* of the graph */
    struct safetensors_layout *tensors;
};

struct checkpoint_layout { /* open */
    struct env *env;       /* borrowed */
    struct checkpoint_file *files;
    int file_count;
    uint64_t bytes; /* of all files */
};

/* `type` is that of the parameters; `most_bytes` the limit of a file. */
enum status checkpoint_layout_create(struct env *env, const struct unit_graph *graph,
                                     enum dtype type, int64_t most_bytes,
                                     struct checkpoint_layout *layout);
void checkpoint_layout_free(struct checkpoint_layout *layout); /* zeroed is fine */

int checkpoint_layout_model_files(const struct checkpoint_layout *layout); /* the first so many */
/* Is it the name of a file of tensors of some layout? */
bool checkpoint_layout_is_name(const char *name);
/* The text of model.safetensors.index.json; nothing where the model is in one file. */
void checkpoint_layout_index(const struct checkpoint_layout *layout, const struct unit_graph *graph,
                             struct text *text);

struct checkpoint_part { /* of a tensor in a file: one write and one hash */
    int file, tensor;
    int64_t first, count; /* elements of the tensor */
    uint64_t begin;       /* bytes of the file */
    size_t bytes;
};
typedef enum status checkpoint_part_fn(void *user, const struct checkpoint_part *part);
/* What `rank` writes, in an order that all ranks know. */
enum status checkpoint_layout_visit(const struct checkpoint_layout *layout, const struct zero *zero,
                                    int rank, checkpoint_part_fn *visit, void *user);
int64_t checkpoint_layout_parts(const struct checkpoint_layout *layout, const struct zero *zero,
                                int rank); /* how many these are */

#endif
