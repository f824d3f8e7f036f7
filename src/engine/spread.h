/* spread -- what a rank has of a model that is spread over a mesh: its groups, its units, and what
 * its store and its engine are to be told.
 *
 *     job       mesh of dp x pp x tp ranks (comm/mesh.h)
 *     rank      its part of every tensor (model_create_part), of the units of one stage of the
 *               pipeline: those of its chunks (unit/unit_cut.h), cut so that the stages compute about
 *               as long (pp_cut.h)
 *     store     among the ranks with the same stage and the same part
 *
 * Where nothing is spread (pp 1, tp 1) it is the whole graph and the job's communicator, and costs
 * nothing. A plan has it made on a dry communicator.
 */
#ifndef ENGINE_SPREAD_H
#define ENGINE_SPREAD_H
#include "comm/mesh.h"
#include "engine/engine.h"
#include "model/model.h"

struct parallel_config {
    int64_t tp;     /* ranks that compute every layer together */
    bool sequence;  /* ... and have the stream between layers in parts */
    bool regather;  /* ... and the inputs of matrices as well, until they are needed again */
    int64_t pp;     /* stages of the pipeline */
    int schedule;   /* enum timetable_kind */
    int64_t chunks; /* of a stage; 0 = 1, interleaved: 2 */
    bool eager;     /* see timetable.h */
};

extern const struct option_table parallel_options; /* parallel.* */

/* Does this key ("parallel.eager", so many bytes) have an effect in such a layout? Any other has.
 */
bool spread_has_use(const struct parallel_config *config, const char *key, size_t bytes);
/* Say which of these were set and do nothing without another; nothing where all have an effect. */
void spread_tell_unused(struct env *env, const struct parallel_config *config);

struct spread {
    struct env *env; /* borrowed */
    struct mesh mesh;
    struct mesh_groups groups;      /* NULLs where nothing is spread */
    const struct unit_graph *graph; /* of this rank */
    struct comm *copies;            /* borrowed: the ranks of its store; NULL: this one alone */
    struct unit_cut cut;
    struct zero_chunk *chunks;
    struct zero_pipe store;
    struct engine_pipe engine;
};

/* The part of a model that this rank is to make, before there is a spread; `world` NULL: one rank.
 * Refuses what does not divide, and says what would. Not collective. */
enum status spread_part(struct env *env, const struct comm *world, struct unit_shape shape,
                        const struct parallel_config *config, struct model_part *part);
/* `world` NULL: one rank. `whole` (all units, this rank's part of the tensors) is borrowed.
 * Collective. */
enum status spread_create(struct env *env, struct comm *world, const struct unit_graph *whole,
                          struct unit_shape shape, const struct parallel_config *config,
                          struct spread *spread);
void spread_free(struct spread *spread); /* of zeros: nothing */

/* Parameters of this rank's units, and of these those that are another stage's, and those that
 * another stage uses, too. Of the units, how many are neither the first nor the last of the model,
 * and whether these are here. `shares`: elements of gradients that tensor-parallel ranks send to
 * add up what each has of them, 2 (n-1)/n of those that n have a share of. */
struct spread_counts {
    int64_t parameters, borrowed, lent;
    int inner_units;
    bool first, last;
    double shares;
};
struct spread_counts spread_count(const struct spread *spread);
/* Chunks of a stage, and messages that stage p sends for each of its micro-batches: activations to
 * the next, gradients to the one before. */
int spread_chunks(const struct parallel_config *config);
int spread_messages(const struct parallel_config *config, int p);
/* first (pp * chunks + 1): units first[s] .. first[s+1]-1 are those of virtual stage s; cost (as
 * many but one) of a forward pass of them. */
enum status spread_cut(struct env *env, const struct unit_graph *whole, struct unit_shape shape,
                       const struct parallel_config *config, int *first, int64_t *cost);

/* What the store and the engine of this rank are told beside what the run is. */
void spread_tell_store(const struct spread *spread, struct zero_config *config);
void spread_tell_engine(const struct spread *spread, struct engine_config *config);
const struct engine_pipe *spread_pipe(const struct spread *spread); /* NULL: there is none */
struct comm *spread_tp_group(const struct spread *spread); /* tensor-parallel ranks; NULL: one */

#endif
