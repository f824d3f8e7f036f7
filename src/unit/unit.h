/* unit -- the contract between model, store and engine.
 *
 * A model is an ordered list of units (embedding, block ..., head) over tables of tensors,
 * parameters and pieces:
 *
 *     tensor   what files, users and the optimizer's groups see: a name, a shape, a distribution
 *     param    one or more tensors fused along their first dimension (q, k, v; gate, up)
 *     piece    one or more params: gathered, released and reduced as one flat range
 *     unit     computes with params; a tied param is used by two units and is a piece of its own
 *
 * A unit type is a table of passes. Each pass says which of the unit's params it reads and of which
 * it writes gradients; the unit says which buffers it needs and how long each must live. A pass
 * only enqueues work: it allocates nothing and never waits. Who shards the params, where the
 * buffers lie and when a pass runs is not the unit's business.
 *
 * Between units goes the residual stream as a pair: `residual` and, not yet added to it, `pending`
 * (the last branch), so that add and norm fuse across the boundary. The gradient of both is the
 * same tensor, so backward carries one.
 *
 * A unit may have its backward pass in two parts as well, for pipelines in which others wait for the
 * gradient of its input, and nobody for those of its params:
 *
 *     PASS_BACKWARD_INPUT    reads params, writes no gradients of them; what it learns of these on its way,
 *                   and what the other part needs, stays in buffers that both declare
 *     PASS_BACKWARD_WEIGHT   reads no params, writes all gradients that PASS_BACKWARD does: the same bits
 *
 * The engine runs both or PASS_BACKWARD. Of a unit without them it runs PASS_BACKWARD for the first.
 *
 * Where several ranks compute one model together (tensor parallel), each has the same units over
 * its own part of the tensors, and a pass may call collectives over the group it is lent: on its own
 * stream, which they hold up, or beside it, where it goes on with what does not need them. Name,
 * shape and initial values of a tensor are those of the whole; its `split` says which part is here.
 */
#ifndef UNIT_UNIT_H
#define UNIT_UNIT_H
#include "ops/ops.h"

struct comm;

enum { UNIT_NAME = 96, UNIT_MAX_USES = 16, UNIT_MAX_BUFFERS = 32 };

/* --- what there is to learn ----------------------------------------------------------------- */
enum unit_init {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL /* deviation init_scale */,
    INIT_UNIFORM /* +- init_scale */
};

/* Which part of a tensor a rank has; all zeroes: the whole, and nobody else has any of it.
 *
 * Along `dim` the tensor is `sections` sections (q, k, v in one matrix: 3) of `units` units that
 * are never cut (heads, or elements). The rank has units first .. first + count - 1 of every
 * section, densely in this order:
 *
 *     whole   | q0 q1 q2 q3 | k0 k1 k2 k3 | v0 v1 v2 v3 |      sections 3, units 4
 *     here    | q2 q3 k2 k3 v2 v3 |                            first 2, count 2
 *
 * A rank that has fewer than another leaves room behind them, so that what follows is at the same
 * place on all.
 *
 * `replicas` neighbouring ranks have the same part, this one being number `replica` of them. Each
 * computes its whole gradient, the same bits everywhere; or, where it is `partial`, a share of it:
 * these are to be added, in the order of the replicas, before anybody uses it. */
struct unit_split {
    int dim;
    int64_t sections, units, first, count; /* units 0: not cut */
    int64_t most;          /* count of the rank that has most; 0: all have `count` */
    int replicas, replica; /* replicas 0: as 1 */
    bool partial;
};

struct unit_tensor {
    char name[UNIT_NAME]; /* as in files: "model.layers.3.self_attn.q_proj.weight" */
    int dims;
    int64_t shape[4]; /* of the whole */
    struct unit_split split;
    enum unit_init init;
    double init_scale;
    bool decay; /* weight decay applies (not to norms and biases) */
};

struct unit_param {
    int first_tensor, tensor_count;
    int piece;
};

struct unit_piece {
    char name[UNIT_NAME];
    int first_param, param_count; /* params of one piece are neighbours */
};

