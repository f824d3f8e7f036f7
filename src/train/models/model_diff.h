/* model_diff -- two models or checkpoints, tensor by tensor.
 *
 * Each side is a run, a checkpoint, a model directory or a safetensors file. Where both are
 * checkpoints, masters, momentum and variance are compared as well. Names are the same with and
 * without "transformer." or "model.". Elements differ when their bits do; of two types, when they do
 * as doubles, which hold every value of either. A few megabytes are looked at a time.
 */
#ifndef TRAIN_MODEL_DIFF_H
#define TRAIN_MODEL_DIFF_H
#include <stdbool.h>
#include "train/weights/safetensors.h"

struct diff_tensor {                /* one name */
    const char *part;               /* "model", "master", "momentum", "variance" */
    const struct safetensor *a, *b; /* NULL: only the other side has it */
    bool same_type, same_shape;
    bool compared;     /* the next are known: same shape, and numbers that can be compared */
    int64_t differing; /* elements */
    int64_t first;     /* the first of them in C order, -1 = none */
    double a_first, b_first;
    double largest;      /* |a - b|; infinite when a NaN or infinity has no equal */
    double relative_rms; /* sqrt(sum (a - b)^2 / sum a^2); 0 when none differs */
};
bool diff_tensor_equal(const struct diff_tensor *tensor);

struct diff_totals {
    int64_t tensors, equal, differing, only_a, only_b;
    double largest;
};

/* Every name goes to `visit`: a's in the order of its files, then what only b has. */
typedef void diff_visit_fn(void *user, const struct diff_tensor *tensor);
enum status model_diff(struct env *env, const char *a, const char *b, diff_visit_fn *visit,
                       void *user, struct diff_totals *totals);

#endif
