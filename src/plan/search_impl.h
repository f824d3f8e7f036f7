/* search_impl -- layouts in few bytes, and lists of them. Private to src/plan. */
#ifndef PLAN_SEARCH_IMPL_H
#define PLAN_SEARCH_IMPL_H
#include "plan/search.h"

/* A layout. Everything else comes from the request. */
struct search_point {
    double bound;  /* lower bound of a step, in seconds */
    double update; /* the update's part of it */
    size_t bytes;  /* lower bound of a rank's memory */
    int32_t pp, dp, shard_group, micro_batch;
    int16_t tp, chunks;
    int8_t stage, recompute, schedule;
    int8_t optimizer, grads, params; /* enum far_kind; if open, found when the point is refined */
    double share;                    /* of the optimizer state; the same */
    bool sequence, regather, local, refined;
};

/* --- search_bound.c: lower bounds of a layout ------------------------------------------------- */

/* The units of the model as a TP group of tp ranks has them. */
struct bound_model {
    int unit_count;
    int64_t *work; /* (units) as used by the cut */
    int **cuts;    /* (units + 1) by number of stages: first units, see pp_cut; NULL: not computed
                      yet */
};
enum status bound_model_open(struct env *env, const struct search_space *space, int tp,
                             struct bound_model *model);
void bound_model_close(struct env *env, struct bound_model *model);

/* Seconds, activations and parameters of the virtual stages, for one combination of tp, sequence,
 * micro-batch and recomputation. */
struct bound_pp_stages {
    int count;                  /* pp * chunks */
    double *forward, *backward; /* (count) */
    double *input, *weight;     /* (count) of a split backward pass */
    double *least, *most;       /* (count) parameters of the unit with the fewest, and with the most
                                   */
    double *activations;        /* (count) bytes per micro-batch */
    double *parameters;         /* (count) */
    double *learned, *unread;   /* (count) of the parameters: as in plan_unit_cost */
    int *units;                 /* (count) */
    double optimizer;           /* bytes of state per parameter, at least; the same for all */
};
/* Allocate for as many stages as there are units. */
enum status bound_pp_stages_open(struct env *env, int unit_count, struct bound_pp_stages *stages);
void bound_pp_stages_close(struct env *env, struct bound_pp_stages *stages);
enum status bound_pp_stages_cut(struct env *env, struct bound_model *model,
                                const struct plan_unit_cost *costs, int count,
                                struct bound_pp_stages *stages);

/* Set point->bound and point->bytes. */
void bound_layout(const struct search_space *space, const struct bound_pp_stages *stages,
                  struct search_point *point);
/* Raise point->bound to the simulated time of the pipeline's timetable with these stages. */
enum status bound_simulate(struct env *env, const struct search_space *space,
                           const struct bound_pp_stages *stages, struct search_point *point);

/* --- search_points.c: the layouts to try ----------------------------------------------------- */
enum { SEARCH_LEAST = 8, SEARCH_KINDS = 2 * PLAN_RECOMPUTES };

/* What is known about TP groups of one size. */
struct search_tp {
    int tp;
    struct bound_model model;
    /* (batches, SEARCH_KINDS) costs of the units by micro-batch, regather and recomputation; NULL:
     * not computed yet */
    struct plan_unit_cost **costs;
};

struct search_points {
    struct search_point *points; /* the layouts that may fit */
    int64_t count, room;
    int64_t possible, too_large;
    struct search_point least[SEARCH_LEAST]; /* those with the lowest memory bounds, whether they
                                                fit or not */
    int least_count;
    int64_t *batches; /* micro-batches that divide the global batch */
    int batch_count;
    struct search_tp *tp_groups;
    int tp_count;
    struct bound_pp_stages stages; /* scratch */
};
/* The caller frees *points. */
enum status search_points_make(struct env *env, const struct search_space *space,
                               struct search_points *points);
void search_points_free(struct env *env, struct search_points *points);
/* Raise the bound of a point to the simulated time of its timetable. */
enum status search_points_refine(struct env *env, const struct search_space *space,
                                 struct search_points *points, struct search_point *point);
/* The request with the settings of the layout. */
struct plan_request search_request(const struct search_space *space,
                                   const struct search_point *point);
int64_t search_rounds(const struct search_space *space, const struct search_point *point);
/* < 0: a is the simpler layout of two that are equally fast: fewer ranks per copy, less sharding,
 * less recomputation. */
int search_simpler(const struct search_point *a, const struct search_point *b);

/* What a rank may use. */
struct plan_room search_room(const struct search_space *space);
/* Whether layouts that do not fit may be offloaded. */
bool search_may_offload(const struct search_space *space);
/* The most that may leave the device: as the request asks for, or whatever is possible. */
struct zero_offload search_offload(const struct search_space *space);
void search_place(struct search_point *point, const struct zero_offload *offload);

/* --- search_tune.c --------------------------------------------------------------------------- */
/* Choose who updates far state, the window that it passes through, and how many layers' activations
 * leave, where these are open. */
enum status search_tune(struct env *env, const struct search_space *space,
                        struct search_layout *layout);

/* --- search_why.c ----------------------------------------------------------------------------- */
void search_say_why(struct search_result *result);

#endif
