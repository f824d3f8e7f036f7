/* tensor_names -- the tensors of a graph by their names: a sorted list, since a model may have
 * thousands of layers, and a file its tensors in any order. */
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

/* `also`: what else a tensor may be called; NULL = nothing. */
enum status tensor_names_create(struct env *env, const struct unit_graph *graph,
                                const char *(*also)(const char *name), struct tensor_names *names);
int tensor_names_find(const struct tensor_names *names, const char *name); /* -1 = none has it */
void tensor_names_free(struct tensor_names *names);

#endif
