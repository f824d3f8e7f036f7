/* tensor_names -- finds the tensors of a graph by name. The list is sorted, because a model may
 * have thousands of layers and a file may have its tensors in any order. */
#ifndef TRAIN_TENSOR_NAMES_H
#define TRAIN_TENSOR_NAMES_H
#include "base/env.h"
#include "unit/unit.h"

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
