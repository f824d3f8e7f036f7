/* lib_impl -- shared by the files of the public library.
 *
 *     sifr_job.c       ranks: join, run, leave; errors
 *     user_model.c     a program's model as a graph of units: checks, copies, tables
 *     user_unit.c      passes of a program's unit behind the unit interface
 *     sifr_trainer.c   options, steps, evaluation, hooks
 *     sifr_state.c     parameters, files, checkpoints
 *     sifr_plan.c      memory and traffic of a rank, from the same code on a dry device
 *     sifr_ops.c       helpers for units
 */
#ifndef LIB_LIB_IMPL_H
#define LIB_LIB_IMPL_H
#include "engine/spread.h"
#include "sifr.h"
#include "train/session.h"

/* --- jobs ----------------------------------------------------------------------------------- */
/* One rank's view of a collective call: equal on all ranks. No padding. */
struct call_facts {
    char what[16];
    int64_t trainer;
    uint64_t value;
};

struct sifr_context {
    struct env env;
    struct session session; /* device, communicator, ops, stream */
    int rank, ranks;
    void (*log)(void *user, int rank, const char *line);
    void *user;
    int holders; /* the program, and every trainer: the last one frees the context */
    struct sifr_trainer *trainers; /* all that exist, a list */
    int created;                   /* trainers so far: their numbers are the same on all ranks */
    int calls;                     /* running: units and hooks must not make another */
    struct call_facts *facts;      /* (ranks) for call_agree; NULL: one rank */
    char ended[512];               /* the failure after which no call can succeed; "" = none */
};

void context_hold(struct sifr_context *context);
void context_release(struct sifr_context *context); /* frees it if nobody holds it */

/* Public calls that train or move state begin and end with these. call_begin fails inside a unit or
 * a hook, and after a failure that ended the job. A collective call that fails on one rank ends the
 * job, because the others would wait for this rank. */
enum status call_begin(struct sifr_context *context);
int call_end(struct sifr_context *context, enum status st);
int call_end_collective(struct sifr_context *context, enum status st);
/* Fail unless all ranks make the same call with the same value: `what` names it. */
enum status call_agree(struct sifr_context *context, const char *what, int trainer, uint64_t value);

/* Copy a struct that begins with its size: what the program does not know is 0. False: the size is
 * smaller than `least` or larger than what this library knows with other bytes than 0 in it. */
bool copy_sized(void *to, size_t bytes, const void *from, size_t least);
/* Entry i of a table whose entries have `stride` bytes; what the program does not know is 0. */
void copy_entry(void *to, size_t bytes, const void *table, size_t stride, int i);

/* --- models --------------------------------------------------------------------------------- */
struct user_unit {
    struct sifr_unit unit; /* without tables */
    struct sifr_buffer *buffers;
    char buffer_names[SIFR_MAX_BUFFERS][UNIT_NAME];
    struct sifr_context *context;   /* borrowed */
    const struct user_model *model; /* borrowed */
    const struct unit *whole;       /* borrowed: the unit in the graph of the whole model */
    int64_t in_width;               /* of the previous unit; 0: the first unit */
};

struct user_model {
    struct unit_graph graph;
    struct unit_tensor *tensors;
    struct unit_param *params;
    struct unit_piece *pieces;
    struct unit *units;
    struct user_unit *users;
    struct sifr_buffer *buffers; /* of all units */
    struct unit_input inputs[SIFR_MAX_INPUTS];
    struct sifr_input input_specs[SIFR_MAX_INPUTS];
    char input_names[SIFR_MAX_INPUTS][UNIT_NAME];
    int ids, labels; /* indices of the inputs of these names; -1: none */
    double (*count)(void *user, int64_t batch, int64_t tokens, const void *const *inputs);
    void *user;
    bool checked;
};

/* Check a program's model and copy it; errors name the unit or parameter. On failure everything is
 * freed. */
enum status user_model_create(struct sifr_context *context, const struct sifr_model *model,
                              const struct sifr_options *options, struct user_model *copy);
void user_model_free(struct sifr_context *context, struct user_model *model);

/* The unit types of programs' units. */
const struct unit_type *user_unit_type(const struct sifr_unit *unit);

/* --- trainers ------------------------------------------------------------------------------- */
struct sifr_trainer {
    struct sifr_context *context; /* held */
    struct sifr_trainer *next;    /* in the context's list */
    int number;
    struct user_model model;
    struct spread spread;
    struct zero *zero;
    struct engine *engine;
    struct sifr_options options;
    struct saves *saves; /* NULL: no checkpoint was saved yet */
    int64_t steps;       /* that were taken */
    int64_t updates;     /* of these, not skipped */
};
enum dtype trainer_type(const struct sifr_trainer *trainer); /* of parameters and gradients */
void saves_poll(struct sifr_trainer *trainer);    /* report a save that has ended meanwhile */
void saves_destroy(struct sifr_trainer *trainer); /* waits for a save in the background */
/* Also used by plans, on a dry context. */
enum status trainer_open(struct sifr_context *context, const struct sifr_model *model,
                         const struct sifr_options *options, struct sifr_trainer **trainer);

#endif
