/* search_impl -- what the files of the search share: a layout in few bytes, and the lists of them.
 */
#ifndef PLAN_SEARCH_IMPL_H
#define PLAN_SEARCH_IMPL_H
#include "plan/search.h"

/* A layout. Everything else is the request's. */
struct search_point {
    double bound;  /* seconds that a step takes at least */
    double update; /* of these, of the update */
    size_t bytes;  /* that a rank needs at least */
    int32_t pp, dp, shard_group, micro_batch;
    int16_t tp, chunks;
    int8_t stage, recompute, schedule;
    bool sequence, regather, refined;
};

/* --- search_bound.c: what a layout takes at least --------------------------------------------- */

/* The units of the model as the ranks of a group of tp have them. */
struct bound_model {
    int unit_count;
    int64_t *work; /* (units) as the cut has it */
    int **cuts;    /* (units + 1) by number of stages: first units; NULL: not asked for yet */
};
enum status bound_model_open(struct env *env, const struct search_space *space, int tp,
                             struct bound_model *model);
void bound_model_close(struct env *env, struct bound_model *model);

/* Seconds, activations and parameters of the stages that the units are cut into, for one kind of
 * pass: tp, sequence, micro-batch and recomputation. */
struct bound_pp_stages {
    int count;                  /* pp * chunks */
    double *forward, *backward; /* (count) */
    double *input, *weight;     /* (count) of a backward pass in two parts */
    double *least, *most;       /* (count) parameters of the unit that has fewest, and most */
    double *activations;        /* (count) bytes of a micro-batch */
    double *parameters;         /* (count) */
    int *units;                 /* (count) */
};
/* Room for as many stages as there are units. */
enum status bound_pp_stages_open(struct env *env, int unit_count, struct bound_pp_stages *stages);
void bound_pp_stages_close(struct env *env, struct bound_pp_stages *stages);
enum status bound_pp_stages_cut(struct env *env, struct bound_model *model,
                                const struct plan_unit_cost *costs, int count,
                                struct bound_pp_stages *stages);

/* Set point->bound and point->bytes. */
void bound_layout(const struct search_space *space, const struct bound_pp_stages *stages,
                  struct search_point *point);
/* Raise point->bound to what the lists of the pipeline take with these stages. */
enum status bound_simulate(struct env *env, const struct search_space *space,
                           const struct bound_pp_stages *stages, struct search_point *point);

/* --- search_points.c: which layouts there are ------------------------------------------------ */
enum { SEARCH_LEAST = 8, SEARCH_KINDS = 2 * PLAN_RECOMPUTES };

/* What is known of the ranks of groups of tp. */
struct search_tp {
    int tp;
    struct bound_model model;
    /* (batches, SEARCH_KINDS) costs of the units by micro-batch, regather and recomputation; NULL:
     * not asked for */
    struct plan_unit_cost **costs;
};

struct search_points {
    struct search_point *points; /* those that may fit */
    int64_t count, room;
    int64_t possible, too_large;
    struct search_point least[SEARCH_LEAST]; /* those that need least, whether they fit or not */
    int least_count;
    int64_t *batches; /* micro-batches that divide the global batch */
    int batch_count;
    struct search_tp *tp_groups;
    int tp_count;
    struct bound_pp_stages stages; /* to work in */
};
/* The caller frees *points. */
enum status search_points_make(struct env *env, const struct search_space *space,
                               struct search_points *points);
void search_points_free(struct env *env, struct search_points *points);
/* Raise the bound of a point to what its list takes, simulated. */
enum status search_points_refine(struct env *env, const struct search_space *space,
                                 struct search_points *points, struct search_point *point);
/* The request with the layout in it. */
struct plan_request search_request(const struct search_space *space,
                                   const struct search_point *point);
int64_t search_rounds(const struct search_space *space, const struct search_point *point);
/* < 0: a is the simpler layout of two that take equally long: fewer ranks share a copy, less is
 * cut, less is done twice. */
int search_simpler(const struct search_point *a, const struct search_point *b);

/* --- search_why.c ------------------------------------------------------------------------------
 */
void search_say_why(const struct search_space *space, struct search_result *result);

#endif