/* --- passes --------------------------------------------------------------------------------- */
enum pass {
    PASS_FORWARD,  /* stream in, stream out, keep what backward needs */
    PASS_REBUILD,  /* fill the buffers that were not kept, from those that were */
    PASS_BACKWARD, /* gradient of the output stream in, of the input stream out; params' gradients
                    */
    PASS_BACKWARD_INPUT,  /* optional: the first of these two */
    PASS_BACKWARD_WEIGHT, /* optional: the second, any time after PASS_BACKWARD_INPUT */
    PASS_LOSS,   /* last unit: losses, its params' gradients and that of its input stream */
    PASS_EVAL,   /* last unit: losses only */
    PASS_LOGITS, /* last unit: logits of the last positions */
    PASS_DECODE, /* forward with a cache of keys and values */
    PASS_COUNT
};

const char *pass_word(enum pass pass); /* "backward" */

/* Neighbouring units are walked forward, backward, or forward and back again. */
enum walk_way { WALK_FORWARD, WALK_BACKWARD, WALK_BOTH };

/* How long a buffer lives. "selective" recomputes what is cheap to make again, "full" everything
 * but the input sum. */
enum keep {
    KEEP_ALWAYS,           /* from forward to backward in every mode */
    KEEP_UNLESS_FULL,      /* made again by PASS_REBUILD under full recomputation */
    KEEP_UNLESS_SELECTIVE, /* made again under selective and full */
    KEEP_NOT,              /* inside one pass only */
};

#define UNIT_PARTS (1u << PASS_BACKWARD_INPUT | 1u << PASS_BACKWARD_WEIGHT)

struct unit_buffer {
    const char *name;
    size_t bytes;
    enum keep keep;
    uint32_t passes; /* KEEP_NOT: bit p = pass p uses it, so that passes can share the place. In any
                        case: with UNIT_PARTS in it, it lives from PASS_BACKWARD_INPUT (what is made again:
                        from PASS_REBUILD before it) to PASS_BACKWARD_WEIGHT where backward is in two parts */
};

struct unit_shape {
    int64_t batch, tokens; /* B sequences of T tokens */
    int sequence; /* ranks that share the stream's rows (sequence parallel): each has R / so
                              many of the R = B T, in rank order; 0: each has all */
};
int64_t unit_stream_rows(struct unit_shape shape); /* that this rank has; CHECKs that they divide */

struct unit;

/* For calls of the group that go on while a pass computes. A pass that has begun one waits for it
 * before it ends, and calls nothing on its own stream in between: a communicator is used by one stream at
 * a time. */
enum { UNIT_CALLS = 2 }; /* that may be under way at once */
struct unit_side_stream {
    struct stream *stream;
    struct event *written;          /* compute has come to where a call may begin */
    struct event *done[UNIT_CALLS]; /* the call is over */
    uint32_t open;                  /* bit c: call c has begun and is not waited for yet */
    double waited;                  /* seconds that compute has stood still for such calls */
};

/* One pass over one micro-batch, filled in by the engine. Pointers are device memory unless said
 * otherwise. */
struct unit_run {
    struct ops *ops;
    struct stream *stream;
    struct comm *group; /* borrowed: the tensor-parallel ranks; NULL: this one alone */
    struct unit_side_stream *side_stream; /* borrowed; NULL: all calls are on `stream` */
    enum pass pass;
    struct unit_shape shape;
    const int32_t *tokens; /* (B, T) */
    const int32_t *labels; /* (B, T), -1 = not counted */
    const struct step_scalars *scalars;

    const void *params[UNIT_MAX_USES]; /* of the uses this pass reads, in the compute type */
    void *grads[UNIT_MAX_USES];        /* of the uses this pass writes: to be overwritten */
    void *buffers[UNIT_MAX_BUFFERS];   /* as declared, in that order */
    enum keep rebuild; /* PASS_REBUILD: every buffer with keep >= rebuild is to be made again */

    const void *residual,
        *pending; /* input stream (N, C), N = unit_stream_rows; pending may be NULL; both NULL for
                     the first unit */
    void *room;   /* (N, C) for one output tensor; valid until the next unit has run. Backward: to
                     work in */
    const void *out_residual,
        *out_pending; /* set by forward: into the unit's own buffers, or `room` */
    void *gradient;   /* (N, C) backward: of the output stream in, of the input stream out */

    double *loss; /* PASS_LOSS, PASS_EVAL: sum of the losses of this micro-batch */
    void *logits; /* PASS_LOGITS: (B, logit_tokens, V) for the last positions */
    int64_t logit_tokens;
    void *cache;          /* PASS_DECODE: cache_bytes of this unit */
    struct past past;     /* positions in the cache already */
    int64_t cache_tokens; /* and room for */
};

