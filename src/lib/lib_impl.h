/* lib_impl -- what the files of the public library share. */
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

/* A user's unit as sifr's own: struct unit.self points to one. */
struct user_unit {
    struct sifr_unit unit;        /* its tables are not used after building the graph */
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

/* Tables for a user's model; errors name the unit or parameter. On failure nothing is left
 * behind. */
enum status user_graph_create(struct sifr_context *context, const struct sifr_model *model,
                              int64_t tokens, struct user_graph *graph);
void user_graph_free(struct sifr_context *context, struct user_graph *graph);

#endif
