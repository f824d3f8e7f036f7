/* lib_impl -- shared by the files of the public library. */
#ifndef LIB_LIB_IMPL_H
#define LIB_LIB_IMPL_H
#include "engine/engine.h"
#include "sifr.h"

struct sifr_context {
    struct env env;
    void (*log)(void *user, const char *line);
    void *user;
    struct device *device;
    struct ops *ops;
    struct stream *stream;
};

/* A user's unit; struct unit.self points to it. */
struct user_unit {
    struct sifr_unit unit;        /* its tables are not used after the graph is built */
    struct sifr_context *context; /* borrowed */
    int64_t width;
    int kept_count;
};

struct user_graph {
    struct unit_graph graph;
    struct unit_tensor *tensors;
    struct unit_param *params;
    struct unit_piece *pieces;
    struct unit *units;
    struct user_unit *users;
};

/* Build the tables for a user's model; errors name the unit or parameter. On failure everything is
 * freed. */
enum status user_graph_create(struct sifr_context *context, const struct sifr_model *model,
                              int64_t tokens, struct user_graph *graph);
void user_graph_free(struct sifr_context *context, struct user_graph *graph);
int user_graph_find(const struct unit_graph *graph, const char *name); /* the tensor; -1: none */

#endif