typedef void unit_pass_fn(const struct unit *unit, struct unit_run *run);

struct unit_type {
    const char *name;
    uint32_t reads[PASS_COUNT];    /* bit u: the pass reads params[u] */
    uint32_t writes[PASS_COUNT];   /* bit u: the pass writes grads[u] */
    unit_pass_fn *run[PASS_COUNT]; /* NULL: the unit has no such pass */
    /* Fill `list` (room for UNIT_MAX_BUFFERS) and return how many; order is that of
     * unit_run.buffers. */
    int (*buffers)(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                   struct unit_buffer *list);
    /* Operations of a forward pass, about: what a pipeline's stages are balanced by. NULL: next to
     * none. */
    int64_t (*work)(const struct unit *unit, struct unit_shape shape);
    /* Bytes of the decoding cache for `batch` sequences of `tokens`; NULL: needs none. */
    size_t (*cache_bytes)(const struct unit *unit, const struct ops *ops, int64_t batch,
                          int64_t tokens);
};

#define UNIT_ALL_USES 0xffffffffu /* in reads and writes: every use the unit has */

struct unit {
    char name[UNIT_NAME]; /* "block 3" */
    const struct unit_type *type;
    const void *self; /* borrowed: the type's own sizes and tables */
    int use_count;
    int uses[UNIT_MAX_USES]; /* indices of params */
};

/* A whole model as store and engine see it. The tables are owned by whoever built it. */
struct unit_graph {
    const struct unit_tensor *tensors;
    const struct unit_param *params;
    const struct unit_piece *pieces;
    const struct unit *units;
    int tensor_count, param_count, piece_count, unit_count;
    bool part;            /* of a model (unit_cut.h): its last unit need not have the loss */
    int64_t stream_width; /* C of the residual stream */
    int sequence;         /* as in unit_shape: what partial gradients were declared for */
    int64_t vocab;        /* tokens are 0 .. vocab-1 */
    int64_t context;      /* longest sequence */
};

int64_t unit_tensor_count(const struct unit_tensor *tensor); /* elements that this rank has */
int64_t unit_tensor_whole(const struct unit_tensor *tensor); /* elements of the whole */
/* The place in the whole of this rank's element `local`. *run (NULL: not wanted) is how many
 * elements from there on follow each other here and there. */
int64_t unit_tensor_index(const struct unit_tensor *tensor, int64_t local, int64_t *run);
/* How many of this rank's elements come before that place: so what it has of a range of the whole is
 * a range here. */
int64_t unit_tensor_before(const struct unit_tensor *tensor, int64_t place);
/* Whether this rank answers for its part: one of the replicas does, so nothing counts twice. */
bool unit_tensor_answers(const struct unit_tensor *tensor);
int64_t unit_param_count(const struct unit_graph *graph,
                         int param); /* elements of all its tensors that this rank has */
int64_t unit_param_whole(const struct unit_graph *graph, int param); /* ... of all of them, whole */
int64_t unit_param_room(const struct unit_graph *graph,
                        int param);                       /* ... that the rank with most has */
int64_t unit_graph_count(const struct unit_graph *graph); /* elements of all tensors, whole */
bool unit_reads(const struct unit *unit, enum pass pass, int use);
bool unit_writes(const struct unit *unit, enum pass pass, int use);
/* The pieces that a unit uses in any of its passes, each once, by their numbers; returns how many. */
int unit_pieces(const struct unit_graph *graph, int u, int pieces[UNIT_MAX_USES]);
/* In any of its passes the gradient of some param of the piece is written. */
bool unit_writes_piece(const struct unit_graph *graph, int u, int piece);
bool unit_has_parts(const struct unit *unit); /* PASS_BACKWARD_INPUT and PASS_BACKWARD_WEIGHT */
void unit_run_pass(const struct unit *unit, enum pass pass,
                   struct unit_run *run); /* CHECKs that it has the pass */
int64_t unit_work(const struct unit *unit, struct unit_shape shape); /* at least 1 */
/* The tables are consistent (indices, names unique, neighbours, last unit has a loss): CHECKs, with
 * the name. */
void unit_graph_check(const struct unit_graph *graph);

#endif
