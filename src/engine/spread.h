/* spread -- how a model is spread over the ranks of a job: this rank's groups and units, and the
 * settings that follow for its store and its engine.
 *
 *     job     dp x pp x tp ranks (comm/mesh.h)
 *     rank    its part of every tensor (model_create_part), for the units of its PP stage: those of
 *             its chunks (unit/unit_cut.h), cut so that all stages compute about as long (pp_cut)
 *     store   spans the ranks that have the same PP stage and the same part of the tensors; pieces
 *             of one chunk may be merged (unit/unit_merge.h)
 *
 * With pp = 1 and tp = 1 it is the whole graph with the job's communicator, and costs nothing. A
 * plan creates it on a dry communicator.
 */
#ifndef ENGINE_SPREAD_H
#define ENGINE_SPREAD_H
#include "comm/mesh.h"
#include "engine/engine.h"
#include "model/model.h"
#include "unit/unit_merge.h"

struct parallel_config {
    int64_t tp;     /* TP ranks: they compute every layer together */
    bool sequence;  /* sequence parallelism: each TP rank has a part of the stream's rows between
                       layers */
    bool regather;  /* gather inputs of matrices again in the backward pass instead of keeping them
                       */
    int64_t pp;     /* PP stages */
    int schedule;   /* enum timetable_kind */
    int64_t chunks; /* of a PP stage; 0 = 2 if interleaved, else 1 */
    bool eager;     /* see timetable_shape */
};

extern const struct option_table parallel_options; /* parallel.* */

/* Whether a key ("parallel.eager", `bytes` long) has an effect in this layout. Keys that depend on
 * nothing always have. */
bool spread_has_use(const struct parallel_config *config, const char *key, size_t bytes);
/* Warn about keys that are set but have no effect in this layout. */
void spread_warn_unused(struct env *env, const struct parallel_config *config);

struct spread {
    struct env *env; /* borrowed */
    struct mesh mesh;
    struct mesh_groups groups;      /* all NULL with pp = 1 and tp = 1 */
    const struct unit_graph *graph; /* this rank's units */
    struct comm *copies;            /* borrowed: the ranks of its store; NULL: one rank */
    struct unit_merged merged;      /* all units; empty: no piece is merged */
    struct unit_cut cut;
    struct zero_chunk *chunks;
    struct zero_pipe store;
    struct engine_pipe engine;
};

/* The part of a model that this rank has to build, before the spread is created. `world` NULL: one
 * rank. Refuses a batch that does not divide, and suggests one that does. Not collective. */
enum status spread_part(struct env *env, const struct comm *world, struct unit_shape shape,
                        const struct parallel_config *config, struct model_part *part);
/* `world` NULL: one rank. `whole` (all units, with this rank's part of the tensors) is borrowed.
 * `store`: which pieces are merged follows from it. Collective. */
enum status spread_create(struct env *env, struct comm *world, const struct unit_graph *whole,
                          struct unit_shape shape, const struct parallel_config *config,
                          const struct zero_config *store, struct spread *spread);
void spread_free(struct spread *spread); /* does nothing if all zero */

/* What this rank has: parameters of its units; of these, those that are never updated (frozen), those
 * that only forward passes read (once), and those that another PP stage owns (borrowed) or also uses
 * (lent); units that are neither the first nor the last of the model, how many of these have no
 * backward pass (forward_units), and whether the first and the last are here. `partial`: elements of
 * partial gradients that TP ranks send to add them, 2 (n-1)/n for n replicas. */
struct spread_counts {
    int64_t parameters, frozen, once, borrowed, lent;
    struct muon_counts muon;
    int inner_units, forward_units;
    bool first, last;
    double partial;
};
struct spread_counts spread_count(const struct spread *spread, const struct zero *store);
/* Chunks of a PP stage; messages that stage p sends for each micro-batch: activations to the next
 * stage, gradients to the previous one. */
int spread_chunks(const struct parallel_config *config);
int spread_messages(const struct parallel_config *config, int p);
/* first (pp * chunks + 1): virtual stage s has units first[s] .. first[s+1]-1. cost (pp * chunks):
 * operations of a forward pass of each; NULL: not wanted. */
enum status spread_cut(struct env *env, const struct unit_graph *whole, struct unit_shape shape,
                       const struct parallel_config *config, int *first, int64_t *cost);

/* A cut of units into PP stages, each of one or more consecutive units. */
struct pp_cut_task {
    int units, pp_stages;
    const int64_t *cost; /* (units) of one round, including the embedding and the head */

    /* Memory. most_bytes 0: no limit, and the other fields are not read. */
    size_t most_bytes;         /* of a stage */
    const size_t *bytes;       /* (units) independent of the rounds in flight */
    const size_t *round_bytes; /* (units) for each round in flight */
    const int *in_flight;      /* (stages) see timetable_in_flight */
};
/* first (stages + 1): stage s has units first[s] .. first[s + 1] - 1. STATUS_CONFIG if there are
 * fewer units than stages; STATUS_FIT if no cut fits, with the memory that the best one needs. */
enum status pp_cut(struct env *env, const struct pp_cut_task *task, int *first);

/* Set the fields of the store's and the engine's configuration that follow from the spread. */
void spread_configure_store(const struct spread *spread, struct zero_config *config);
void spread_configure_engine(const struct spread *spread, struct engine_config *config);
const struct engine_pipe *spread_pipe(const struct spread *spread); /* NULL: no pipeline */
struct comm *spread_tp_group(const struct spread *spread);          /* NULL: tp is 1 */

#endif
