/* model_diff -- compares two models or checkpoints tensor by tensor.
 *
 * Each side is a run, a checkpoint, a model directory or a safetensors file. If both are
 * checkpoints, masters and moments are compared as well. The prefixes "transformer." and
 * "model." of names are ignored. Two elements differ if their bits differ; if their types are
 * different, both are converted to double first, which is exact. A few megabytes are read at a
 * time.
 */
#ifndef TRAIN_MODEL_DIFF_H
#define TRAIN_MODEL_DIFF_H
#include <stdbool.h>
#include "train/weights/safetensors.h"

struct diff_tensor {                /* one name */
    const char *part;               /* "model", "master", "momentum", "variance" */
    const struct safetensor *a, *b; /* NULL = only the other side has it */
    bool same_type, same_shape;
    bool compared;           /* same shape and comparable types: the fields below are set */
    int64_t differing;       /* number of elements that differ */
    int64_t first;           /* index of the first of them in C order; -1 = none */
    double a_first, b_first; /* its values */
    double largest;          /* maximum |a - b|; infinite if a NaN or infinity differs */
    double relative_rms;     /* sqrt(sum (a - b)^2 / sum a^2); 0 if no element differs */
};
bool diff_tensor_equal(const struct diff_tensor *tensor);

struct diff_totals {
    int64_t tensors, equal, differing, only_a, only_b;
    double largest;
};

/* `visit` is called for every name: those of a in the order of its files, then those that only b
 * has. */
typedef void diff_visit_fn(void *user, const struct diff_tensor *tensor);
enum status model_diff(struct env *env, const char *a, const char *b, diff_visit_fn *visit,
                       void *user, struct diff_totals *totals);

#endif
